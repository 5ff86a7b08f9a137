"""Compares the accounts of a store with its logs: each account must be the sum of the bookings in the logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from weftline.kernel.context import CompactionFailed, CompactionStarted, ContextCompacted
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
from weftline.kernel.policy import Held
from weftline.store.base import LogReader
from weftline.store.budgets import Booking
from weftline.store.database import Database, Query, statement

Booked: TypeAlias = Counter[tuple[str, int, str]]
"""By account, day and column."""
_COLUMNS = ("nusd", "tokens", "active_us", "calls", "held_nusd", "held_tokens", "held_calls")


async def unlike(log: LogReader, records: Database) -> list[str]:
    """Where the accounts of a store differ from its logs, which must be complete; empty if they agree."""
    stored, logged = Booked(), Booked()
    for one in await records.read(all_use()):
        for column in _COLUMNS:
            stored[one.account, one.day, column] += getattr(one, column)
    for key in range(1, await log.last_key() + 1):
        found = [decode_fact.decode(fact.head) for fact in await log.facts(key)]
        logged.update(booked(found))
        if found and isinstance(found[-1], RunEnded) and (left := still_held(found)):
            return [f"run {key} has ended and still holds {left}"]
    places = sorted({*stored, *logged})
    return [
        f"{account} on day {day}: {column} is {stored[account, day, column]}, the logs say"
        f" {logged[account, day, column]}"
        for account, day, column in places
        if stored[account, day, column] != logged[account, day, column]
    ]


def booked(facts: Sequence[Fact]) -> Booked:
    """Returns the bookings of one run's facts on its accounts."""
    sums = Booked()
    holds: dict[str, Held] = {}
    begun: set[str] = set()
    for head in facts:
        match head:
            case AttemptStarted(held=Held() as held) | CompactionStarted(held=Held() as held):
                holds[_slot(head)] = held
                _hold(sums, held, 1)
            case CallOpened(held=Held() as held):
                holds[_slot(head)] = held
                _hold(sums, held, 1)
                if head.client is not None:
                    begun.add(_slot(head))
            case CallStarted():
                begun.add(f"call {head.turn}.{head.index}")
            case TurnCompleted() | AttemptFailed() | ContextCompacted() | CompactionFailed():
                if (held := holds.pop(_slot(head), None)) is not None:
                    _hold(sums, held, -1)
                    cost = held.nusd if head.cost_nusd is None else head.cost_nusd
                    tokens = head.usage.input + head.usage.output
                    _add(sums, held, nusd=cost, tokens=tokens, active_us=head.active_us)
            case CallClosed():
                if (held := holds.pop(_slot(head), None)) is not None:
                    _hold(sums, held, -1)
                    _add(sums, held, calls=int(_slot(head) in begun), active_us=head.active_us)
            case _:
                pass
    return sums


def still_held(facts: Iterable[Fact]) -> int:
    """Returns the number of calls that began under a budget and have not ended."""
    begun = sum([getattr(head, "held", None) is not None for head in facts])
    slots = {_slot(head) for head in facts if getattr(head, "held", None) is not None}
    ended = {_slot(head) for head in facts if isinstance(head, _ENDS)}
    return begun - len(slots & ended)


_ENDS = TurnCompleted | AttemptFailed | ContextCompacted | CompactionFailed | CallClosed


def _slot(head: Fact) -> str:
    match head:
        case AttemptStarted() | TurnCompleted() | AttemptFailed():
            return f"attempt {head.turn}.{head.attempt}"
        case CompactionStarted() | ContextCompacted() | CompactionFailed():
            return f"summary {head.number}"
        case CallOpened() | CallClosed():
            return f"call {head.turn}.{head.index}"
        case _:
            raise AssertionError(head)


def _hold(sums: Booked, held: Held, sign: int) -> None:
    for account in held.on:
        sums[account, held.day, "held_nusd"] += sign * held.nusd
        sums[account, held.day, "held_tokens"] += sign * held.tokens
        sums[account, held.day, "held_calls"] += sign * held.calls


def _add(sums: Booked, held: Held, **used: int) -> None:
    for account in held.on:
        for column, amount in used.items():
            sums[account, held.day, column] += amount


def all_use() -> Query[list[Booking]]:
    """Returns the bookings on every account, including those of runs that have ended."""
    rows = yield from statement(f"SELECT workspace, account, day, {', '.join(_COLUMNS)} FROM budget_use")
    return [Booking(*row) for row in rows]
