from __future__ import annotations

import pytest
from msgspec.json import decode, encode

from weftline.client import AsyncClient, Client, tool
from weftline.events import CallOpened


@tool
def lookup(key: str) -> str:
    return key * 3


async def orphan(client: AsyncClient) -> str:
    """A run that waits for an answer, created by somebody who does not follow it."""
    body = encode({"prompt": "hi", "modelId": "scripted:lookup", "tools": [lookup.ref()]})
    return decode(await client.http.call("POST", "/agent-runs", body=body))["runId"]


@pytest.mark.requirement("wire.client.attach")
async def test_worker_takes_up_run_and_answers_its_open_call(client: AsyncClient) -> None:
    handled: list[str] = []

    @tool(name="lookup")
    def other(key: str) -> str:
        handled.append(key)
        return key

    run_id = await orphan(client)
    async with await client.attach(run_id, tools=[other]) as run:
        result = await run.result()
    assert result.text == "It is a."
    assert handled == ["a"]


@pytest.mark.requirement("wire.client.attach")
async def test_worker_does_not_repeat_calls_of_run_that_has_ended(client: AsyncClient) -> None:
    run_id = (await client.run("hi", model_id="scripted:lookup", tools=[lookup])).run_id

    @tool(name="lookup")
    def again(key: str) -> str:
        raise AssertionError("was answered before")

    async with await client.attach(run_id, tools=[again]) as run:
        assert (await run.result()).text == "It is aaa."


@pytest.mark.requirement("wire.client.attach")
async def test_an_observer_runs_nothing_and_cancels_nothing(client: AsyncClient) -> None:
    run_id = await orphan(client)
    called: list[str] = []

    @tool(name="lookup")
    def counted(key: str) -> str:
        called.append(key)
        return key

    async with await client.attach(run_id, tools=[counted], dispatch=False) as watched:
        async for event in watched:
            if isinstance(event, CallOpened):
                break
    assert (await client.get_run(run_id)).status == "running"
    assert called == []
    async with await client.attach(run_id, tools=[counted], last_seq=0) as worker:
        await worker.result()
    assert called == ["a"]


@pytest.mark.requirement("wire.client.attach")
async def test_following_may_begin_at_any_event(client: AsyncClient) -> None:
    whole = await client.run("hi", model_id="scripted:hello")
    for event in whole.events[:-1]:
        async with await client.attach(whole.run_id, last_seq=event.seq) as run:
            rest = await run.result()
        assert rest.events == tuple(later for later in whole.events if later.seq > event.seq)
        assert run.last_seq == whole.events[-1].seq


@pytest.mark.requirement("wire.client.attach")
async def test_an_open_call_from_before_the_cursor_is_answered(client: AsyncClient) -> None:
    run_id = await orphan(client)
    async with await client.attach(run_id, dispatch=False) as watched:
        async for event in watched:
            if isinstance(event, CallOpened):
                break
    async with await client.attach(run_id, tools=[lookup], last_seq=watched.last_seq) as run:
        result = await run.result()
    assert result.text == "It is aaa."
    assert min(event.seq for event in result.events) > watched.last_seq


@pytest.mark.requirement("wire.client.attach")
@pytest.mark.parametrize("dispatch", [True, False])
async def test_a_cursor_at_the_end_still_gives_the_result(client: AsyncClient, dispatch: bool) -> None:
    whole = await client.run("hi", model_id="scripted:hello")
    async with await client.attach(whole.run_id, last_seq=whole.events[-1].seq, dispatch=dispatch) as run:
        result = await run.result()
    assert (result.text, result.events) == ("hello", ())


@pytest.mark.requirement("wire.client.attach")
def test_the_sync_client_attaches_too(sync_client: Client) -> None:
    run_id = sync_client.run("hi", model_id="scripted:hello").run_id
    with sync_client.attach(run_id, dispatch=False) as run:
        assert run.result().text == "hello"
    assert sync_client.wait_run(run_id).final_text == "hello"


async def test_waiting_for_a_run_tells_how_it_ended_without_raising(client: AsyncClient) -> None:
    run = await client.start("hi", model_id="scripted:refused")
    snapshot = await client.wait_run(run.id)
    assert (snapshot.status, snapshot.ended) == ("failed", True)
    assert snapshot.failure_reason is not None
    assert snapshot.failure_reason.error_class == "auth"
