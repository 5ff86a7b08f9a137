"""What retention frees goes back to the disk, and upkeep leaves the store to others for at least half of the time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from commands import weftline_beside
from weftline.api import upkeep as at_work
from weftline.api.upkeep import shrink
from weftline.store.memory import MemoryStore
from weftline.store.sqlite import retention
from weftline.testing import ServerProcess

from ..kit import Api

SCRIPTS: dict[str, Any] = {"hello": {"turns": [{"text": "hi"}]}}
RUNS, BYTES = 40, 200_000


@pytest.mark.parametrize("beside", [True, False], ids=["beside a server", "without one"])
async def test_the_file_shrinks_by_what_retention_removes(
    beside: bool, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key())
        runs = [await api.start("hello", prompt="x" * BYTES) for _ in range(RUNS)]
        for run in runs:
            await api.events(run)
        database = server.db / "weftline.db"
        if not beside:
            server.terminate()
        done = await weftline_beside("retention", "run", "--older-than", "0s", "--db", str(server.db))
        assert (done.code, done.out) == (0, f"{RUNS}\n"), done.err
        done = await weftline_beside("vacuum", "--json", "--db", str(server.db))
        assert (done.code, done.out) == (0, '{"bytes": 0}\n'), done.err
        if beside:
            assert (await api.snapshot(runs[0]))["status"] == "succeeded"
            server.terminate()
        assert database.stat().st_size < RUNS * BYTES / 4


async def test_a_batch_of_retention_ends_when_its_time_is_over(
    tmp_path: Path, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key())
        for run in [await api.start("hello") for _ in range(3)]:
            await api.events(run)
        server.terminate()
        monkeypatch.setattr(retention, "BATCH_S", -1.0)
        done = await weftline_beside("retention", "run", "--older-than", "0s", "--db", str(server.db))
        assert (done.code, done.out) == (0, "3\n"), done.err


async def test_upkeep_rests_as_long_as_it_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the work took long because others were at it: it then waits all the longer."""
    now_s, worked_s, rested_s = 0.0, 0.0, 0.0

    class Busy(MemoryStore):
        async def shrink(self) -> int:
            nonlocal now_s, worked_s
            now_s += 0.3
            worked_s += 0.3
            return 4096

    async def rest(delay_s: float) -> None:
        nonlocal now_s, rested_s
        now_s += delay_s
        rested_s += delay_s

    store = Busy()
    monkeypatch.setattr(at_work, "monotonic", lambda: now_s)
    monkeypatch.setattr(asyncio, "sleep", rest)
    assert await shrink(store) == 2 * 4096
    assert rested_s >= worked_s * 0.999 > 0
