"""Links between parent and child runs, within a process and across crashes.

A child's first entry is in the transaction of its parent's `call.started`. Its last entry makes the parent due, which
then records the outcome as `child.ended`: at once if it is in memory, else when it is loaded. So nothing is lost or
repeated, wherever the process dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from weftline.errors import Conflict, NotFound, StoreError
from weftline.kernel import bodies
from weftline.kernel.accept import accepts
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import CancelRequested, ChildEnded, ChildWaits, Parent, RunEnded, decode_fact
from weftline.kernel.notes import CHILD_NOTE, ChildNote
from weftline.kernel.policies import is_clock_stopped
from weftline.runtime import ids
from weftline.runtime.deploys import left_alone_above, left_to_newer, newer_end_of
from weftline.runtime.fleet.holding import RunDispatcher, RunLoader
from weftline.runtime.live import Draft, LiveRun
from weftline.runtime.tasks import TaskSet
from weftline.store.base import LogReader
from weftline.store.rows import Item, Write

logger = logging.getLogger(__name__)

Observe: TypeAlias = Callable[[LiveRun, str, list[bytes]], None]
"""Appends observations of one kind, encoded, to the log of a run."""
OnCalls: TypeAlias = Callable[[LiveRun, Observe], None]
"""Called for a child run that has asked for calls."""


class Lineage:
    def __init__(self, store: LogReader, loader: RunLoader, dispatcher: RunDispatcher, tasks: TaskSet) -> None:
        self._store = store
        self._loader = loader
        self._dispatcher = dispatcher
        self._tasks = tasks
        self._news: set[int] = set()
        """Runs with a child that ended while they were not in memory."""

    def hand_over(self, child: LiveRun, write: Write) -> bool:
        """Reports the end of a child to its parent. Returns False if the parent is not in memory."""
        link = child.state.parent
        assert link is not None
        key = ids.parent_key(link)
        parent = self._loader.resident(key)
        if parent is None or parent.gone:
            self._news.add(key)
            return False
        last = write.items[-1]
        end = decode_fact.decode(last.head)
        assert isinstance(end, RunEnded)
        elapsed_us = last.at - (child.log.row.started_at or last.at)
        self._dispatcher.take(parent, _ended(parent, link, child.id, end, last.body, elapsed_us=elapsed_us))
        return True

    async def undelivered_ends(self, parent: LiveRun) -> list[Draft]:
        """The facts about children that ended while their parent was not in memory.

        If a child ends during this search, the search is repeated, because the parent is notified only once.
        """
        if not parent.state.open_children:
            return []
        while True:
            self._news.discard(parent.key)
            ends = await _ends_of_children(self._store, parent)
            if parent.key not in self._news:
                return ends

    async def require_known_above(self, child: LiveRun) -> None:
        """Raises `Conflict` (`unsupported_run`) if a run above the child is left to a newer version.

        A run in memory is not, nor are those above it.
        """
        link = child.state.parent
        if link is None or self._loader.resident(ids.parent_key(link)) is not None:
            return
        if newer := await left_alone_above(self._store, link):
            raise left_to_newer(newer)

    async def require_known_below(self, run: LiveRun) -> None:
        """Raises `Conflict` (`unsupported_run`) if a run below this one, which it waits for, is left to a newer
        version.
        """
        for child in run.state.open_children:
            try:
                below = await self._loader.load(ids.key_of(child))
            except Conflict as error:
                message = f"This run waits for {child}, which needs a newer version of Weftline."
                raise Conflict(message, code=error.code) from None
            except (NotFound, StoreError):
                continue  # it is lost, or cannot be read for now: neither keeps the run from being cancelled
            await self.require_known_below(below)

    async def wake(self, key: int) -> None:
        """Continues a run that became due in the store: a new child, or the parent of one that has ended."""
        try:
            run = await self._loader.load_with_retry(key)
        except (NotFound, Conflict) as error:
            logger.warning("a run that is due is skipped: %s", error.message)
        else:
            self._dispatcher.consider(run)
        finally:
            self._news.discard(key)

    def cut_children(self, run: LiveRun) -> None:
        """Cancels the children of a run whose time is up; its own calls are already closed."""
        if run.state.policy.reached == "time_budget" and run.state.open_children:
            self._tasks.spawn(self.cancel(run.state.open_children))

    async def cancel(self, children: Sequence[str], *, by: str = "") -> None:
        """Cancels the children of a run that `by` has cancelled; it ends when they have.

        They are cancelled concurrently, so that one that cannot be read for now does not delay the others.
        """
        await asyncio.gather(*[self._cancel_one(child, by=by) for child in children])

    async def _cancel_one(self, child: str, *, by: str) -> None:
        try:
            run = await self._loader.load_with_retry(ids.key_of(child))
        except (NotFound, Conflict) as error:
            logger.warning("the child run %s is skipped: %s", child, error.message)
        else:
            self._dispatcher.take(run, Draft(CancelRequested("parent", by)))


def publish_waits(runs: Mapping[int, LiveRun], take: Callable[[LiveRun, Draft], None], child: LiveRun) -> None:
    """Stops or restarts the clock of a child's parent together with the child's, if the parent measures active time.

    A parent that is not in memory learns of it when it is loaded.
    """
    parent, link = None if child.parent is None else runs.get(child.parent), child.state.parent
    if parent is None or link is None or parent.gone or child.state.ended or parent.state.limits.policy is None:
        return
    fact = ChildWaits(link.turn, link.index, is_clock_stopped(child.state))
    if accepts(parent.state, fact) and parent.state.batch.calls[link.index].child == child.id:
        take(parent, Draft(fact))


def note_calls(runs: Mapping[int, LiveRun], child: LiveRun, observe: Observe) -> None:
    """Records in the log of a child's parent how many calls the child has requested so far.

    Usually that is one transaction with the child's own entry; a parent is in memory as long as its children are.
    """
    parent, link = None if child.parent is None else runs.get(child.parent), child.state.parent
    if parent is None or link is None or parent.gone or parent.state.ended:
        return
    calls = parent.state.batch.calls
    if link.index < len(calls) and calls[link.index].child == child.id:
        count = child.work.conversation.calls.closed + child.state.batch.unclosed
        call = calls[link.index]
        observe(parent, CHILD_NOTE, [bodies.encode(ChildNote(call.id, call.name, count))])


def _ended(parent: LiveRun, link: Parent, child: str, end: RunEnded, body: bytes, *, elapsed_us: int) -> Draft:
    """The parent's fact about the terminal entry of a child."""
    calls = parent.state.batch.calls
    call = calls[link.index] if link.index < len(calls) and calls[link.index].child == child else None
    fact = ChildEnded(
        link.turn,
        link.index,
        end.status,
        end.code,
        end.usage,
        end.cost_nusd,
        end.estimated,
        end.turns,
        max(elapsed_us, 0),
        child=child,
        id="" if call is None else call.id,
        name="" if call is None else call.name,
    )
    return Draft(fact, body)


