"""The event stream: frames, cursors, joining at any moment, and its end."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.kernel.notes import TEXT_DELTA
from weftline.runtime.engine import QUIET_BEATS, EntryBatch
from weftline.runtime.hub import Hub
from weftline.server.sse import BEAT_S, KEEP_ALIVE
from weftline.store.memory import MemoryStore
from weftline.store.rows import Item

from .kit import TERMINAL, Api, Frame, check_error, local_tool, types
from .scripts import DELTAS

SERVER_TOOLS = [{"kind": "mantyx_plugin", "name": "echo"}, local_tool()]


async def rich_run(api: Api) -> tuple[str, list[Frame]]:
    """A run with deltas, thinking, a server call and a client call, followed live from its first event."""
    run = await api.start("mixed", tools=SERVER_TOOLS, reasoningLevel="low")
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        await api.answer(run, call["toolUseId"], result="found")
        return run, await stream.rest()


@pytest.mark.requirement("wire.sse.frame", "wire.sse.hybrid", "wire.sse.seq")
async def test_events_are_strict_frames_with_flat_and_nested_fields(api: Api) -> None:
    scripts = ("hello", "cut", "fails_auth", "flaky", "echo_loop", "greedy")
    logs = await asyncio.gather(
        *(api.play(script, tools=SERVER_TOOLS, toolBudgets={"echo": {"maxCalls": 2}}) for script in scripts)
    )
    logs.append((await rich_run(api))[1])
    for frames in logs:
        assert frames[0].seq == 1 and frames[0].type == "started"
        seqs = [frame.seq for frame in frames]
        assert seqs == sorted(set(seqs))
        for frame in frames:
            assert frame.body["data"] == frame.payload
            assert not {"seq", "type", "data"} & frame.body["data"].keys()


@pytest.mark.requirement("wire.sse.terminal_closes")
async def test_one_terminal_event_ends_a_stream_and_nothing_follows_it(api: Api) -> None:
    stuck = await api.start("stuck")
    runs = [await api.start(script) for script in ("hello", "cut", "fails_server")] + [stuck]
    streams = asyncio.gather(*(api.events(run) for run in runs))
    await api.cancel(stuck)
    for frames in await streams:
        assert [frame.type in TERMINAL for frame in frames].index(True) == len(frames) - 1


@pytest.mark.requirement("wire.sse.replay_finished", "wire.sse.seq")
async def test_finished_run_replays_byte_for_byte(api: Api) -> None:
    run, live = await rich_run(api)
    replay = await api.events(run)
    assert [frame.raw for frame in replay] == [frame.raw for frame in live]


@pytest.mark.requirement("wire.sse.resume")
async def test_a_stream_can_be_resumed_between_any_two_events(api: Api) -> None:
    run = await api.start("hello")
    whole = await api.events(run)
    last = whole[-1].seq
    for cursor in range(last + 3):
        expected = [frame.raw for frame in whole if frame.seq > cursor]
        for options in ({"last_seq": cursor}, {"last_event_id": cursor}):
            assert [frame.raw for frame in await api.events(run, **options)] == expected, (cursor, options)


@pytest.mark.requirement("wire.sse.resume")
async def test_event_source_that_saw_the_end_stays_away(api: Api) -> None:
    """A browser opens its stream again for as long as it is answered with 200."""
    run = await api.start("hello")
    last = (await api.events(run))[-1].seq

    async def status(header: int | None, query: int | None = None) -> int:
        headers = {} if header is None else {"Last-Event-ID": str(header)}
        return (
            await api.get(f"agent-runs/{run}/stream{'' if query is None else f'?lastSeq={query}'}", headers=headers)
        ).status

    assert [await status(last), await status(last, 0), await status(last, last - 1)] == [204] * 3
    # Its address may begin there, and then it never gets an event whose id it could repeat.
    assert [await status(None, last), await status(None, last + 9), await status(None, 10**30)] == [204] * 3
    # The SDKs send both alike, and know when to stop.
    assert [await status(last, last), await status(last - 1), await status(None)] == [200] * 3
    going_on = await api.start("stuck")
    async with api.stream(going_on, last_event_id=10**6) as stream:
        assert stream.response.status == 200
    await api.cancel(going_on)


@pytest.mark.requirement("wire.sse.resume")
@pytest.mark.parametrize(
    ("last_seq", "last_event_id", "after"),
    [
        (2, 4, 4),
        (4, 2, 4),
        ("junk", 3, 3),
        (3, "junk", 3),
        ("", "", 0),
        ("-1", None, 0),
        ("1.5", None, 0),
        ("3 ", None, 3),
        ("٣", None, 0),
        ("9" * 30, None, 10**18),
        ("0" * 30 + "3", None, 3),
        (None, "0x3", 0),
        (10**17, None, 10**17),
    ],
)
async def test_larger_cursor_wins_and_what_is_no_number_is_ignored(
    api: Api, last_seq: object, last_event_id: object, after: int
) -> None:
    run = await api.start("hello")
    whole = await api.events(run)
    got = await api.events(run, last_seq=last_seq, last_event_id=last_event_id)
    assert [frame.seq for frame in got] == [frame.seq for frame in whole if frame.seq > after]


@pytest.mark.requirement("wire.sse.live_join", "wire.sse.resume", "wire.event.deltas")
@pytest.mark.parametrize("seed", range(3))
async def test_joining_readers_miss_nothing_and_see_nothing_twice(api: Api, seed: int) -> None:
    dice = random.Random(seed)
    run = await api.start("drip")
    joins = [dice.randint(0, len(DELTAS)) for _ in range(30)]

    async def join_when(seen: int, cursor: int) -> tuple[int, list[Frame]]:
        """Waits on a stream of its own until `seen` deltas are there, then opens another one at `cursor`."""
        async with api.stream(run) as first:
            for _ in range(seen):
                await first.next()
        return cursor, await api.events(run, last_event_id=cursor)

    joined = await asyncio.gather(*(join_when(seen, dice.randint(0, seen + 1)) for seen in joins))
    whole = await api.events(run)
    assert "".join(frame["text"] for frame in whole if frame.type == "assistant_delta") == "".join(DELTAS)
    for cursor, frames in joined:
        assert [frame.raw for frame in frames] == [frame.raw for frame in whole if frame.seq > cursor]


@pytest.mark.requirement("wire.sse.live_join")
async def test_reader_that_breaks_off_after_every_event_sees_run_once(api: Api) -> None:
    run = await api.start("drip")
    seen: list[Frame] = []
    while not seen or seen[-1].type not in TERMINAL:
        async with api.stream(run, last_seq=seen[-1].seq if seen else None) as stream:
            frame = await stream.next()
            assert frame is not None
            seen.append(frame)
    assert [frame.raw for frame in seen] == [frame.raw for frame in await api.events(run)]


async def test_cursor_at_end_of_live_run_waits_for_what_comes(api: Api) -> None:
    run = await api.start("lookup", tools=[local_tool()])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        async with api.stream(run, last_seq=call.seq) as tail:
            await api.answer(run, call["toolUseId"], result="42")
            assert types(await tail.rest()) == ["local_tool_result_in", "assistant_message", "result"]


async def test_cursor_beyond_the_end_of_a_live_run_continues_there(api: Api) -> None:
    """A client meets this after a restore: it has seen more than there is."""
    run = await api.start("lookup", tools=[local_tool()])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        async with api.stream(run, last_event_id=1000) as tail, api.stream(run, last_seq=10**20) as other:
            await api.answer(run, call["toolUseId"], result="42")
            expected = ["local_tool_result_in", "assistant_message", "result"]
            for beyond in (tail, other):
                got = types(await beyond.rest())
                assert got == expected[len(expected) - len(got) :], "what came after the stream was open"


async def test_unknown_runs_stream_is_json_error_and_no_stream(api: Api) -> None:
    check_error(await api.get("agent-runs/run_1aabbccddeeff/stream"), 404, "not_found")


async def test_a_reader_that_does_not_read_holds_nobody_up(api: Api) -> None:
    run = await api.start("big", tools=[{"kind": "mantyx_plugin", "name": "big"}])
    async with api.stream(run) as lazy:
        for _ in range(3):
            assert (await api.play("hello"))[-1].type == "result"
        assert [frame.raw for frame in await lazy.rest()] == [frame.raw for frame in await api.events(run)]


def batch(seq: int) -> EntryBatch:
    item = Item(1, TEXT_DELTA, b"", b'{"text":"x"}', seq=seq)
    return EntryBatch("run_1", [item], size=item.size, last_seq=seq, ended=False)


@pytest.mark.requirement("wire.sse.heartbeat")
async def test_silent_stream_is_woken_in_time_and_keeps_its_place() -> None:
    hub = Hub(MemoryStore().log)
    follower = hub.follow(1, "run_1", after=7)
    follower.behind = False

    def be_silent() -> None:
        for _ in range(QUIET_BEATS):
            hub.beat()

    be_silent()
    assert await follower.next() == () and follower.last_seq == 7
    follower.push(batch(8))
    be_silent()
    assert [one.last_seq for one in await follower.next() or ()] == [8]
    be_silent()
    assert await follower.next() == () and follower.last_seq == 8
    # An event that comes right after a beat is followed by a keep-alive before the time is over, not after twice that.
    assert (BEAT_S * QUIET_BEATS, KEEP_ALIVE) == (15, b": keep-alive\n\n")


@given(st.lists(st.sampled_from(["beat", "push", "next"]), max_size=30))
def test_reader_gets_every_batch_once_and_regular_keep_alives(moves: list[str]) -> None:
    async def follow() -> None:
        follower = Hub(MemoryStore().log).follow(1, "run_1", after=0)
        follower.behind = False
        pushed, beats, due = 0, 0, False
        seen: list[int] = []
        for move in moves:
            if move == "beat":
                beats += 1
                follower.beat()
                if beats == QUIET_BEATS and pushed == len(seen):
                    beats, due = 0, True
            elif move == "push":
                pushed += 1
                due = False
                follower.push(batch(pushed))
            elif pushed > len(seen) or due:
                got = await follower.next()
                assert got is not None and bool(got) != due
                seen += [one.last_seq for one in got]
                beats, due = beats if due else 0, False
        if pushed > len(seen):
            seen += [one.last_seq for one in await follower.next() or ()]
        assert seen == list(range(1, pushed + 1))

    asyncio.run(follow())
