"""C9, H1, H2, H3 and B3: the runs that execute calls of other runs.

C9: no child outlives its parent, and its end is durable before its parent knows of it (checked after commits). When a
run is cancelled, its children are cancelled within a second.
H1: a call that is executed by a run has exactly one, which names the call, and every child belongs to a call.
H2: the result of such a call is the outcome of its child, and comes after it; only a run that ends closes it otherwise.
H3: what a parent has used is what it and the runs below it have used.
B3: what a run reserves is reserved on the account of every run above it that has a budget.
"""

from __future__ import annotations

from collections.abc import Sequence

from campaigns.simulation.deadlines import LATE_S, is_quiet, when_s
from campaigns.simulation.disk import FAST_S, Disk, Entry
from campaigns.simulation.evidence import Evidence, RunLog
from campaigns.simulation.trace import require
from weftline.kernel import bodies
from weftline.kernel.entries import (
    AttemptStarted,
    AwaitClosed,
    CallClosed,
    CallOpened,
    CallStarted,
    CancelRequested,
    ChildEnded,
    Parent,
    RunCreated,
    RunEnded,
)
from weftline.kernel.policy import CapReached
from weftline.messages import joined_text
from weftline.runtime import ids
from weftline.runtime.agent_code.code import ChildEnd
from weftline.runtime.tool_calls.children import as_result
from weftline.store.budgets import run_account
from weftline.store.rows import Write


class ChildWatch:
    """Checks what each commit records about children, while it is the newest."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._seen: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}

    def committed(self, writes: Sequence[Write]) -> None:
        for key in {write.key: None for write in writes}:
            facts, before = self._disk.facts(key), self._seen.get(key, 0)
            self._seen[key] = len(facts)
            for entry in facts[before:]:
                self._look(key, entry)

    def _look(self, key: int, entry: Entry) -> None:
        head, mine = entry.head, self._children.setdefault(key, [])
        match head:
            case CallStarted() if head.child:
                child = ids.key_of(head.child)
                require("H1", self._disk.row(child) is not None, f"run {key}: its child {child} is not there")
                mine.append(child)
            case ChildEnded():
                child = ids.key_of(head.child)
                require("C9", self._disk.has_ended(child), f"run {key} knows of the end of {child} before the log does")
            case RunEnded():
                left = [child for child in mine if not self._disk.has_ended(child)]
                require("C9", not left, f"run {key} has ended before its children {left}")
            case _:
                pass


def check_children(evidence: Evidence, logs: Sequence[RunLog]) -> None:
    """Raises `Violation`."""
    by_id = {log.run_id: log for log in logs}
    links: dict[tuple[str, int, int], list[str]] = {}
    for log in logs:
        if (parent := _parent(log)) is not None:
            links.setdefault((parent.run, parent.turn, parent.index), []).append(log.run_id)
    for log in logs:
        for entry in log.entries:
            head = entry.head
            if isinstance(head, CallStarted) and head.child:
                found = links.pop((log.run_id, head.turn, head.index), [])
                who = f"run {log.key}: call {head.turn}.{head.index}"
                require("H1", found == [head.child], f"{who} is carried out by {head.child}, and there are {found}")
        _results(log, by_id)
        _cancelled_with_it(evidence, log, by_id)
        _reserved_above(log, by_id)
    require("H1", not links, f"children of calls that never began: {links}")


def _parent(log: RunLog) -> Parent | None:
    head = log.entries[0].head
    return head.parent if isinstance(head, RunCreated) else None


def _results(log: RunLog, by_id: dict[str, RunLog]) -> None:
    given_up = log.end is not None and log.end.code == "worker_error"
    children: dict[tuple[int, int], str] = {}
    ended: set[tuple[int, int]] = set()
    is_ending = given_up
    for entry in log.entries:
        head = entry.head
        match head:
            case CallStarted() if head.child:
                children[head.turn, head.index] = head.child
            case ChildEnded():
                call = head.turn, head.index
                fits = children.get(call) == head.child and call not in ended
                require("H2", fits, f"run {log.key}: seq {entry.seq} is about {head.child}, and not about its call")
                ended.add(call)
                _same_end(log, head, by_id[head.child])
            case CancelRequested() | CapReached():
                is_ending = True
            case CallClosed() if (head.turn, head.index) in children:
                call = head.turn, head.index
                who = f"run {log.key}: {head.id}"
                require("H2", call in ended or given_up, f"{who} has its result before its child has ended")
                if head.how in ("returned", "failed"):
                    _same_result(who, entry, head, by_id[children[call]])
                else:
                    closing = is_ending or _ends_with(log, entry)
                    require("H2", closing, f"{who} is {head.how}, and its child has ended as it should")
            case _:
                pass
    require("H2", given_up or ended == set(children), f"run {log.key}: children {children}, of which {ended} ended")


def _same_end(log: RunLog, head: ChildEnded, child: RunLog) -> None:
    end = child.end
    assert end is not None
    recorded = head.status, head.code, head.usage, head.cost_nusd, head.estimated, head.turns
    real = end.status, end.code, end.usage, end.cost_nusd, end.estimated, end.turns
    require("H3", recorded == real, f"run {log.key}: child {child.key} ended as {real}, and its parent says {recorded}")


def _same_result(who: str, entry: Entry, head: CallClosed, child: RunLog) -> None:
    end, body = child.end, bodies.decode_ended(child.entries[-1].body)
    assert end is not None
    text = body.text or body.partial_text or ""
    right = as_result(head.name, ChildEnd(child.run_id, end.status, text, body.error, end.code))
    found = joined_text(bodies.decode_closed(entry.body).parts[:1])  # the next may report a person's edits
    same = (found, head.is_error) == (joined_text(right.parts), right.is_error)
    require("H2", same, f"{who} is {found!r}, and its child {child.key} came to {joined_text(right.parts)!r}")


def _cancelled_with_it(evidence: Evidence, log: RunLog, by_id: dict[str, RunLog]) -> None:
    cancelled_s: float | None = None
    if evidence.troubles.clock_was_set or evidence.disk.faults.slowest_s > FAST_S or evidence.disk.faults.failed:
        return
    for entry in log.entries:
        head = entry.head
        if isinstance(head, CancelRequested):
            cancelled_s = when_s(evidence, entry)
        elif isinstance(head, ChildEnded) and cancelled_s is not None:
            child = by_id[head.child]
            cancelled = any(isinstance(one.head, CancelRequested) for one in child.entries)
            by_s = cancelled_s + LATE_S
            late = when_s(evidence, child.entries[-1]) > by_s and is_quiet(evidence, cancelled_s, by_s)
            require("C9", cancelled or not late, f"run {log.key} was cancelled, and its child {child.key} was not")


def _reserved_above(log: RunLog, by_id: dict[str, RunLog]) -> None:
    needed: set[str] = set()
    above: RunLog | None = log
    while above is not None:
        if above.order.budget is not None:
            needed.add(run_account(above.key))
        parent = _parent(above)
        above = None if parent is None else by_id[parent.run]
    for entry in log.entries:
        head = entry.head
        if isinstance(head, AttemptStarted) or (isinstance(head, CallOpened) and not head.blocked):
            on = () if head.held is None else head.held.on
            require("B3", needed <= set(on), f"run {log.key}: seq {entry.seq} is reserved on {on}, and not on {needed}")


def _ends_with(log: RunLog, entry: Entry) -> bool:
    """Whether nothing but the end of the run comes after an entry."""
    later = [one.head for one in log.entries if one.seq > entry.seq]
    return all(isinstance(head, CallOpened | CallClosed | AwaitClosed | RunEnded) for head in later)
