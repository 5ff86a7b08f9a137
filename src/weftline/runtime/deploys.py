"""Deploys: a run is continued by another process, perhaps with different code.

Each run records what it depends on when it begins. A process that takes it over compares that with its own code, and
follows the run's `on_deploy`: `adopt` continues with the new code from the next turn and records that; `pin` leaves the
run alone until a process has the code that it began with; `ask` asks a person, before the run's next model call or
tool, whether it may continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Raw, Struct

from weftline.kernel.bodies import AwaitBody, encode
from weftline.kernel.control import OF_RUN, PARTS, Change, Digests, Part, changes
from weftline.kernel.entries import AwaitOpened
from weftline.kernel.state import State
from weftline.plan import RunPlan
from weftline.runtime.live import Draft, WorkingSet
from weftline.tools.digests import digest


class Knows(Protocol):
    """Questions about a plan before its run is driven; see `weftline.runtime.tool_calls.toolbox.ToolSource`."""

    def knows(self, plan: RunPlan) -> bool: ...
    def digests(self, plan: RunPlan) -> Digests | None: ...


def can_run_here(plan: RunPlan, tools: Knows) -> bool:
    """Returns True if a run with this plan can continue in this process: its agent is here, in the version that the run
    needs.
    """
    return tools.knows(plan) and not (plan.limits.on_deploy == "pin" and changes_of(plan, tools))


def changes_of(plan: RunPlan, tools: Knows, *, before: Digests | None = None) -> dict[Part, Change]:
    """Returns the changes since the run began, or since `before`. None, if that is unknown."""
    before = before or plan.digests
    now = None if before is None else tools.digests(plan)
    return {} if before is None or now is None else changes(before, now)


class Deploy(Struct, frozen=True):
    """The record about a run before this process drives it."""

    adopted: dict[Part, Change] = {}
    """The changes that the run adopts."""
    asks: Draft | None = None
    """The question to a person that comes first."""


NO_DEPLOY = Deploy()


def deploy_for(state: State, work: WorkingSet, tools: Knows) -> Deploy:
    """Returns the changes for a run that was loaded from the store, and what follows under its own policy."""
    changed = changes_of(work.plan, tools, before=work.conversation.digests)
    if not changed:
        return NO_DEPLOY
    if work.plan.limits.on_deploy != "ask":
        return Deploy(changed)
    now = digest(*[part for name in PARTS if name in changed for part in (name, changed[name].after)])
    id = f"deploy_{now}"
    if id in work.conversation.approved:
        return Deploy(changed)
    asked = AwaitOpened(state.turn, OF_RUN, id, "deploy", now)
    return Deploy(asks=Draft(asked, encode(AwaitBody(question(changed), "", "", Raw(encode(changed))))))


def question(changed: Mapping[Part, Change]) -> str:
    """Returns the question to a person about a run that a deploy would change."""
    what = f"The {parts_of(changed)} of this run {have(changed)} changed."
    return f"{what} May it continue with the new version? Otherwise it is cancelled."


def parts_of(changed: Mapping[Part, Change]) -> str:
    """`prompt, tools and code`."""
    names = list(changed)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def have(changed: Mapping[Part, Change]) -> str:
    """The verb that goes with these parts: the code has changed, the tools have."""
    return "have" if len(changed) > 1 or "tools" in changed else "has"
