"""Followers see every entry once and in order, from any cursor, over any number of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from weftline.errors import RateLimited
from weftline.kernel.entries import AwaitOpened, CallOpened, CallStarted, RunEnded
from weftline.runtime.engine import EntryBatch, Follower
from weftline.testing.engine.bench import TIMEOUT_S, Bench, Check, facts, refusal
from weftline.testing.lines import Line, lines_of
from weftline.tools.base import ToolOutput

_MANY_STREAMS = 20_000
"""More than any engine lets a workspace open."""


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
    assert not follower.left
    follower.leave()
    assert follower.left
    async with asyncio.timeout(TIMEOUT_S):
        assert await waiting is None
    follower.close()


async def a_follower_can_be_rewound(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    follower = bench.engine.follow(run.key, run.id)
    first = await _read(follower)
    assert follower.taken == first[-1].seq
    follower.rewind(2)
    assert follower.taken == 2
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    again: list[Line] = []
    while not again or not isinstance(again[-1].fact, RunEnded):
        again += await _read(follower)
    follower.close()
    assert again == (await bench.lines(run))[2:]


async def a_workspace_has_so_many_streams_and_no_more(bench: Bench) -> None:
    run, other = await bench.run("ask"), await bench.workspace("others")
    engine = bench.engine
    places = [engine.reserve_stream(run.workspace)]
    for _ in range(_MANY_STREAMS):
        try:
            places.append(engine.reserve_stream(run.workspace))
        except RateLimited:
            break
    assert len(places) <= _MANY_STREAMS, "a workspace may open any number of streams"

    async def follow() -> None:
        engine.follow(run.key, run.id, workspace=run.workspace)

    assert await refusal(follow()) == "too_many_streams"
    engine.reserve_stream(other).release()
    assert await bench.offers(run), "a follower that acts for no workspace counts for none"
    places.pop().release()
    follower = engine.follow(run.key, run.id, workspace=run.workspace)
    assert await refusal(follow()) == "too_many_streams"
    assert await _read(follower)
    follower.close()
    place = engine.reserve_stream(run.workspace)
    follower = place.follow(run.key, run.id, after=1)
    assert (await _read(follower))[0].seq == 2
    assert await refusal(follow()) == "too_many_streams"
    follower.close()
    engine.reserve_stream(run.workspace)


async def an_observer_sees_every_entry_of_every_run(bench: Bench) -> None:
    seen: dict[str, list[Line]] = {}

    def fail(batch: EntryBatch) -> None:
        raise RuntimeError("an observer that fails, on purpose")

    def look(batch: EntryBatch) -> None:
        seen.setdefault(batch.run_id, []).extend(lines_of(batch.items, after=batch.after))

    stop_failing, stop = bench.engine.observe(fail), bench.engine.observe(look)
    runs = [await bench.run(model) for model in ("hello", "note", "hold")]
    for run in runs[:2]:
        await bench.ended(run)
    await bench.until(runs[2], CallStarted)
    assert [seen.get(run.id) for run in runs[:2]] == [await bench.lines(run) for run in runs[:2]]
    stop_failing()
    stop()
    bench.world.released.set()
    assert (await bench.ended(runs[2])).status == "succeeded"
    assert not facts(seen[runs[2].id], RunEnded), "it was called after it had unsubscribed"


async def ends_and_awaits_are_reported(bench: Bench) -> None:
    """To whoever delivers webhooks: after the commit, without saying which."""
    calls = list[int]()
    bench.engine.watch_ends(lambda: calls.append(1))
    asks = await bench.run("ask")
    await bench.offers(asks)
    assert not calls
    await bench.until(await bench.run("refund"), AwaitOpened)
    assert len(calls) == 1
    await bench.engine.cancel(asks.key)
    assert len(calls) == 2
    bench.engine.watch_ends(None)
    await bench.ended(await bench.run("hello"))
    assert len(calls) == 2


async def _read(follower: Follower) -> list[Line]:
    async with asyncio.timeout(TIMEOUT_S):
        batches = await follower.next()
    return [line for batch in batches or () for line in lines_of(batch.items, after=batch.after)]


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
    a_follower_can_be_rewound,
    a_workspace_has_so_many_streams_and_no_more,
    an_observer_sees_every_entry_of_every_run,
    ends_and_awaits_are_reported,
)
