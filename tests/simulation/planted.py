# Planted bugs reach inside, which is the point of them.
# pyright: reportPrivateUsage=false
"""Bugs that the simulation must catch. Each changes the runtime the way a plausible mistake would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import apsw
import pytest
from msgspec import Struct
from msgspec.structs import replace
from weftline.runtime.transcript import Transcript

from weftline.kernel.decide import decide
from weftline.kernel.entries import AttemptFailed, Fact, RunEnded
from weftline.kernel.state import New
from weftline.messages import Usage
from weftline.runtime import driver as driver_module
from weftline.runtime import recovery as recovery_module
from weftline.runtime.alarm import Alarm
from weftline.runtime.driver import Driver
from weftline.runtime.embedded import Engine
from weftline.runtime.hub import Subscription
from weftline.runtime.live import LiveRun
from weftline.runtime.log import Log
from weftline.runtime.receipts import CancelReceipt
from weftline.store.base import RunWrite, Written
from weftline.store.sqlite.transaction import write_batch
from weftline.testing.simulation.store import SimulatedStore


class Bug(Struct):
    """A mistake, and the rules by which it may be noticed."""

    name: str
    rules: frozenset[str]
    plant: Callable[[pytest.MonkeyPatch], None]
    first_seed: int = 0
    """Where to begin to look: a rare one needs a history with a refused write at just the right moment."""


def decision_without_version(patch: pytest.MonkeyPatch) -> None:
    """The driver looks, waits, and appends what it had decided before."""

    async def drive(self: Driver, run: LiveRun) -> None:
        await self._open(run)
        while True:
            decision = decide(run.state)
            if decision.append:
                await asyncio.sleep(0.05)
                _append_decision(self, run, decision.append)
                continue
            run.due_at = 0 if decision.start else decision.due_at
            if not decision.start or self.stopping:
                return
            await self._carry_out(run, decision.start)

    patch.setattr(Driver, "drive", drive)


def _append_decision(driver: Driver, run: LiveRun, append: tuple[New, ...]) -> None:
    transcript = driver.transcript(run)
    if run.state.calls and not run.prepared:
        driver.prepare(run)
    facts = [driver_module.fill(driver, run, new, transcript) for new in append]
    driver.log.append(run, facts)
    for head, body in facts:
        transcript.apply(head, body)
    if run.state.ended:
        driver._end(run, transcript)


def requester_wakes(patch: pytest.MonkeyPatch) -> None:
    """The run is woken by the caller after the commit, if the caller is still there."""

    async def request(self: Engine, run: LiveRun, head: Fact, body: bytes) -> None:
        self.driver.append(run, head, body)
        await self.log.durable(run, requester=True)
        self.advance(run)

    patch.setattr(Engine, "_request", request)


def end_and_queue_in_two_transactions(patch: pytest.MonkeyPatch) -> None:
    def commit(self: SimulatedStore, writes: list[RunWrite]) -> list[Written]:
        ends = [(write, write.thread_end) for write in writes if write.thread_end is not None]
        for write, _ in ends:
            write.thread_end = None
        results = _transact(self, writes)
        if not ends:
            return results
        self.disk.on_commit(writes, True)
        if self.dead:
            return results
        for write, end in ends:
            after = replace(write, base_seq=write.next_seq, base_version=write.version)
            after.new, after.state, after.thread_end = None, None, end
            after.entries, after.deltas, after.opened, after.answered = [], [], [], []
            (result,) = _transact(self, [after])
            results[writes.index(write)].promoted = result.promoted
        return results

    patch.setattr(SimulatedStore, "_commit", commit)


def _transact(store: SimulatedStore, writes: list[RunWrite]) -> list[Written]:
    return store.disk.transact(lambda db: write_batch(db, writes), owner_epoch=store.owner_epoch)


def tool_before_its_start_is_durable(patch: pytest.MonkeyPatch) -> None:
    durable = Log.durable

    async def hasty(self: Log, run: LiveRun, *, requester: bool = False) -> None:
        if requester:
            await durable(self, run, requester=True)

    patch.setattr(Log, "durable", hasty)


def same_attempt_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    load = Engine.load

    def forgetful(self: Engine, key: int) -> LiveRun:
        run = load(self, key)
        run.adopting = False
        return run

    patch.setattr(Engine, "load", forgetful)


def early_timer_is_dropped(patch: pytest.MonkeyPatch) -> None:
    def look(self: Alarm) -> None:
        self._handle = None
        due_at, self._due_at = self._due_at, None
        if due_at is not None and self._clock.now_us() >= due_at:
            self._ring(0)

    patch.setattr(Alarm, "_look", look)


def usage_is_dropped_on_cancel(patch: pytest.MonkeyPatch) -> None:
    fill = driver_module.fill

    def cheap(driver: Driver, run: LiveRun, new: New, transcript: Transcript) -> tuple[Fact, bytes]:
        head, body = fill(driver, run, new, transcript)
        if isinstance(head, AttemptFailed) and head.reason == "cancelled":
            head = replace(head, usage=Usage())
        return head, body

    patch.setattr(driver_module, "fill", cheap)


def terminal_by_two_repairers(patch: pytest.MonkeyPatch) -> None:
    """Somebody makes sure that a cancelled run ends, and does not look whether it has."""
    cancel = Engine.cancel

    async def doubly(self: Engine, key: int, *, reason: str = "user", requested_by: str = "") -> CancelReceipt:
        receipt = await cancel(self, key, reason=reason, requested_by=requested_by)
        run = self.load(key)
        self.end_by_force(run, [(RunEnded("cancelled", reason=reason, usage=run.state.usage), b"{}")])
        await self.log.durable(run, requester=True)
        return receipt

    patch.setattr(Engine, "cancel", doubly)


def poison_is_counted_after_the_fold(patch: pytest.MonkeyPatch) -> None:
    """The counter is raised when a recovery is done, which a run that kills the process never lets happen."""
    patch.setattr(recovery_module, "mark_recovering", partial(_never))


def _never(db: apsw.Connection, *, keys: list[int], died: bool, tried: bool = True) -> None:
    pass


def slow_reader_loses_its_place(patch: pytest.MonkeyPatch) -> None:
    push = Subscription.push

    def forgetful(self: Subscription, frames: bytes, last_seq: int, *, ended: bool) -> None:
        self._taken = self.last_seq
        push(self, frames, last_seq, ended=ended)

    patch.setattr(Subscription, "push", forgetful)


def appends_after_a_lost_one(patch: pytest.MonkeyPatch) -> None:
    """A run that was dropped may still append."""
    touch = Log._touch

    def careless(self: Log, run: LiveRun) -> RunWrite:
        dropped, run.dropped = run.dropped, False
        try:
            return touch(self, run)
        finally:
            run.dropped = dropped

    patch.setattr(Log, "_touch", careless)


BUGS = (
    Bug("decision_without_version", frozenset({"K2", "K7", "K8", "K9", "K10", "K13", "C1"}), decision_without_version),
    Bug("requester_wakes", frozenset({"C6", "K7", "C1"}), requester_wakes),
    Bug("end_and_queue_in_two_transactions", frozenset({"C6", "C8"}), end_and_queue_in_two_transactions),
    Bug("tool_before_its_start_is_durable", frozenset({"C3"}), tool_before_its_start_is_durable),
    Bug("same_attempt_after_a_restart", frozenset({"F4", "C3", "C4", "C12"}), same_attempt_after_a_restart),
    Bug("early_timer_is_dropped", frozenset({"C6"}), early_timer_is_dropped),
    Bug("usage_is_dropped_on_cancel", frozenset({"C4"}), usage_is_dropped_on_cancel),
    Bug("terminal_by_two_repairers", frozenset({"C5", "K2", "K6"}), terminal_by_two_repairers),
    Bug("poison_is_counted_after_the_fold", frozenset({"C13"}), poison_is_counted_after_the_fold),
    Bug("slow_reader_loses_its_place", frozenset({"S9"}), slow_reader_loses_its_place),
    Bug("appends_after_a_lost_one", frozenset({"S1", "K2", "C1"}), appends_after_a_lost_one, first_seed=500),
)
