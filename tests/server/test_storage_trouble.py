# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A store that refuses writes while the server runs: locked, full, failing."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from weftline.store.sqlite.connection import connect
from weftline.testing import ServerProcess

from .conftest import new_key
from .kit import TIMEOUT_S, Api, Frame, check_error, local_tool, of_type, types, until_not_ready
from .scripts import SCRIPTS, TOOLS, calls, local

PIECES = [f"piece {number} " for number in range(50)]


def scripts(path: Path) -> dict[str, object]:
    """Streams for a while, then calls a tool that leaves a trace in `path`."""
    turns = [{**calls(local("record", path=str(path))), "deltas": PIECES, "delay_ms": 5}, {"text": "recorded"}]
    return {**SCRIPTS, "working": {"turns": turns}}


async def storage_fails_and_recovers(
    server: ServerProcess, api: Api, trace: Path, *, fail: Callable[[], object], heal: Callable[[], object]
) -> None:
    """The whole contract of `run.log.storage_failure`, whatever the store's trouble is."""
    parked = await api.start("lookup", tools=[local_tool()])
    session = await api.session("hello")
    async with api.stream(parked) as stream:
        call = await stream.until("local_tool_call")
    working = await api.start("working", tools=[{"kind": "mantyx_plugin", "name": "record"}])
    async with api.stream(working) as stream:
        await stream.until("assistant_delta")
        await asyncio.to_thread(fail)
        await until_not_ready(api)  # which is found out by writing
        await refuses(api, parked, session, call)
        assert not await asyncio.to_thread(trace.exists)
        await asyncio.to_thread(heal)
        frames = await stream.rest()
    assert frames[-1]["text"] == "recorded" and await asyncio.to_thread(trace.read_text) == "ran\n"
    deltas = [frame["text"] for frame in of_type(frames, "assistant_delta")]
    assert "".join(deltas) == "".join(PIECES) + "recorded"
    assert (await api.get("/readyz")).status == 200
    assert (await api.answer(parked, call["toolUseId"], result="now")).status == 200
    end = await api.events(parked)
    assert len(of_type(end, "local_tool_result_in")) == 1 and end[-1]["text"] == "found now"
    assert types(await api.events(await api.send(session)))[-1] == "result"
    assert server.running and not [line for line in server.log if "Traceback" in line]


async def refuses(api: Api, parked: str, session: str, call: Frame) -> None:
    """Creates and answers are told to come back; reads go on."""
    create = {"modelId": "scripted:hello", "prompt": "x"}
    for reply in (
        await api.post("agent-runs", create),
        await api.post("agent-sessions", {"modelId": "scripted:hello"}),
        await api.post(f"agent-sessions/{session}/messages", {"prompt": "x"}),
        await api.answer(parked, call["toolUseId"], result="lost"),
        await api.cancel(parked),
        await api.call("DELETE", f"agent-sessions/{session}"),
        await api.get("/readyz"),
    ):
        check_error(reply, 503, "unavailable")
        assert int(reply.headers["Retry-After"]) >= 1
    assert (await api.get("/healthz")).status == 200 and (await api.get("models")).status == 200
    assert (await api.snapshot(parked))["status"] == "running"
    assert (await api.get(f"agent-sessions/{session}")).json["status"] == "active"
    async with api.stream(parked) as stream:
        assert await stream.until("local_tool_call") == call


