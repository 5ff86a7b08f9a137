"""In the store: reads, commits and trials."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from campaigns.simulation.odds import Odds
from campaigns.simulation.store import SimulatedLog
from msgspec.structs import replace

from simulation.planted.bug import GIVEN_IDS, KILLS, LEASES, Bug, Flushes
from store.planted import EpochsOnlyForWorkInFlight
from weftline.store.base import LogStore
from weftline.store.rows import History, Item, Loaded, Write, Written


class Reads(SimulatedLog):
    """A claim that reads the conversation wrongly."""

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        loaded = await super().claim(key, kinds=kinds)
        if loaded is not None:
            await self.spoil(loaded)
        return loaded

    async def spoil(self, loaded: Loaded) -> None: ...


class ReadsARowTwice(Reads):
    async def spoil(self, loaded: Loaded) -> None:
        loaded.conversation += loaded.conversation[-1:]


class MissesARow(Reads):
    async def spoil(self, loaded: Loaded) -> None:
        results = [row for row in loaded.conversation if row.kind == "call.closed"]
        loaded.conversation = [row for row in loaded.conversation if row not in results[-1:]]


class ReadsInTheWrongOrder(Reads):
    async def spoil(self, loaded: Loaded) -> None:
        loaded.conversation[-2:] = loaded.conversation[-2:][::-1]


class ReadsTheConversationOfAnother(Reads):
    """Of a run that has come as far: with what fits less, a run hangs, and it takes a history of hours to notice."""

    async def spoil(self, loaded: Loaded) -> None:
        ours = [row.kind for row in loaded.conversation]
        for key in range(1, loaded.row.key):
            others = await self.inner.facts(key, kinds=("turn.completed", "call.closed"))
            if ours and [row.kind for row in others[: len(ours)]] == ours:
                loaded.conversation = others[: len(ours)]


class ReadsTheThreadOfAnother(SimulatedLog):
    async def thread_history(self, thread: int) -> History:
        other = await super().thread_history(1 if thread == 2 else 2)
        return other if other.messages else await super().thread_history(thread)


class EndsTwice(Flushes):
    """Somebody makes sure that a cancelled run ends, and does not look whether it has."""

    def spoil(self, write: Write) -> None:
        if write.status == "cancelled" and write.items[-1].kind == "run.ended":
            last = write.items[-1]
            write.items.append(Item(last.at, last.kind, last.head, last.body))


class OnlyTheRequesterWakes(Flushes):
    """What comes from outside does not make its run due: whoever asked wakes it afterwards, if still there."""

    def spoil(self, write: Write) -> None:
        if write.due_at == 0 and {item.kind for item in write.items} <= {"message.queued", "run.resumed"}:
            write.due_at = None if write.items else 0


class EndsInTwoTransactions(SimulatedLog):
    """A run ends in one transaction and leaves its thread in the next."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        ends = [write for write in writes if write.thread_end is not None]
        if not ends:
            return super().flush(writes)
        report: asyncio.Future[list[Written]] = asyncio.get_running_loop().create_future()
        leaving = [_leaves(write) for write in ends]
        for write in ends:
            write.thread_end = None
        first = super().flush(writes)

        def second(done: asyncio.Future[list[Written]]) -> None:
            results = done.result()
            after = SimulatedLog.flush(self, leaving)
            after.add_done_callback(lambda left: third(results, left.result()))

        def third(results: list[Written], left: list[Written]) -> None:
            for write, result in zip(ends, left, strict=True):
                results[list(writes).index(write)].promoted = result.promoted
            report.set_result(results)

        first.add_done_callback(second)
        return report


def _leaves(write: Write) -> Write:
    seq = write.base_seq + sum(item.count for item in write.items)
    return replace(
        write, items=[], kept=(), bookings=(), new=None, state=None, base_seq=seq, base_version=write.version
    )


class SaysYesToAWriteThatFailed(SimulatedLog):
    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        report: asyncio.Future[list[Written]] = asyncio.get_running_loop().create_future()

        def tell(done: asyncio.Future[list[Written]]) -> None:
            report.set_result([replace(one, outcome="ok", error=None) for one in done.result()])

        super().flush(writes).add_done_callback(tell)
        return report


class NotesNoTrial(SimulatedLog):
    """Who is being recovered is noted when that is done, which a run that kills the process never lets happen."""

    async def begin_trial(self, keys: Sequence[int]) -> None:
        pass


class ForgetsTimersWithTheProcess(SimulatedLog):
    """Timers are armed when a run is parked, and by no start."""

    async def next_due(self, after: int) -> int | None:
        return None


class LooksUpNoGivenIds(SimulatedLog):
    """That an id is taken is found out by the commit, if at all."""

    async def given(self, run_id: str, *, workspace: int | None) -> list[int]:
        return []


def _epochs(inner: LogStore) -> Any:
    return EpochsOnlyForWorkInFlight(inner)


BUGS = (
    Bug("reads_a_row_twice", "M1", log=ReadsARowTwice, odds=KILLS, first=2),
    Bug("misses_a_row", "M1", log=MissesARow, odds=KILLS),
    Bug("reads_in_the_wrong_order", "M1 C3", log=ReadsInTheWrongOrder, odds=KILLS),
    Bug(
        "reads_the_conversation_of_another_run",
        "M1 C3 C6 C8 C13",
        log=ReadsTheConversationOfAnother,
        among=LEASES,
        odds=KILLS,
        first=99,
    ),
    Bug("reads_the_history_of_another_thread", "M1 C8", log=ReadsTheThreadOfAnother, odds=Odds(threads=(2,))),
    Bug("epochs_only_for_work_in_flight", "S7", log=lambda inner, wires: SimulatedLog(_epochs(inner), wires)),
    Bug("ends_twice", "C2 C5 K2 K6", log=EndsTwice),
    Bug("only_the_requester_wakes", "C6", log=OnlyTheRequesterWakes, odds=KILLS),
    Bug("ends_in_two_transactions", "B1 B2 C6 C8", log=EndsInTwoTransactions, odds=KILLS),
    Bug(
        "says_yes_to_a_write_that_failed",
        "C1 C2 C3 C4 C6 S9 K2 loop",
        log=SaysYesToAWriteThatFailed,
        odds=Odds(refuses=1.0),
    ),
    Bug("notes_no_trial", "C13", log=NotesNoTrial, first=4),
    Bug("looks_up_no_given_ids", "C1 C4", log=LooksUpNoGivenIds, among=GIVEN_IDS),
    Bug("forgets_timers_with_the_process", "C6 D1", log=ForgetsTimersWithTheProcess, odds=KILLS),
)
