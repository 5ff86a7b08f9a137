"""Compares two runs: a run and its fork, or any two."""

from __future__ import annotations

from msgspec import Struct

from weftline.kernel import bodies
from weftline.kernel.bodies import Origin
from weftline.kernel.entries import (
    AttemptFailed,
    CallClosed,
    RunEnded,
    TurnCompleted,
    decode_fact,
)
from weftline.messages import Usage
from weftline.replay.refusing import readable_entries, require_whole
from weftline.runtime import ids
from weftline.store.base import LogReader
from weftline.store.rows import RunRow


class Outcome(Struct, frozen=True):
    """The outcome of a run. For a fork, these are its own turns alone."""

    run: str
    status: str
    code: str
    text: str
    turns: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    active_s: float
    forked_from: Origin | None = None


class Compared(Struct, frozen=True):
    first: Outcome
    second: Outcome
    inherited: Outcome | None
    """What a fork inherited from its origin, without paying for it again; None if the second run is not a fork of the
    first.
    """
    first_difference: int | None
    """The first turn that differs, as the first run counts; None if all answers are the same."""


class _Read(Struct):
    outcome: Outcome
    turns: list[bytes]
    """The text and calls of each turn, encoded, without the ids of calls, which differ between runs."""
    before: Outcome
    """The outcome up to a turn."""


async def compare_runs(log: LogReader, first: RunRow, second: RunRow) -> Compared:
    """Raises `Conflict` if one of them has not ended or is incomplete."""
    created = bodies.decode_created((await require_whole(log, second)).body)
    first_id = ids.run_id(first.key, first.salt)
    is_fork = created.origin is not None and created.origin.run == first_id
    skipped = created.origin.turn if created.origin is not None and is_fork else 0
    one = await _read(log, first, upto=skipped)
    two = await _read(log, second, upto=0)
    mine = one.turns[skipped:]
    same = 0
    while same < len(mine) and same < len(two.turns) and mine[same] == two.turns[same]:
        same += 1
    differs = same < max(len(mine), len(two.turns))
    return Compared(one.outcome, two.outcome, one.before if is_fork else None, skipped + same if differs else None)


async def _read(log: LogReader, row: RunRow, *, upto: int) -> _Read:
    """`upto` is the turn up to which usage is counted separately."""
    origin = bodies.decode_created((await require_whole(log, row)).body).origin
    run_id = ids.run_id(row.key, row.salt)
    turns: list[bytes] = []
    calls = calls_before = cost_before = active_before = 0
    before = Usage()
    ended: RunEnded | None = None
    text = ""
    async for item in readable_entries(log, row):
        if not item.head:
            continue
        head = decode_fact.decode(item.head)
        match head:
            case TurnCompleted() | AttemptFailed():
                if head.turn < upto:
                    before += head.usage
                    cost_before += head.cost_nusd or 0
                    active_before += head.active_us
                if isinstance(head, TurnCompleted):
                    message = bodies.decode_turn(item.body).message
                    content = (message.text, [(call.name, call.args) for call in message.calls])
                    turns.append(bodies.encode(content))
            case CallClosed():
                calls += 1
                if head.turn < upto:
                    calls_before += 1
                    active_before += head.active_us
            case RunEnded():
                ended = head
                body = bodies.decode_ended(item.body)
                text = body.text or body.error
            case _:
                pass
    assert ended is not None  # the log is complete
    usd = None if ended.cost_nusd is None else ended.cost_nusd / 1e9
    whole = Outcome(
        run_id,
        ended.status,
        ended.code,
        text,
        ended.turns,
        calls,
        ended.usage.input,
        ended.usage.output,
        usd,
        ended.active_us / 1e6,
        origin,
    )
    early = Outcome(
        run_id,
        "",
        "",
        "",
        min(upto, ended.turns),
        calls_before,
        before.input,
        before.output,
        None if ended.cost_nusd is None else cost_before / 1e9,
        active_before / 1e6,
    )
    return _Read(whole, turns, early)