async def _ends_of_children(store: LogReader, run: LiveRun) -> list[Draft]:
    """The facts about child runs that have ended while the run was not in memory."""
    found: list[Draft] = []
    state = run.state
    for index in state.batch.running:
        call = state.batch.calls[index]
        if not call.child or not call.waits_for_child:
            continue
        link = Parent(run.id, state.turn - 1, index)
        key = ids.key_of(call.child)
        row = await store.run(key)
        if row is None:
            logger.error("run %s: its child %s is not in the store", run.id, call.child)
            end, body = _lost("It is not in the store.")
            found.append(_ended(run, link, call.child, end, body, elapsed_us=0))
        elif row.ended_at is not None:
            if newer := newer_end_of(row):
                raise left_to_newer(newer)  # the run stays due, so that a newer version tells it
            end, body = _readable(await store.entry(key, row.next_seq - 1), run, call.child)
            elapsed_us = row.ended_at - (row.started_at or row.ended_at)
            found.append(_ended(run, link, call.child, end, body, elapsed_us=elapsed_us))
        elif row.status == "paused" and state.limits.policy is not None and not call.child_waits:
            found.append(Draft(ChildWaits(link.turn, index, True)))  # the process died before the parent was notified
    return found


def _readable(last: Item | None, run: LiveRun, child: str) -> tuple[RunEnded, bytes]:
    """Returns the end of a child. If its last entry is damaged, the parent can still be loaded."""
    try:
        if last is not None and isinstance(end := decode_fact.decode(last.head), RunEnded):
            bodies.decode_ended(last.body)
            return end, last.body
    except UNREADABLE:
        pass
    logger.error("run %s: the end of its child %s cannot be read", run.id, child)
    return _lost("Its last entry cannot be read.")


def _lost(error: str) -> tuple[RunEnded, bytes]:
    return RunEnded("failed", code="worker_error"), bodies.encode(bodies.EndedBody(error=error))
