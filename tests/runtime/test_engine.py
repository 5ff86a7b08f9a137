# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""The embedded engine on a real store: trouble that no HTTP request can bring about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import UNSET, Raw

from failing_disks import FaultyDisk
from runtime.kit import TIMEOUT_S, MoodyStore, ended, engine_on, facts, plan
from weftline.errors import Unavailable
from weftline.kernel import bodies
from weftline.kernel.entries import CallClosed, CallOpened, RunEnded, decode_fact
from weftline.plan import LocalRef, RunPlan, ServerRef, decode_plan
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.engine import EntryBatch, Follower
from weftline.runtime.model_calls.model_call import MAX_JSON_CHARS
from weftline.spec.plan import plan_from_spec
from weftline.store import open_store
from weftline.store.base import Store
from weftline.store.memory import MemoryDisk
from weftline.store.sqlite.store import SqliteStore
from weftline.tools.base import ToolContext, ToolOutput
from weftline.tools.decorator import tool

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


def engine(path: Path | Store) -> EmbeddedEngine:
    tools: Any = {"half": Half()}
    store = open_store(path) if isinstance(path, Path) else path
    return engine_on(store, SCRIPTS, tools=tools)[0]


async def created(it: EmbeddedEngine, run_id: str, space: int) -> bodies.CreatedBody:
    first = await it.stored.logs.entry(await it.locate(run_id, workspace=space), 1)
    assert first is not None
    return bodies.decode_created(first.body)


async def test_tool_that_answers_with_half_character_loses_that_alone(tmp_path: Path) -> None:
    async with engine(tmp_path / "store") as it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("half", ServerRef("half")))
        assert (await ended(it, run_id, space)).status == "succeeded"
        closed = [head.how for head in await facts(it, run_id, space) if isinstance(head, CallClosed)]
        assert closed == ["returned"]


async def _parked(path: Path) -> tuple[int, str]:
    async with engine(path) as it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("client", LocalRef("ask")))
        follow = it.follow(await it.locate(run_id, workspace=space), run_id)
        async with asyncio.timeout(TIMEOUT_S):
            while (batches := await follow.next()) is not None:
                heads = [decode_fact.decode(item.head) for batch in batches for item in batch.items if item.head]
                if any(isinstance(head, CallOpened) for head in heads):
                    break
        follow.close()
        return space, run_id


async def _all(follow: Follower) -> AsyncIterator[EntryBatch]:
    while (batches := await follow.next()) is not None:
        for batch in batches:
            yield batch


def _damage(path: Path, statement: str) -> None:
    db = apsw.Connection(str(path / "weftline.db"))
    db.execute(statement)
    db.close()


async def test_state_that_does_not_read_is_folded_anew_from_log(tmp_path: Path) -> None:
    space, run_id = await _parked(tmp_path / "store")
    _damage(tmp_path / "store", "UPDATE runs SET state = x'00'")
    async with engine(tmp_path / "store") as it:
        assert await it.answer(await it.locate(run_id, workspace=space), "call_0_0", ToolOutput.of("42"))
        assert (await ended(it, run_id, space)).status == "succeeded"


async def test_unreadable_log_ends_its_run_and_no_other(tmp_path: Path) -> None:
    space, run_id = await _parked(tmp_path / "store")
    _damage(tmp_path / "store", "UPDATE runs SET state = x'00', due_at = 0")
    _damage(tmp_path / "store", "UPDATE entries SET head = x'7b' WHERE seq > 1")
    async with engine(tmp_path / "store") as it:
        fine = await it.create(space, plan("hello"))
        assert (await ended(it, fine, space)).status == "succeeded"
        key = await it.locate(run_id, workspace=space)
        follow = it.follow(key, run_id, after=3)
        async with asyncio.timeout(TIMEOUT_S):
            batches = [batch async for batch in _all(follow)]
        head = decode_fact.decode(batches[-1].items[-1].head)
        assert isinstance(head, RunEnded)
        assert (head.status, head.code) == ("failed", "worker_error")


async def test_store_counts_as_well_again_only_when_write_succeeds(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        async with engine(SqliteStore(tmp_path / "store", vfs=disk.vfs)) as it:
            space = await it.workspace("acme")
            # The create fails, and so do two probes after it; the third finds the disk well.
            disk.fail("xWrite", code=apsw.SQLITE_FULL, times=3)
            with pytest.raises(Unavailable):
                await it.create(space, plan("hello"))
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    try:
                        it.require_writable()
                    except Unavailable:
                        await asyncio.sleep(0.01)
                    else:
                        break
            assert disk.hits == 3
            run_id = await it.create(space, plan("hello"))
            assert (await ended(it, run_id, space)).status == "succeeded"


async def test_log_holds_plan_and_beside_it_exactly_what_client_sent(tmp_path: Path) -> None:
    sent = b'{ "modelId":"scripted:hello", "prompt":"x", "mine":1.0 }'
    async with engine(tmp_path / "store") as it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan_from_spec(sent), sent=sent)
        await ended(it, run_id, space)
        body = await created(it, run_id, space)
        assert decode_plan(body.plan, plan_from_spec(sent).limits) == plan_from_spec(sent)
        assert body.sent == Raw(sent)


async def test_a_run_that_no_client_sent_has_only_its_plan(tmp_path: Path) -> None:
    asked: RunPlan = plan("hello")
    async with engine(tmp_path / "store") as it:
        space = await it.workspace("acme")
        run_id = await it.create(space, asked)
        await ended(it, run_id, space)
        body = await created(it, run_id, space)
        assert (decode_plan(body.plan, asked.limits), body.sent) == (asked, UNSET)


async def test_endless_arguments_end_their_run() -> None:
    long = {"q": "x" * (MAX_JSON_CHARS + 1)}
    scripts: dict[str, Any] = {"long": {"turns": [{"tool_calls": [{"name": "ask", "args": long}]}, {"text": "done"}]}}
    it, provider = engine_on(MoodyStore(MemoryDisk()), scripts)
    async with it:
        space = await it.workspace("acme")
        end = await ended(it, await it.create(space, plan("long", LocalRef("ask"))), space)
    assert end.status == "failed" and len(provider.requests) == 1
