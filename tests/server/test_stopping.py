"""Stopping and starting again: streams end between frames, keys are nowhere, and clients go on where they were."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from commands import weftline_beside
from weftline.testing import ServerProcess

from .conftest import new_key
from .kit import TERMINAL, Api, local_tool, types, until_not_ready
from .scripts import SCRIPTS, TOOLS

ENDLESS = {"turns": [{"deltas": [f"part {number} " for number in range(5000)], "delay_ms": 20}]}
"""Not over, however late the test is, when the server is stopped or killed."""
SLOW = {"turns": [{"deltas": [f"part {number} " for number in range(60)], "delay_ms": 100}]}
"""Not over before a test has looked at the server that waits for it."""


@pytest.mark.requirement("wire.sse.shutdown", "run.crash.graceful")
async def test_stopped_server_ends_streams_and_its_successor_continues(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, scripts={**SCRIPTS, "endless": ENDLESS}, arguments=("--drain", "0.2")) as server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            waiting = await api.start("lookup", tools=[local_tool()])
            cut = await api.start("endless")
            async with api.stream(waiting) as first, api.stream(cut) as second:
                call = await first.until("local_tool_call")
                for _ in range(5):
                    await second.until("assistant_delta")
                stopped = asyncio.create_task(asyncio.to_thread(server.terminate))
                seen = [await stream.rest() for stream in (first, second)]
                assert await stopped == 0
            assert all(frames[-1].type not in TERMINAL for frames in seen)
            assert not [line for line in server.log if "Traceback" in line]
            await asyncio.to_thread(server.start)
            api.url = server.url
            rest = asyncio.create_task(api.events(waiting, last_seq=call.seq))
            assert (await api.answer(waiting, call["toolUseId"], result="still here")).status == 200
            assert types(await rest) == ["local_tool_result_in", "assistant_message", "result"]
            last = seen[1][-1].seq
            await api.cancel(cut)
            tail = await api.events(cut, last_event_id=last)
            assert tail[0].seq > last and tail[-1].type == "cancelled"
            whole = await api.events(cut)
            assert [frame.raw for frame in whole][: len(seen[1])] == [frame.raw for frame in seen[1]]


@pytest.mark.requirement("run.crash.graceful")
async def test_draining_server_refuses_new_work_and_finishes_the_rest(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, scripts={**SCRIPTS, "slow": SLOW}) as server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            run = await api.start("slow")
            async with api.stream(run) as stream:
                await stream.until("assistant_delta")
                server_stopped = asyncio.create_task(asyncio.to_thread(server.terminate))
                await until_not_ready(api)
                assert (await api.get("/healthz")).status == 200
                reply = await api.post("agent-runs", {"modelId": "scripted:hello", "prompt": "x"})
                assert reply.status == 503 and reply.json["code"] == "unavailable" and "Retry-After" in reply.headers
                frames = types(await stream.rest())
            assert frames[-1] in ("assistant_message", "result")
            assert await server_stopped == 0


async def test_command_cancels_the_run_that_a_stop_waits_for(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, scripts={"endless": ENDLESS}, arguments=("--drain", "600")) as server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            run = await api.start("endless")
            async with api.stream(run) as stream:
                await stream.until("assistant_delta")
                stopped = asyncio.create_task(asyncio.to_thread(server.terminate))
                await until_not_ready(api)
                done = await weftline_beside("runs", "cancel", run, "--db", str(server.db))
                assert done.code == 0, done.err
                assert types(await stream.rest())[-1] == "cancelled"
            assert await stopped == 0


@pytest.mark.requirement("run.crash.graceful")
async def test_a_second_signal_cuts_the_drain_short(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            async with api.stream(await api.start("stuck")) as stream:
                await stream.until("assistant_delta")
                stopped = asyncio.create_task(asyncio.to_thread(server.terminate))
                await until_not_ready(api)
                os.kill(server.pid, signal.SIGINT)
                assert (await stream.rest())[-1].type == "assistant_delta"
                assert await stopped == 0


@pytest.mark.requirement("wire.sse.durable_first")
async def test_events_seen_by_a_client_survive_a_kill(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, scripts={**SCRIPTS, "endless": ENDLESS}) as server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            run = await api.start("endless")
            seen: dict[int, bytes] = {}
            for _ in range(3):
                async with api.stream(run, last_seq=max(seen, default=0)) as stream:
                    for _ in range(4):
                        frame = await stream.next()
                        assert frame is not None and frame.seq not in seen
                        seen[frame.seq] = frame.raw
                    await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                api.url = server.url
            await api.cancel(run)
            whole = {frame.seq: frame.raw for frame in await api.events(run)}
            assert seen.items() <= whole.items()


@pytest.mark.requirement("wire.auth.secrets_at_rest")
async def test_api_key_appears_in_no_store_log_or_answer(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS, tools=TOOLS, arguments=("--log-level", "debug")) as server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            run = await api.start("hello")
            await api.events(run)
            replies = [
                await api.get(f"agent-runs/{run}"),
                await api.get("agent-runs/nobody"),
                await api.get("models", key=key + "x"),
                await api.post("agent-runs", data=b"{"),
                await api.get("/api/v1/workspaces/other/models"),
            ]
        files = [path.read_bytes() for path in server.db.rglob("*") if path.is_file()]
        server.terminate()
        files += [path.read_bytes() for path in server.db.rglob("*") if path.is_file()]
        assert any(b"acme" in data for data in files)
        assert not any(key.encode() in data for data in files)
        assert not any(key.encode() in reply.body for reply in replies)
        assert not any(key in line for line in server.log)
