"""Deploys: which runs this version can continue, and what changes when another process continues them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Raw, Struct

from weftline.errors import LOG_DAMAGED, Conflict, StoreError, WeftlineError
from weftline.kernel.bodies import AwaitBody, encode
from weftline.kernel.control import OF_RUN, PARTS, Change, Digests, Part, changes
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import (
    FORMAT,
    KIND,
    KNOWN_RULES,
    AwaitOpened,
    CallClosed,
    CallStarted,
    ChildEnded,
    Fact,
    Parent,
    decode_fact,
)
from weftline.kernel.state import State
from weftline.plan import RunPlan
from weftline.runtime import ids
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.reads.relatives import parent_link
from weftline.runtime.tool_calls.toolbox import ToolSource
from weftline.store.base import LogReader
from weftline.store.rows import DueRun, RunRow, TimedRun
from weftline.tools.digests import digest


async def known_facts(log: LogReader, key: int, *, kinds: Sequence[str]) -> list[Fact]:
    """The facts of these kinds, in order. Those that only newer code can read are left out.

    Raises `StoreError` (`log_damaged`) if one cannot be read although this version knows the format of the log.
    """
    heads = await log.heads(key, kinds=kinds)
    try:
        return [decode_fact.decode(head) for head in heads]
    except UNREADABLE:
        row = await _row(log, key)  # read after the heads: the format is that of all of them
        if row is None or row.format <= FORMAT:
            run_id = "(unreadable)" if row is None else ids.run_id(row.key, row.salt)
            raise StoreError(f"The log of run {run_id} is damaged: a fact cannot be read.", code=LOG_DAMAGED) from None
    return list(_readable(heads))


async def _row(log: LogReader, key: int) -> RunRow | None:
    with suppress(WeftlineError):
        return await log.run(key)
    return None


def _readable(heads: Sequence[bytes]) -> Iterator[Fact]:
    for head in heads:
        with suppress(*UNREADABLE):
            yield decode_fact.decode(head)


_CHILDREN = (KIND[CallStarted], KIND[ChildEnded], KIND[CallClosed])


def unsupported(row: RunRow | DueRun | TimedRun) -> str:
    """Why this version must leave an unfinished run alone (what only a newer one knows), or "" if it need not.

    Three numbers decide this: the run's rules, the format of its log, and that of its thread's messages, which an ended
    run no longer needs. This looks at the run itself; `left_alone` also at the runs above and below it.
    """
    if row.rules not in KNOWN_RULES:
        return f"rules {row.rules}"
    if row.format > FORMAT:
        return f"log format {row.format}"
    if row.thread_format > FORMAT and row.ended_at is None:
        return f"log format {row.thread_format} of its session"
    return ""


async def left_alone(logs: LogReader, row: RunRow) -> str:
    """Why this version leaves an unfinished run alone: newer code has written the run, a run above it, or the end of a
    child that one of them waits for. "" if it need not.
    """
    if newer := unsupported(row) or await _newer_end(logs, row):
        return newer
    link = await parent_link(logs, row)
    return "" if link is None else await left_alone_above(logs, link)


async def left_alone_above(logs: LogReader, link: Parent) -> str:
    """Why the run above a child is left alone, and the child with it; "" if it is not."""
    row = await logs.run(ids.parent_key(link))
    if row is None:
        return ""
    if newer := unsupported(row):
        return f"{newer} of its ancestor {ids.run_id(row.key, row.salt)}"
    return await left_alone(logs, row)


def left_to_newer(newer: str) -> Conflict:
    """The error for a change to a run that needs newer code; `newer` is what only that knows."""
    return Conflict(f"This run needs a newer version of Weftline ({newer}).", code="unsupported_run")


def newer_end_of(child: RunRow) -> str:
    """Returns the part of a child's end that only newer code knows; "" if this version can report that end to the
    parent.
    """
    newer = "" if child.ended_at is None else unsupported(child)
    return newer and f"{newer} of its child {ids.run_id(child.key, child.salt)}"


async def _newer_end(logs: LogReader, row: RunRow) -> str:
    """The first `newer_end_of` the children that the run waits for; "" if there is none."""
    if row.ended_at is not None:
        return ""
    waits: dict[tuple[int, int], str] = {}
    try:
        facts = await known_facts(logs, row.key, kinds=_CHILDREN)
    except StoreError:
        return ""  # damage is found when the run is loaded
    for fact in facts:
        match fact:
            case CallStarted(child=child) if child:
                waits[fact.turn, fact.index] = child
            case CallStarted() | ChildEnded() | CallClosed():
                waits.pop((fact.turn, fact.index), None)
            case _:
                pass
    for child in waits.values():
        below = await logs.run(ids.key_of(child))
        if below is not None and (newer := newer_end_of(below)):
            return newer
    return ""


def can_run_here(plan: RunPlan, tools: ToolSource) -> bool:
    """Returns True if a run with this plan can continue in this process: its agent is here, in the version that the run
    needs.
    """
    return tools.knows(plan) and not (plan.limits.on_deploy == "pin" and changes_of(plan, tools))


def changes_of(plan: RunPlan, tools: ToolSource, *, before: Digests | None = None) -> dict[Part, Change]:
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


def deploy_for(state: State, work: WorkingSet, tools: ToolSource) -> Deploy:
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