@pytest.mark.requirement("run.log.storage_failure")
async def test_runs_continue_after_another_process_locked_the_store(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with ServerProcess(tmp_path, scripts=scripts(trace), tools=TOOLS) as server:
        key = await asyncio.to_thread(new_key, server)
        other = connect(server.db / "weftline.db")
        async with aiohttp.ClientSession() as http:
            await storage_fails_and_recovers(
                server,
                Api(http, server.url, "acme", key),
                trace,
                fail=lambda: other.execute("BEGIN EXCLUSIVE"),
                heal=lambda: other.execute("ROLLBACK"),
            )
        other.close()


HASTY = """
from weftline.runtime.fleet import fleet

fleet.LAST_TRY_S = 0.5
"""


async def test_server_stopping_on_a_refusing_store_says_so(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    trace = tmp_path / "trace"
    with ServerProcess(tmp_path, scripts=scripts(trace), tools=TOOLS + HASTY, arguments=("--drain", "0")) as server:
        api = Api(http, server.url, "acme", await asyncio.to_thread(new_key, server))
        working = await api.start("working", tools=[{"kind": "mantyx_plugin", "name": "record"}])
        other = connect(server.db / "weftline.db")
        async with api.stream(working) as stream:
            await stream.until("assistant_delta")
            other.execute("BEGIN EXCLUSIVE")
            await until_not_ready(api)
            assert await asyncio.to_thread(server.terminate) == 74
        assert [line for line in server.log if "entries lost" in line and f": 1 ({working})" in line]
        other.execute("ROLLBACK")
        other.close()
        await asyncio.to_thread(server.start)
        api.url = server.url
        assert (await api.events(working))[-1]["text"] == "recorded" and trace.read_text() == "ran\n"


IMPATIENT = """
from weftline.server import process
from weftline.runtime.fleet import fleet

fleet.LAST_TRY_S = 3600.0
process.HURRY_S = 60.0
"""


async def test_second_signal_ends_waiting_and_lists_what_is_lost(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with ServerProcess(tmp_path, scripts=scripts(tmp_path / "trace"), tools=TOOLS + IMPATIENT) as server:
        api = Api(http, server.url, "acme", await asyncio.to_thread(new_key, server))
        working = await api.start("working", tools=[{"kind": "mantyx_plugin", "name": "record"}])
        other = connect(server.db / "weftline.db")
        async with api.stream(working) as stream:
            await stream.until("assistant_delta")
            other.execute("BEGIN EXCLUSIVE")
            await until_not_ready(api)
            os.kill(server.pid, signal.SIGTERM)
            os.kill(server.pid, signal.SIGINT)
            assert await asyncio.to_thread(server.wait, TIMEOUT_S) == 74
        assert [line for line in server.log if "entries lost" in line and f": 1 ({working})" in line]
        assert [line for line in server.log if "could not be marked as cleanly closed" in line]
        assert not [line for line in server.log if "Traceback" in line]
        other.execute("ROLLBACK")
        other.close()


@contextmanager
def small_disk(path: Path, size: str) -> Generator[Path]:
    path.mkdir()
    if os.getuid() != 0:
        pytest.skip("only root can mount a disk that is small enough to be filled")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "weftline-test", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.requirement("run.log.storage_failure")
async def test_runs_go_on_by_themselves_after_the_disk_was_full(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with small_disk(tmp_path / "disk", "4m") as disk:
        ballast = disk / "ballast"
        with ServerProcess(disk, scripts=scripts(trace), tools=TOOLS) as server:
            key = await asyncio.to_thread(new_key, server)
            async with aiohttp.ClientSession() as http:
                await storage_fails_and_recovers(
                    server,
                    Api(http, server.url, "acme", key),
                    trace,
                    fail=lambda: _fill(ballast),
                    heal=ballast.unlink,
                )


def _fill(ballast: Path) -> None:
    with open(ballast, "wb", buffering=0) as file:
        for piece in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * piece)
            except OSError:
                pass


async def _write_for_ever(api: Api) -> None:
    while True:
        await api.post("agent-runs", {"modelId": "scripted:hello", "prompt": "x" * 100_000})


async def test_commit_of_unknown_outcome_stops_the_server(tmp_path: Path) -> None:
    """A write that fails other than for want of room: the operating system refuses to let the file grow."""
    with ServerProcess(tmp_path, scripts=SCRIPTS, tools=TOOLS) as server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            parked = await api.start("lookup", tools=[local_tool()])
            async with api.stream(parked) as stream:
                call = await stream.until("local_tool_call")
            size = max(path.stat().st_size for path in server.db.iterdir())
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, size))
            with pytest.raises(aiohttp.ClientError):
                await _write_for_ever(api)
            assert await asyncio.to_thread(server.wait) != 0
            assert [line for line in server.log if "outcome unknown" in line]
            await asyncio.to_thread(server.start)
            api.url = server.url
            assert (await api.answer(parked, call["toolUseId"], result="back")).status == 200
            assert (await api.events(parked))[-1]["text"] == "found back"
