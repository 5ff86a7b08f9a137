"""A run is created and followed by one request where the server can do that, and by two where it cannot."""

from __future__ import annotations

import asyncio

import pytest

from weftline.client import AsyncClient, AuthError, NetworkError, RunCancelled
from weftline.testing import ServerProcess

from .conftest import QUICK
from .stand_in import StandIn, hybrid, reply, stream, success

RUNS = "/agent-runs"
MINE = {"X-Run-Id": "run_1"}
ACCEPTED = {"runId": "run_1", "streamUrl": "/"}


def asked(stand_in: StandIn) -> list[tuple[str, str]]:
    return [(one.method, one.path) for one in stand_in.asked]


async def test_one_request_creates_and_follows_a_run(stand_in: StandIn, to_stand_in: AsyncClient) -> None:
    stand_in.on("POST", RUNS, stream(hybrid(1, "started"), success(2), headers=MINE))
    result = await to_stand_in.run("hi")
    assert (result.run_id, result.text) == ("run_1", "done")
    assert asked(stand_in) == [("POST", RUNS)]
    headers = stand_in.asked[0].headers
    assert headers["Accept"] == "text/event-stream, application/json;q=0.9" and headers["Idempotency-Key"]


async def test_the_real_server_needs_no_second_request(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object, **__: object) -> None:
        raise AssertionError("a second request was made")

    monkeypatch.setattr(client.http, "stream", nothing)
    assert (await client.run("hi", model_id="scripted:hello")).text == "hello"
    async with await client.create_session(model_id="scripted:echo") as session:
        assert "hi" in (await session.send("hi")).text


async def test_stream_that_ends_early_is_resumed_there(stand_in: StandIn, to_stand_in: AsyncClient) -> None:
    stand_in.run("run_1", stream(success(2)))
    stand_in.on("POST", RUNS, stream(hybrid(1, "started"), headers=MINE))
    result = await to_stand_in.run("hi")
    assert [event.seq for event in result.events] == [1, 2]
    assert asked(stand_in) == [("POST", RUNS), ("GET", f"{RUNS}/run_1/stream")]
    assert stand_in.asked[1].query == {"lastSeq": "1"}


@pytest.mark.parametrize(
    "first",
    [
        reply(ACCEPTED, status=202),
        reply(b'{"runId":"run_1"}', status=201, headers={"Content-Type": "text/plain"}),
        reply({"error": "not_acceptable"}, status=406),
        stream(success(2)),
    ],
    ids=["json", "odd type", "not acceptable", "a stream of nobody"],
)
async def test_server_that_cannot_do_it_is_asked_in_two_steps(
    stand_in: StandIn, to_stand_in: AsyncClient, first: object
) -> None:
    stand_in.run("run_1", stream(success(1)))
    stand_in.on("POST", RUNS, first, reply(ACCEPTED, status=202))  # pyright: ignore[reportArgumentType]
    assert (await to_stand_in.run("hi")).text == "done"
    creates = stand_in.to("POST", RUNS)
    assert len({one.headers["Idempotency-Key"] for one in creates}) == 1
    assert stand_in.asked[-1].path == f"{RUNS}/run_1/stream"


async def test_create_that_got_no_answer_is_repeated_with_its_key(stand_in: StandIn, to_stand_in: AsyncClient) -> None:
    busy = reply({"error": "too_many_streams"}, status=429, headers={"Retry-After": "0"})
    stand_in.on("POST", RUNS, busy, stream(success(1), headers=MINE))
    assert (await to_stand_in.run("hi")).run_id == "run_1"
    assert len({one.headers["Idempotency-Key"] for one in stand_in.to("POST", RUNS)}) == 1


async def test_a_refusal_is_the_error_that_it_always_was(stand_in: StandIn, to_stand_in: AsyncClient) -> None:
    stand_in.on("POST", RUNS, reply({"error": "Unauthorized", "code": "unauthorized"}, status=401))
    with pytest.raises(AuthError):
        await to_stand_in.run("hi")


async def test_missing_answer_is_given_up_and_silent_one_reopened(stand_in: StandIn) -> None:
    stand_in.run("run_1", stream(success(2)))
    stand_in.on("POST", RUNS, stream(hybrid(1, "started"), then="hang", headers=MINE))
    async with AsyncClient(
        api_key="k", workspace="acme", base_url=stand_in.url, retry=QUICK, idle_timeout_s=0.5
    ) as client:
        assert (await client.run("hi")).text == "done"

    async def never(_: object) -> object:
        return await asyncio.get_running_loop().create_future()

    stand_in.on("POST", RUNS, never)  # pyright: ignore[reportArgumentType]
    impatient = QUICK.__class__(attempts=0)
    async with AsyncClient(
        api_key="k", workspace="acme", base_url=stand_in.url, retry=impatient, timeout_s=0.05
    ) as client:
        with pytest.raises(NetworkError):
            await client.run("hi")


async def test_leaving_early_cancels_run_and_closing_client_does_not(server: ServerProcess, key: str) -> None:
    async with AsyncClient(api_key=key, workspace="acme", base_url=server.url, retry=QUICK) as client:
        async with await client.start("hi", model_id="scripted:endless") as run:
            await run.take(0)
        with pytest.raises(RunCancelled):
            await run.result()
        kept = await client.start("hi", model_id="scripted:endless")
    async with AsyncClient(api_key=key, workspace="acme", base_url=server.url) as client:
        assert (await client.get_run(kept.id)).status in ("queued", "running")
        await client.cancel_run(kept.id)


async def test_warnings_of_stream_are_pythons_warnings_and_nonsense_is_none(
    stand_in: StandIn, to_stand_in: AsyncClient
) -> None:
    notice = '[{"code": "unknown_field", "path": "modelid", "message": "is not known"}]'
    noticed = stream(success(1), headers={**MINE, "X-Warnings": notice})
    stand_in.on("POST", RUNS, noticed, stream(success(1), headers={**MINE, "X-Warnings": "[{"}))
    with pytest.warns(UserWarning, match="modelid is not known"):
        await to_stand_in.run("hi")
    assert (await to_stand_in.run("hi")).text == "done"
