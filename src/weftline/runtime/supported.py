"""Which runs this version can continue: those that newer code has written are left alone, with the runs below them."""

from __future__ import annotations

from weftline.errors import Conflict, StoreError
from weftline.kernel.entries import FORMAT, KIND, KNOWN_RULES, CallClosed, CallStarted, ChildEnded, Parent
from weftline.runtime import ids
from weftline.runtime.known_facts import known_facts
from weftline.runtime.reads.parents import parent_link
from weftline.store.base import LogReader
from weftline.store.rows import DueRun, RunRow, TimedRun

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
