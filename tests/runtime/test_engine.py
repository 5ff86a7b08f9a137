# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""The embedded engine on a real store: trouble that no HTTP request can bring about."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from weftline.errors import Unavailable
from weftline.kernel.entries import CallClosed, RunEnded, decode_fact
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.runtime.embedded import Engine
from weftline.store.sqlite.accounts import workspace_key
from weftline.store.sqlite.store import SqliteStore
from weftline.testing.faults import FaultyDisk
from weftline.tools.base import ToolContext, ToolOutput
from weftline.tools.function import tool

SCRIPTS: dict[str, Any] = {
    "hello": {"turns": [{"text": "hi"}]},
    "client": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "got {{tool_results.0}}"}]},
    "half": {"turns": [{"tool_calls": [{"name": "half", "args": {}}]}, {"text": "read {{tool_results.0}}"}]},
}


class Half:
    """A tool of a plug-in that hands back half a character."""

    def __init__(self) -> None:
        @tool(name="half", effect="read")
        async def half() -> str:
            """Answers with half a character."""
            return ""

        self._tool = half

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        return ToolOutput.of("\ud800")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)


def engine(path: Path | SqliteStore) -> Engine:
    models = Catalog()
    models.add(ScriptedProvider(parse_scripts(msgspec.json.encode(SCRIPTS), source="test")))
    tools: Any = {"half": Half()}
    return Engine(path, models=models, tools=tools)


def spec(model: str, *tools: dict[str, str]) -> bytes:
    return msgspec.json.encode({"modelId": f"scripted:{model}", "prompt": "x", "tools": list(tools)})


async def workspace(it: Engine) -> int:
    return await it.store.job(lambda db: workspace_key(db, "acme", now=1))


async def ended(it: Engine, run_id: str, space: int) -> RunEnded:
    key = it.locate(run_id, workspace=space)
    follow = it.follow(key, run_id)
    while follow.take() is not None:
        await follow.wait()
    follow.close()
    last = it.read.facts(key)[-1]
    head = decode_fact.decode(last[3])
    assert isinstance(head, RunEnded)
    return head


async def test_a_tool_that_answers_with_half_a_character_fails_alone(tmp_path: Path) -> None:
    async with engine(tmp_path / "store") as it:
        space = await workspace(it)
        run_id = await it.create(space, spec("half", {"kind": "mantyx_plugin", "name": "half"}))
        assert (await ended(it, run_id, space)).status == "succeeded"
        heads = [decode_fact.decode(row[3]) for row in it.read.facts(it.locate(run_id, workspace=space))]
        assert [head.how for head in heads if isinstance(head, CallClosed)] == ["failed"]


async def well_again(it: Engine) -> None:
    seen = asyncio.Event()
    told = it.store_is_well

    def tell() -> None:
        told()
        seen.set()

    it.store_is_well = tell
    await seen.wait()


async def _parked(path: Path) -> tuple[int, str]:
    async with engine(path) as it:
        space = await workspace(it)
        run_id = await it.create(space, spec("client", {"kind": "local", "name": "ask"}))
        follow = it.follow(it.locate(run_id, workspace=space), run_id)
        while b"local_tool_call" not in (follow.take() or b""):
            await follow.wait()
        follow.close()
        return space, run_id


def _damage(path: Path, statement: str) -> None:
    db = apsw.Connection(str(path / "weftline.db"))
    db.execute(statement)
    db.close()


async def test_a_state_that_does_not_read_is_folded_anew_from_the_log(tmp_path: Path) -> None:
    space, run_id = await _parked(tmp_path / "store")
    _damage(tmp_path / "store", "UPDATE runs SET state = x'00'")
    async with engine(tmp_path / "store") as it:
        assert await it.answer(it.locate(run_id, workspace=space), "call_0_0", ToolOutput.of("42"))
        assert (await ended(it, run_id, space)).status == "succeeded"


async def test_a_log_that_does_not_read_ends_its_run_and_no_other(tmp_path: Path) -> None:
    space, run_id = await _parked(tmp_path / "store")
    _damage(tmp_path / "store", "UPDATE runs SET state = x'00', due_at = 0")
    _damage(tmp_path / "store", "UPDATE entries SET head = x'7b' WHERE seq > 1")
    async with engine(tmp_path / "store") as it:
        fine = await it.create(space, spec("hello"))
        assert (await ended(it, fine, space)).status == "succeeded"
        head = await ended(it, run_id, space)
        assert (head.status, head.code) == ("failed", "worker_error")


async def test_the_store_counts_as_well_again_only_when_a_write_succeeds(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        async with engine(SqliteStore(tmp_path / "store", vfs=disk.vfs)) as it:
            space = await workspace(it)
            # The create fails, and so do two probes after it; the third finds the disk well.
            disk.fail("xWrite", code=apsw.SQLITE_FULL, times=3)
            with pytest.raises(Unavailable):
                await it.create(space, spec("hello"))
            async with asyncio.timeout(120):
                await well_again(it)
            assert disk.hits == 3
            run_id = await it.create(space, spec("hello"))
            assert (await ended(it, run_id, space)).status == "succeeded"
