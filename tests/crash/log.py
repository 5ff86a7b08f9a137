"""A run's log as it stands in the store, for comparing what was there at a kill with what is there at the end."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    CallClosed,
    CallOpened,
    CallStarted,
    Fact,
    RunEnded,
    TurnCompleted,
    decode_fact,
)
from weftline.runtime import ids
from weftline.runtime.model_calls.spending import BYTES_PER_TOKEN
from weftline.store import open_for_reading
from weftline.store.base import LogReader
from weftline.store.budgets import Sums
from weftline.testing.budgets import all_use, unlike

T = TypeVar("T")
AnyFact = TypeVar("AnyFact", bound=Fact)


class RunLog(Struct, frozen=True):
    """Every entry of a run by seq, deltas too, as stored bytes; and the facts among them, decoded."""

    run: str
    entries: dict[int, tuple[str, bytes, bytes]]
    facts: tuple[Fact, ...]

    def of(self, kind: type[AnyFact]) -> list[AnyFact]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def end(self) -> RunEnded:
        (ended,) = self.of(RunEnded)
        return ended

    @property
    def closed(self) -> set[tuple[int, int]]:
        return {(fact.turn, fact.index) for fact in self.of(CallClosed)}

    @property
    def completed_turns(self) -> set[int]:
        return {fact.turn for fact in self.of(TurnCompleted)}


def read_logs(store: Path) -> dict[int, RunLog]:
    """The logs of all runs; the store may be owned by a process, or have been left by one that was killed."""

    async def read(log: LogReader) -> dict[int, RunLog]:
        return {key: await _read(log, key) for key in range(1, await log.last_key() + 1)}

    return reading(store, read)


def reading(store: Path, read: Callable[[LogReader], Awaitable[T]]) -> T:
    """What `read` finds in the log of a store, beside its owner if it has one."""

    async def opened() -> T:
        reader = open_for_reading(store)
        try:
            return await read(reader.log)
        finally:
            await reader.close()

    return asyncio.run(opened())


def read_accounts(store: Path) -> dict[str, Sums]:
    """What is booked on the budgets of a store, by account; it has to be what the logs say."""

    async def read() -> tuple[list[str], dict[str, Sums]]:
        reader = open_for_reading(store)
        try:
            found: dict[str, Sums] = {}
            for one in await reader.records.read(all_use()):
                found.setdefault(one.account, Sums()).add(one)
            return await unlike(reader.log, reader.records), found
        finally:
            await reader.close()

    differences, accounts = asyncio.run(read())
    assert differences == []
    return accounts


async def _read(log: LogReader, key: int) -> RunLog:
    row = await log.run(key)
    assert row is not None, f"there is no run {key}"
    entries: dict[int, tuple[str, bytes, bytes]] = {}
    facts: list[Fact] = []
    page = await log.page(key, after=0, max_bytes=2**40)
    assert page is not None
    for item in page.items:
        if item.head:
            facts.append(decode_fact.decode(item.head))
        for seq, body in enumerate([item.body] if item.head else item.body.split(b"\n"), item.seq):
            assert seq not in entries, f"run {key} has two entries with seq {seq}"
            entries[seq] = (item.kind, item.head, body)
    return RunLog(ids.run_id(key, row.salt), dict(sorted(entries.items())), tuple(facts))


def check_whole(log: RunLog) -> None:
    """No hole, one end, every call opened and closed once, every turn completed at most once."""
    assert list(log.entries) == list(range(1, len(log.entries) + 1)), f"run {log.run} has a gap in its log"
    assert [type(fact) for fact in log.facts].count(RunEnded) == 1, f"run {log.run} has not ended exactly once"
    assert isinstance(log.facts[-1], RunEnded) and log.entries[len(log.entries)][0] == "run.ended"
    opened = [(fact.turn, fact.index) for fact in log.of(CallOpened)]
    closed = [(fact.turn, fact.index) for fact in log.of(CallClosed)]
    assert len(set(opened)) == len(opened), f"run {log.run} opened a call twice"
    assert sorted(opened) == sorted(closed), f"run {log.run}: not every opened call was closed once"
    turns = Counter(fact.turn for fact in log.of(TurnCompleted))
    assert set(turns.values()) <= {1}, f"run {log.run} completed a turn twice"


def check_carried_on(before: RunLog, after: RunLog) -> None:
    """What was durable at the kill stands unchanged, and nothing that was finished then was begun again."""
    prefix = {seq: entry for seq, entry in after.entries.items() if seq <= len(before.entries)}
    assert prefix == before.entries, f"run {after.run}: entries that were durable at the kill have changed"
    later = after.facts[len(before.facts) :]
    again = [f for f in later if isinstance(f, AttemptStarted) and f.turn in before.completed_turns]
    assert not again, f"run {after.run}: a finished model turn was requested again: {again}"
    begun = [f for f in later if isinstance(f, CallOpened | CallStarted) and (f.turn, f.index) in before.closed]
    assert not begun, f"run {after.run}: a finished call was begun or offered again: {begun}"


def streamed_tokens(log: RunLog, attempt: AttemptFailed) -> int:
    """What the log has of an attempt's answer, in tokens."""
    deltas = [json.loads(body) for kind, _, body in log.entries.values() if kind.startswith("delta.")]
    mine = [one["text"] for one in deltas if (one["turn"], one["attempt"]) == (attempt.turn, attempt.attempt)]
    return math.ceil(len("".join(mine).encode()) / BYTES_PER_TOKEN)


def abandoned(log: RunLog) -> list[AttemptFailed]:
    return [fact for fact in log.of(AttemptFailed) if fact.reason == "abandoned"]
