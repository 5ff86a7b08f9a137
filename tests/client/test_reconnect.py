from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from weftline.client import AsyncClient, Client, NetworkError, NotFound, Retry, ServerError, tool
from weftline.events import TextDelta
from weftline.testing import ServerProcess

from .conftest import SCRIPTS
from .stand_in import StandIn, drop, hybrid, reply, stream, success

STREAM = "/agent-runs/run_1/stream"


def delta(seq: int) -> bytes:
    return hybrid(seq, "assistant_delta", text=str(seq))


@pytest.mark.requirement("wire.client.reconnect")
async def test_a_broken_stream_goes_on_after_the_last_event(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    stand_in.run(
        "run_1",
        stream(hybrid(1, "started"), delta(2), delta(3)[:20], then="cut"),
        stream(delta(3)),
        drop,
        reply({"error": "unavailable"}, status=503, headers={"Retry-After": "0"}),
        stream(delta(2), delta(3), delta(5)[:30]),
        stream(b"data: {nonsense\n\n"),
        stream(delta(5), success(7)),
    )
    result = await to_stand_in.run("hi")
    assert [event.seq for event in result.events] == [1, 2, 3, 5, 7]
    opened = stand_in.to("GET", STREAM)
    assert [one.query["lastSeq"] for one in opened] == ["0", "2", "3", "3", "3", "3", "3"]
    assert all(one.headers["Last-Event-ID"] == one.query["lastSeq"] for one in opened)


@pytest.mark.requirement("wire.client.reconnect")
async def test_a_server_that_stays_away_is_given_up(stand_in: StandIn) -> None:
    stand_in.run("run_1", reply({"error": "unavailable"}, status=503))
    retry = Retry(attempts=3, first_s=0.001, most_s=0.002)
    async with AsyncClient(api_key="key", workspace="acme", base_url=stand_in.url, retry=retry) as client:
        with pytest.raises(ServerError):
            await client.run("hi")
        stand_in.run("run_1", drop)
        with pytest.raises(NetworkError) as caught:
            await client.run("hi")
    assert caught.value.run_id == "run_1"
    assert [one.path for one in stand_in.asked][1:6] == [STREAM] * 4 + ["/agent-runs"]


@pytest.mark.requirement("wire.client.reconnect")
async def test_streams_that_end_without_an_event_are_given_up_too(stand_in: StandIn) -> None:
    stand_in.run("run_1", stream())
    retry = Retry(attempts=3, first_s=0.001, most_s=0.002)
    async with AsyncClient(api_key="key", workspace="acme", base_url=stand_in.url, retry=retry) as client:
        with pytest.raises(NetworkError):
            await client.run("hi")
    assert len(stand_in.to("GET", STREAM)) == 4


async def test_a_run_that_does_not_exist_is_not_waited_for(client: AsyncClient) -> None:
    with pytest.raises(NotFound):
        await (await client.attach("run_nope")).result()


async def test_a_stream_that_falls_silent_is_opened_anew(stand_in: StandIn) -> None:
    stand_in.run("run_1", stream(delta(1), then="hang"), stream(success(2)))
    async with AsyncClient(
        api_key="key", workspace="acme", base_url=stand_in.url, idle_timeout_s=0.5, retry=Retry(first_s=0.01)
    ) as client:
        assert (await client.run("hi")).text == "done"


async def test_heartbeats_keep_a_stream_open(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    stand_in.run("run_1", stream(b": keep-alive\n\n", b"retry: 5\n\n", delta(1), b": keep-alive\n\n", success(2)))
    result = await to_stand_in.run("hi")
    assert [event.seq for event in result.events] == [1, 2]


@pytest.mark.requirement("wire.client.reconnect")
async def test_call_that_was_answered_is_not_run_again_after_break(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    call = hybrid(2, "local_tool_call", toolUseId="u1", name="lookup", args={}, kind="local")
    answered = hybrid(4, "local_tool_call", toolUseId="u2", name="lookup", args={}, kind="local")
    calls: list[int] = []

    @tool
    def lookup() -> str:
        calls.append(1)
        return "found"

    # The second call was made, and answered by somebody else, while nobody here was listening.
    stand_in.run(
        "run_1",
        stream(call),
        stream(call, hybrid(3, "local_tool_result_in", toolUseId="u1", output="found"), answered),
        stream(hybrid(5, "local_tool_result_in", toolUseId="u2", output="x"), delta(6), success(7)),
    )
    result = await to_stand_in.run("hi", tools=[lookup])
    assert [event.seq for event in result.events] == [2, 3, 4, 5, 6, 7]
    assert calls == [1]


@pytest.mark.requirement("wire.client.reconnect")
async def test_a_run_is_followed_across_a_crash_of_the_server(tmp_path: Path) -> None:
    calls: list[str] = []

    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        key = server.create_key("acme")

        @tool
        def lookup(key: str) -> str:
            calls.append(key)
            if key == "b":
                server.kill()
                server.start()
            return key * 2

        retry = Retry(attempts=50, first_s=0.05, most_s=0.1)
        async with AsyncClient(api_key=key, workspace="acme", base_url=server.url, retry=retry) as client:
            result = await client.run("hi", model_id="scripted:twice", tools=[lookup])
    assert result.text == "aa || bb"
    assert calls == ["a", "b"]
    seqs = [event.seq for event in result.events]
    assert seqs == sorted(set(seqs))


def test_the_sync_client_reconnects_too(stand_in: StandIn) -> None:
    stand_in.run("run_1", stream(delta(1), then="cut"), stream(delta(2), success(3)))
    with Client(api_key="key", workspace="acme", base_url=stand_in.url, retry=Retry(first_s=0.01)) as client:
        events = list(client.stream("hi"))
    assert [event.seq for event in events] == [1, 2, 3]
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["1", "2"]


async def test_many_readers_of_one_handle_see_the_same(client: AsyncClient) -> None:
    run = await client.start("hi", model_id="scripted:hello")

    async def read() -> list[int]:
        return [event.seq async for event in run]

    first, second = await asyncio.gather(read(), read())
    assert first == second == [event.seq for event in (await run.result()).events]
