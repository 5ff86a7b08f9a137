"""Followers see every entry once and in order, from any cursor, over any number of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from weftline.errors import RateLimited
from weftline.kernel.entries import AwaitOpened, CallOpened, CallStarted, RunEnded
from weftline.kernel.notes import TEXT_DELTA
from weftline.runtime.engine import QUIET_BEATS, EntryBatch, Follower
from weftline.testing.engine.bench import TIMEOUT_S, Bench, Check, facts, refusal
from weftline.testing.engine.newer import newer_run
from weftline.testing.engine.world import PIECES
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


async def what_a_model_writes_reaches_followers_while_it_writes(bench: Bench) -> None:
    """Piece by piece, and none is missing."""
    run = await bench.run("stream")
    follower = bench.engine.follow(run.key, run.id)
    lines: list[Line] = []
    for written in range(1, len(PIECES)):
        while sum(line.kind == TEXT_DELTA for line in lines) < written:
            lines += _lines(await bench.received(follower))
        assert (await bench.row(run)).ended_at is None
        bench.world.write_on()
    while not isinstance(lines[-1].fact, RunEnded):
        lines += _lines(await bench.received(follower))
    follower.close()
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert lines == await bench.lines(run)
    assert sum(line.kind == TEXT_DELTA for line in lines) == len(PIECES)


async def a_batch_describes_its_entries(bench: Bench) -> None:
    run = await bench.run("ask")
    follower = bench.engine.follow(run.key, run.id)
    (call,) = await bench.offers(run)
    live = [*await bench.received(follower)]
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    while not isinstance(_lines(live)[-1].fact, RunEnded):
        live += await bench.received(follower)
    assert await bench.soon(follower.next(), "the stream of a run that has ended goes on") is None
    follower.close()
    later = bench.engine.follow(run.key, run.id, after=2)
    read = [*await bench.received(later)]
    while (more := await bench.soon(later.next(), "the stream of a run that has ended goes on")) is not None:
        read += more
    later.close()
    for batch in (*live, *read):
        lines = list(lines_of(batch.items, after=batch.after))
        known = [head for line in lines if (head := line.fact)]
        assert batch.run_id == run.id and batch.key in (0, run.key)
        assert batch.ended == any(isinstance(head, RunEnded) for head in known)
        assert batch.heads is None or list(batch.heads) == known
        assert (batch.last_seq, batch.size) == (lines[-1].seq, sum(item.size for item in batch.items))
        assert batch.missing is None and not batch.newer
    assert [batch.after for batch in read][:1] == [2]
    assert _lines(read) == _lines(live)[2:]


async def the_reader_of_a_run_is_told_that_newer_code_has_written_to_it(bench: Bench) -> None:
    newer = await newer_run(bench.subject, workspace=await bench.workspace())
    follower = bench.engine.follow(newer.key, newer.id)
    assert [batch.newer for batch in await bench.received(follower)] == [True]
    follower.close()


async def a_run_has_one_terminal_entry_and_nothing_after_it(bench: Bench) -> None:
    for model in ("hello", "refused"):
        lines = await bench.lines(await bench.run(model))
        assert len(facts(lines, RunEnded)) == 1
        assert isinstance(lines[-1].fact, RunEnded)


async def an_entry_can_be_read_by_its_seq(bench: Bench) -> None:
    run = await bench.run("hello")
    for line in await bench.lines(run):
        stored = await bench.engine.stored.logs.entry(run.key, line.seq)
        assert stored is not None
        assert line in list(lines_of([stored]))
    assert await bench.engine.stored.logs.entry(run.key, 999) is None


async def a_follower_with_nothing_to_read_is_woken_by_every_third_beat(bench: Bench) -> None:
    run = await bench.run("ask")
    await bench.offers(run)
    follower = bench.engine.follow(run.key, run.id)
    last = (await bench.row(run)).next_seq - 1
    while follower.taken < last:
        await bench.received(follower)
    waiting = await _beat(bench, follower, QUIET_BEATS - 1)
    assert not waiting.done(), "it is woken too early"
    await bench.engine.steer(run.key, "hurry")
    assert await bench.soon(waiting, "an entry does not reach it")
    for _ in range(2):
        waiting = await _beat(bench, follower, QUIET_BEATS - 1)
        assert not waiting.done(), "it is woken too early after it has received something, or has been woken"
        bench.engine.beat()
        woken = await bench.soon(waiting, "it is not woken")
        assert woken is not None and not woken
    follower.close()


async def _beat(bench: Bench, follower: Follower, beats: int) -> asyncio.Task[Sequence[EntryBatch] | None]:
    """Beats while a reader waits."""
    waiting = asyncio.create_task(_next(follower))
    for _ in range(beats):
        await _settle()
        bench.engine.beat()
    await _settle()
    return waiting


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


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
    many = bench.world.limits.max_streams_per_workspace
    for _ in range(many):
        try:
            places.append(engine.reserve_stream(run.workspace))
        except RateLimited:
            break
    assert len(places) == many

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
    failed: dict[str, list[Line]] = {}

    def fail(batch: EntryBatch) -> None:
        failed.setdefault(batch.run_id, []).extend(lines_of(batch.items, after=batch.after))
        raise RuntimeError("an observer that fails, on purpose")

    def look(batch: EntryBatch) -> None:
        seen.setdefault(batch.run_id, []).extend(lines_of(batch.items, after=batch.after))

    stop_failing, stop = bench.engine.observe(fail), bench.engine.observe(look)
    runs = [await bench.run(model) for model in ("hello", "note", "hold")]
    for run in runs[:2]:
        await bench.ended(run)
    await bench.until(runs[2], CallStarted)
    assert [seen.get(run.id) for run in runs[:2]] == [await bench.lines(run) for run in runs[:2]]
    assert failed == seen, "an observer that has failed is not called again"
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
        return _lines(await follower.next() or ())


def _lines(batches: Iterable[EntryBatch]) -> list[Line]:
    return [line for batch in batches for line in lines_of(batch.items, after=batch.after)]


async def _next(follower: Follower) -> Sequence[EntryBatch] | None:
    return await follower.next()


CHECKS: tuple[Check, ...] = (
    a_run_can_be_followed_from_any_cursor,
    a_follower_of_a_live_run_sees_what_is_read_later,
    a_stream_continues_without_a_gap_after_every_reconnect,
    what_a_model_writes_reaches_followers_while_it_writes,
    a_batch_describes_its_entries,
    the_reader_of_a_run_is_told_that_newer_code_has_written_to_it,
    a_run_has_one_terminal_entry_and_nothing_after_it,
    an_entry_can_be_read_by_its_seq,
    a_follower_with_nothing_to_read_is_woken_by_every_third_beat,
    a_follower_that_leaves_is_released,
    a_follower_can_be_rewound,
    a_workspace_has_so_many_streams_and_no_more,
    an_observer_sees_every_entry_of_every_run,
    ends_and_awaits_are_reported,
)
