"""Stores that earlier versions wrote are opened, read and carried on by today's code."""

from __future__ import annotations

import tarfile
from pathlib import Path

import aiohttp
import pytest

import weftline
from commands import weftline_beside
from weftline.testing import ServerProcess

from .kit import Api
from .record_store import SCRIPTS, STORES

VERSIONS = sorted(STORES.glob("v*.tar.xz"))


def test_this_version_has_a_store() -> None:
    assert f"v{weftline.__version__}.tar.xz" in {path.name for path in VERSIONS}


@pytest.mark.requirement("run.deploy.upgrade")
@pytest.mark.parametrize("packed", VERSIONS, ids=lambda path: path.name)
async def test_store_of_earlier_version_is_restored_and_carried_on(
    packed: Path, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "packed", filter="data")
    server = ServerProcess(tmp_path, scripts=SCRIPTS)
    done = await weftline_beside("restore", str(tmp_path / "packed" / "store"), "--db", str(server.db))
    assert done.code == 0, done.err
    with server:
        api = Api(http, server.url, "acme", server.create_key())
        runs = (await api.get("agent-runs")).json["runs"]
        by_kind = {run["metadata"].get("kind"): run["runId"] for run in runs}
        ended = await api.events(by_kind["ended"])
        assert [frame.seq for frame in ended] == sorted({frame.seq for frame in ended})
        assert ended[-1]["text"] == "You said: one"
        assert (
            await weftline_beside("resume", "--all", "--db", str(server.db))
        ).out == "Runs may continue: 2 have not ended.\n"
        async with api.stream(by_kind["waits"]) as stream:
            call = (await stream.until("local_tool_call"))["toolUseId"]
            assert (await api.answer(by_kind["waits"], call, result="here")).status == 200
            assert (await stream.rest())[-1]["text"] == "here"
        assert (await api.cancel(by_kind["waits too"])).status == 200
        (session,) = (await api.get("agent-sessions")).json["sessions"]
        frames = await api.events(await api.send(session["sessionId"], "three"))
        assert "two" in frames[-1]["text"] and "three" in frames[-1]["text"]
