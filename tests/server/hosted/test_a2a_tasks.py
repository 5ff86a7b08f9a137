"""A run as a task is made from its plan, whatever the JSON of its client looked like, or whether there was any."""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from runtime.kit import MoodyStore, ended, engine_on, plan, until
from weftline.messages import OutputSchema
from weftline.plan import LocalRef
from weftline.runtime.engine import Engine
from weftline.server.a2a.tasks import Task, read_task
from weftline.store.memory import MemoryDisk

SCRIPTS: dict[str, Any] = {
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {"question": "Which?"}}]}, {"text": "thanks"}]},
    "json": {"turns": [{"text": '{"n":4}'}]},
}


async def task_of(engine: Engine, key: int) -> Task:
    row = await engine.stored.row(key)
    assert row is not None
    return await read_task(engine, row)


async def test_a_run_that_came_without_json_is_the_same_task() -> None:
    disk = MemoryDisk()
    async with engine_on(MoodyStore(disk), SCRIPTS)[0] as it:
        space = await it.workspace("acme")
        await it.create(space, plan("ask", LocalRef("ask")))
        await until(lambda: disk.runs[1].row.due_at)
        task = await task_of(it, 1)
        assert (task.state, task.question) == ("input-required", "call_0_0")
        assert task.message is not None and task.message.text == "Which?"
        schema = OutputSchema("num", Raw(b'{"type":"object"}'))
        await ended(it, await it.create(space, replace(plan("json"), output_schema=schema)), space)
        assert (await task_of(it, 2)).data == Raw(b'{"n":4}')
        await ended(it, await it.create(space, plan("json")), space)
        assert (await task_of(it, 3)).data is None


async def test_a_task_has_nothing_that_is_newer_than_its_row() -> None:
    """What comes later is an event to whoever follows it from there."""
    disk = MemoryDisk()
    async with engine_on(MoodyStore(disk), SCRIPTS)[0] as it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("json"))
        await ended(it, run_id, space)
        row = await it.stored.find(run_id, workspace=space)
        early = replace(row, status="queued", next_seq=2, started_at=None, ended_at=None)
        task = await read_task(it, early, history=10)
        assert (task.state, task.turn_seq, [one.role for one in task.history]) == ("submitted", 0, ["user"])
