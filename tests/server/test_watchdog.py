"""A loop that stands still ends the process, and the run that stops it is found out like any other killer."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import aiohttp

from weftline.testing import ServerProcess

from .conftest import new_key
from .kit import TERMINAL, Api, Frame
from .scripts import DELTAS, calls, local

SCRIPTS = {
    "freezer": {"turns": [calls(local("freeze"), deltas=["so", "then"], delay_ms=100), {"text": "never"}]},
    "drip": {"turns": [{"deltas": DELTAS, "delay_ms": 30}]},
}
TOOLS = '''
import re

import weftline


@weftline.tool(effect="read", blocking=False)
def freeze() -> str:
    """Stops the loop, and with the interpreter's lock every other thread too."""
    return str(re.fullmatch("(a+)+", "a" * 60 + "!"))
'''
MOST_DEATHS = 12


async def end_of(api: Api, run: str) -> Frame | None:
    """The terminal event of a run; None when the server dies first."""
    try:
        frames = await api.events(run)
    except (aiohttp.ClientError, ConnectionError, AssertionError):
        return None
    return frames[-1] if frames and frames[-1].type in TERMINAL else None


async def test_run_that_stops_loop_kills_process_and_others_get_through(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS, tools=TOOLS, config="[server]\nstall_s = 0.5\n") as server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            dripping = await api.start("drip")
            with suppress(aiohttp.ClientError, ConnectionError):  # the loop may stop before the answer is sent
                await api.start("freezer", tools=[{"kind": "mantyx_plugin", "name": "freeze"}])
            deaths = 0
            while (end := await end_of(api, dripping)) is None:
                # Whoever was there is on trial after the first death; the one that kills again is tried apart.
                assert await asyncio.to_thread(server.wait) == -signal.SIGPROF
                assert any("freeze" in line for line in server.log), "the log says where the loop stood still"
                deaths += 1
                assert deaths < MOST_DEATHS
                await asyncio.to_thread(server.start)
            assert end.type == "result" and deaths >= 1


async def test_frozen_process_is_not_taken_for_loop_that_stands_still(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS, config="[server]\nstall_s = 0.2\n") as server:
        key = await asyncio.to_thread(new_key, server)
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            os.kill(server.pid, signal.SIGSTOP)
            asked = asyncio.ensure_future(api.play("drip"))
            await asyncio.wait({asked}, timeout=1.0)
            os.kill(server.pid, signal.SIGCONT)
            assert (await asked)[-1].type == "result"
        assert server.running
