"""Stopping although something hangs: a tool, the loop, the store, a reader, a log that nobody reads."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from weftline.runtime.driver import CUT_S
from weftline.server import process
from weftline.server.process import Phase, Stopping
from weftline.testing import ServerProcess

from .conftest import new_key
from .kit import TIMEOUT_S, Api, until_not_ready
from .scripts import SCRIPTS

TOOLS = '''
import asyncio
import os
import threading
import time

import weftline
from weftline.runtime.fleet import fleet
from weftline.server import process
from weftline.store.sqlite.writer import Writer

fleet.CUT_S = fleet.LAST_TRY_S = float(os.environ["CUT_S"])
process.HURRY_S = float(os.environ["HURRY_S"])


def begun():
    """Lets whoever waits at the other end of the pipe go on."""
    with open(os.environ["BEGUN"], "w") as pipe:
        pipe.write("x")


@weftline.tool(effect="read")
def thread() -> str:
    """Never returns from its thread."""
    begun()
    threading.Event().wait()


@weftline.tool(effect="read")
async def stubborn() -> str:
    """Does not let itself be cancelled."""
    begun()
    while True:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            pass


@weftline.tool(effect="read", blocking=False)
def loop() -> str:
    """Stops the event loop."""
    begun()
    threading.Event().wait()


@weftline.tool(effect="read")
def store() -> str:
    """Has the next write wait for ever, as on a disk that does not answer."""
    def hang(self, body):
        begun()
        threading.Event().wait()
    Writer._transact = hang
    return "done"


@weftline.tool(effect="read")
def executor() -> str:
    """Leaves a thread behind that Python would wait for."""
    threading.Thread(target=threading.Event().wait, daemon=False).start()
    begun()
    return "done"
'''
NAMES = ("thread", "stubborn", "loop", "store", "executor")


def test_second_signal_leaves_time_for_work_that_ignores_its_cancellation() -> None:
    assert process.HURRY_S > CUT_S + 2


HANG: dict[str, Any] = {
    name: {"turns": [{"tool_calls": [{"name": name, "args": {}}]}, {"text": "done"}]} for name in NAMES
}


@asynccontextmanager
async def hanging(folder: Path, name: str, *, late: bool = False) -> AsyncGenerator[tuple[ServerProcess, Api]]:
    """A server in which the tool of that name hangs by now.

    `late` makes the server wait longer for the tool than a second signal allows; without it, there is time for
    everything, however busy the machine is.
    """
    pipe = folder / "begun"
    os.mkfifo(pipe)
    env = {"BEGUN": str(pipe), "CUT_S": "3600" if late else "0.5", "HURRY_S": "0.5" if late else "3600"}
    server = ServerProcess(folder, scripts={**SCRIPTS, **HANG}, tools=TOOLS, env=env, arguments=("--drain", "0.1"))
    with server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http, asyncio.timeout(TIMEOUT_S):
            api = Api(http, server.url, "acme", key)
            async with something_written(pipe):
                # Not awaited: a loop that hangs answers nobody.
                starting = asyncio.create_task(api.start(name, tools=[{"kind": "mantyx_plugin", "name": name}]))
            yield server, api
            starting.cancel()


@asynccontextmanager
async def something_written(pipe: Path) -> AsyncGenerator[None]:
    """Does not let go before something was written to the pipe."""
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    fd = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    loop.add_reader(fd, there.set)
    try:
        yield
        await there.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


@pytest.mark.requirement("run.crash.graceful")
@pytest.mark.parametrize("name", NAMES)
async def test_a_second_signal_ends_a_server_whatever_hangs(tmp_path: Path, name: str) -> None:
    late = name in ("stubborn", "loop", "store")
    async with hanging(tmp_path, name, late=late) as (server, _):
        os.kill(server.pid, signal.SIGTERM)
        os.kill(server.pid, signal.SIGINT)
        code = await asyncio.to_thread(server.wait, TIMEOUT_S)
    assert code == (1 if late else 0)


@pytest.mark.requirement("run.crash.graceful")
@pytest.mark.parametrize("name", ["thread", "stubborn", "executor"])
async def test_tool_that_hangs_does_not_keep_server_from_stopping_cleanly(tmp_path: Path, name: str) -> None:
    async with hanging(tmp_path, name) as (server, _):
        assert await asyncio.to_thread(server.terminate) == 0


async def test_reader_that_takes_nothing_does_not_keep_server_from_stopping(tmp_path: Path) -> None:
    endless = {"turns": [{"deltas": ["word " * 2000] * 4000, "delay_ms": 1}]}
    server = ServerProcess(tmp_path, scripts={**SCRIPTS, "endless": endless}, arguments=("--drain", "0.1"))
    with server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            run = await api.start("endless")
            with socket.create_connection(("127.0.0.1", server.port)) as stuck:
                stuck.sendall(
                    f"GET {api.base}/agent-runs/{run}/stream HTTP/1.1\r\nHost: x\r\n"
                    f"Authorization: Bearer {key}\r\n\r\n".encode()
                )
                async with api.stream(run) as other:
                    for _ in range(1000):
                        await other.next()
                assert await asyncio.to_thread(server.terminate) == 0
        assert not [line for line in server.log if "ERROR" in line or "Traceback" in line]


@pytest.mark.requirement("run.crash.graceful")
async def test_signals_during_a_drain_count_without_a_log_reader(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            async with api.stream(await api.start("stuck")) as stream:
                await stream.until("assistant_delta")
                os.kill(server.pid, signal.SIGINT)
                await until_not_ready(api)
                os.kill(server.pid, signal.SIGINT)
                assert await asyncio.to_thread(server.wait, TIMEOUT_S) == 0


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, *, drain_s: float = 3600) -> Generator[tuple[Stopping, list[int]]]:
    """Stopping without the signals themselves; the codes with which it would leave the process."""
    monkeypatch.setattr(process, "SIGNALS", ())
    left: list[int] = []
    with Stopping(drain_s=drain_s, leave=left.append) as it:
        yield it, left


async def test_each_signal_is_more_urgent_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch) as (it, left):
        assert it.phase is Phase.SERVING
        it.received()
        await asyncio.wait_for(it.asked.wait(), TIMEOUT_S)
        assert it.phase is Phase.DRAINING and not it.hurry.is_set()
        it.received()
        await asyncio.wait_for(it.hurry.wait(), TIMEOUT_S)
        assert it.phase is Phase.HURRYING and left == []
        it.received()
        assert left == [1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_after_everything_is_closed_does_not_change_exit_code(number: signal.Signals) -> None:
    left: list[int] = []
    killed: list[int] = []
    before = {one: signal.signal(one, lambda got, _: killed.append(got)) for one in process.SIGNALS}
    try:
        with Stopping(drain_s=3600, leave=left.append) as it:
            signal.raise_signal(number)
            await asyncio.wait_for(it.asked.wait(), TIMEOUT_S)
        signal.raise_signal(number)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert (left, killed) == ([0], [])


LATE_SIGNAL = """
import asyncio, atexit, os, signal
from weftline.server.process import Stopping

atexit.register(os.kill, os.getpid(), signal.SIGTERM)  # runs after what is registered later

async def serve():
    with Stopping(drain_s=3600) as stopping:
        signal.raise_signal(signal.SIGTERM)
        await stopping.asked.wait()

asyncio.run(serve())
"""


async def test_signal_while_interpreter_shuts_down_does_not_change_exit_code() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LATE_SIGNAL)
    assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 0
