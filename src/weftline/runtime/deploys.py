"""Deploys: a run is carried on by another process than before, and perhaps by other code.

Each run records what it rests on when it begins. A process that takes it over compares that with what it has itself,
and does what the run's `on_deploy` says: `adopt` goes on with the new code from the next turn, and the log says so;
`pin` leaves the run alone until a process has the code that it began with.
"""

from __future__ import annotations

from typing import Protocol

from weftline.kernel.deploys import Change, Digests, Part, changes
from weftline.plan import RunPlan
from weftline.runtime.live import WorkingSet


class Knows(Protocol):
    """What is asked about a plan before its run is driven; see `weftline.runtime.toolbox.ToolSource`."""

    def knows(self, plan: RunPlan) -> bool: ...
    def digests(self, plan: RunPlan) -> Digests | None: ...


def is_at_home(plan: RunPlan, tools: Knows) -> bool:
    """Whether a run with this plan can go on in this process: its agent is here, and as the run needs it."""
    return tools.knows(plan) and not (plan.limits.on_deploy == "pin" and changes_of(plan, tools))


def changes_of(plan: RunPlan, tools: Knows, *, before: Digests | None = None) -> dict[Part, Change]:
    """What has changed since the run began, or since it was as `before`. Nothing, if that cannot be told."""
    before = before or plan.digests
    now = None if before is None else tools.digests(plan)
    return {} if before is None or now is None else changes(before, now)


def changed_for(work: WorkingSet, tools: Knows) -> dict[Part, Change]:
    """What is new to a run that was loaded from the store."""
    return changes_of(work.plan, tools, before=work.conversation.digests)
