from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from forked import python
from weftline.client import AsyncClient, Client, ClientEvent, DeadlineExceeded, RunCancelled
from weftline.testing import ServerProcess

from .stand_in import StandIn, hybrid, reply, stream, success, when

ENDLESS = "scripted:endless"


async def status(client: AsyncClient, run_id: str) -> str:
    return (await client.get_run(run_id)).status


@pytest.mark.requirement("wire.client.cancel")
async def test_a_handle_has_its_id_before_the_run_has_ended(client: AsyncClient) -> None:
    run = await client.start("hi", model_id=ENDLESS)
    assert run.id.startswith("run_")
    assert await status(client, run.id) in ("queued", "running")
    assert (await run.cancel()).status == "cancelled"
    with pytest.raises(RunCancelled):
        await run.result()


@pytest.mark.requirement("wire.client.cancel")
async def test_cancelling_the_task_that_waits_cancels_the_run(client: AsyncClient) -> None:
    run = await client.start("hi", model_id=ENDLESS)
    waiting = asyncio.create_task(run.result())
    await anext(aiter(run))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await status(client, run.id) == "cancelled"


@pytest.mark.requirement("wire.client.cancel")
async def test_a_timeout_around_a_run_cancels_it(client: AsyncClient) -> None:
    begun: list[str] = []
    limit = asyncio.timeout(None)

    def time_is_over(event: ClientEvent) -> None:
        begun.append(event.run_id)
        limit.reschedule(0)

    async def run() -> None:
        async with limit:
            await client.run("hi", model_id=ENDLESS, on_event=time_is_over)

    with pytest.raises(TimeoutError):
        await run()
    assert await status(client, begun[0]) == "cancelled"


@pytest.mark.requirement("wire.client.cancel")
async def test_leaving_the_context_cancels_the_run(client: AsyncClient) -> None:
    run = await client.start("hi", model_id=ENDLESS)

    async def fail_half_way() -> None:
        async with run:
            async for _ in run:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_half_way()
    assert await status(client, run.id) == "cancelled"


@pytest.mark.requirement("wire.client.cancel")
async def test_passing_the_deadline_cancels_the_run(client: AsyncClient) -> None:
    run = await client.start("hi", model_id=ENDLESS, deadline_s=0.2)
    with pytest.raises(DeadlineExceeded) as caught:
        await run.result()
    assert caught.value.run_id == run.id
    assert await status(client, run.id) == "cancelled"


@pytest.mark.requirement("wire.client.cancel")
def test_sync_client_cancels_at_deadline_and_on_leaving(sync_client: Client) -> None:
    with pytest.raises(DeadlineExceeded):
        sync_client.run("hi", model_id=ENDLESS, deadline_s=0.2)
    with sync_client.start("hi", model_id=ENDLESS) as run:
        next(iter(run))
    assert run.snapshot().status == "cancelled"


@pytest.mark.requirement("wire.client.cancel")
def test_a_reader_who_stops_early_cancels_the_run(sync_client: Client) -> None:
    events = sync_client.stream("hi", model_id=ENDLESS)
    run_id = next(events).run_id
    events.close()
    assert sync_client.get_run(run_id).status == "cancelled"


@pytest.mark.requirement("wire.client.cancel")
async def test_an_async_reader_who_stops_early_cancels_the_run(client: AsyncClient) -> None:
    events = client.stream("hi", model_id=ENDLESS)
    run_id = (await anext(events)).run_id
    await events.aclose()
    assert await status(client, run_id) == "cancelled"


@pytest.mark.requirement("wire.client.cancel")
async def test_a_run_whose_caller_left_during_create_is_cancelled(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    release = threading.Event()
    stand_in.run("run_1", stream(hybrid(1, "cancelled")))
    stand_in.on("POST", "/agent-runs", when(release, reply({"runId": "run_1"}, status=202)))
    starting = asyncio.create_task(to_stand_in.start("hi"))
    await asyncio.to_thread(stand_in.wait_for, "POST", "/agent-runs")
    starting.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert len(stand_in.to("POST", "/agent-runs/run_1/cancel")) == 1


async def test_a_run_that_has_ended_is_not_cancelled(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    stand_in.run("run_1", stream(success(1)))
    async with await to_stand_in.start("hi") as run:
        await run.result()
    assert stand_in.to("POST", "/agent-runs/run_1/cancel") == []


async def test_closing_the_client_leaves_runs_running(server: ServerProcess, key: str, client: AsyncClient) -> None:
    async with AsyncClient(api_key=key, workspace="acme", base_url=server.url) as other:
        run = await other.start("hi", model_id=ENDLESS)
    assert await status(client, run.id) in ("queued", "running")
    await client.cancel_run(run.id)


@pytest.mark.requirement("wire.client.cancel")
def test_ctrl_c_cancels_the_run(server: ServerProcess, key: str, sync_client: Client) -> None:
    program = (
        "import sys\n"
        "from weftline.client import Client\n"
        f"with Client(api_key={key!r}, workspace='acme', base_url={server.url!r}) as client:\n"
        "    client.run('hi', model_id='scripted:endless', on_event=lambda e: print(e.run_id, flush=True))\n"
    )
    with python("-c", program) as process:
        run_id = process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert sync_client.get_run(run_id).status == "cancelled"
