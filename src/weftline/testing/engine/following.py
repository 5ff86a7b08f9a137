"""Followers see every entry once and in order, from any cursor, over any number of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from weftline.kernel.entries import CallOpened, RunEnded
from weftline.runtime.engine import EntryBatch, Follower
from weftline.testing.engine.bench import TIMEOUT_S, Bench, Check, facts
from weftline.testing.lines import Line, lines_of
from weftline.tools.base import ToolOutput


async def a_run_can_be_followed_from_any_cursor(bench: Bench) -> None:
    run = await bench.run("hello")
    whole = await bench.lines(run)
    assert [line.seq for line in whole] == list(range(1, len(whole) + 1))
    for after in range(len(whole) + 1):
        assert await bench.lines(run, after=after) == whole[after:], f"from {after}"


async def a_follower_of_a_live_run_sees_what_is_read_later(bench: Bench) -> None:
    run = await bench.run("ask")
    live = asyncio.create_task(bench.lines(run))
    (call,) = await bench.offers(run)
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    assert await live == await bench.lines(run)


async def a_stream_continues_without_a_gap_after_every_reconnect(bench: Bench) -> None:
    run = await bench.run("ask")
    seen: list[Line] = []
    async with asyncio.timeout(TIMEOUT_S):
        while not seen or not isinstance(seen[-1].fact, RunEnded):
            follower = bench.engine.follow(run.key, run.id, after=len(seen))
            batches = await follower.next()
            follower.close()
            for batch in batches or ():
                seen += lines_of(batch.items, after=batch.after)
            offered = [head.id for line in seen if isinstance(head := line.fact, CallOpened)]
            if offered and not any(line.kind == "call.closed" for line in seen):
                await bench.engine.answer(run.key, offered[0], ToolOutput.of("42"))
    assert [line.seq for line in seen] == list(range(1, len(seen) + 1))
    assert seen == await bench.lines(run)


async def a_run_has_one_terminal_entry_and_nothing_after_it(bench: Bench) -> None:
    for model in ("hello", "refused"):
        lines = await bench.lines(await bench.run(model))
        assert len(facts(lines, RunEnded)) == 1
        assert isinstance(lines[-1].fact, RunEnded)


async def an_entry_can_be_read_by_its_seq(bench: Bench) -> None:
    run = await bench.run("hello")
    for line in await bench.lines(run):
        stored = await bench.engine.stored.entry(run.key, line.seq)
        assert stored is not None
        assert line in list(lines_of([stored]))
    assert await bench.engine.stored.entry(run.key, 999) is None


async def a_follower_with_nothing_to_read_gets_a_heartbeat(bench: Bench) -> None:
    run = await bench.run("ask")
    await bench.offers(run)
    follower = bench.engine.follow(run.key, run.id, after=(await bench.row(run)).next_seq - 1)
    waiting = asyncio.create_task(_next(follower))
    while not waiting.done():
        bench.engine.beat()
        await asyncio.wait([waiting], timeout=0.01)
    assert waiting.result() == ()
    follower.close()


async def a_follower_that_leaves_is_released(bench: Bench) -> None:
    run = await bench.run("ask")
    await bench.offers(run)
    follower = bench.engine.follow(run.key, run.id, after=(await bench.row(run)).next_seq - 1)
    waiting = asyncio.create_task(_next(follower))
    await asyncio.sleep(0)
    follower.leave()
    async with asyncio.timeout(TIMEOUT_S):
        assert await waiting is None
    follower.close()


async def _next(follower: Follower) -> Sequence[EntryBatch] | None:
    return await follower.next()


CHECKS: tuple[Check, ...] = (
    a_run_can_be_followed_from_any_cursor,
    a_follower_of_a_live_run_sees_what_is_read_later,
    a_stream_continues_without_a_gap_after_every_reconnect,
    a_run_has_one_terminal_entry_and_nothing_after_it,
    an_entry_can_be_read_by_its_seq,
    a_follower_with_nothing_to_read_gets_a_heartbeat,
    a_follower_that_leaves_is_released,
)
