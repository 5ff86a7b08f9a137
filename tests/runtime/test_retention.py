"""Old logs are removed when somebody asks for it, and what a run came to stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from runtime.kit import MoodyStore, ended, engine_on, new_thread, plan, until
from weftline.kernel.bodies import decode_ended
from weftline.kernel.entries import RunEnded, decode_fact
from weftline.kernel.state import decode_state
from weftline.messages import Usage
from weftline.plan import LocalRef, ServerRef
from weftline.store.budgets import Limit, workspace_account
from weftline.store.memory import MemoryDisk
from weftline.store.records import budgets
from weftline.tools.decorator import tool

DAY_US = 86_400_000_000
SCRIPTS: dict[str, Any] = {
    "hello": {"turns": [{"text": "hi", "usage": {"input": 100, "output": 20}}]},
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "thanks"}]},
    "wait": {"turns": [{"tool_calls": [{"name": "wait", "args": {}}]}, {"text": "done"}]},
    "pay": {"turns": [{"tool_calls": [{"name": "pay", "args": {}}]}, {"text": "paid"}]},
}


class Clock:
    def __init__(self) -> None:
        self.us = 1_000 * DAY_US

    def now_us(self) -> int:
        return self.us


@tool(effect="read")
async def wait() -> str:
    """Waits for ever."""
    await asyncio.Event().wait()
    return ""


@tool(confirm="Pay?")
async def pay() -> str:
    """Pays."""
    return "paid"


@pytest.mark.requirement("run.log.retention")
async def test_only_old_ended_runs_are_trimmed_and_on_request() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = MoodyStore(disk)
    it, _ = engine_on(store, SCRIPTS, tools={"wait": wait, "pay": pay}, clock=clock)
    async with it:
        space, thread = await new_thread(store)
        account = workspace_account(space)
        limit = Limit("tokens", 1_000_000)
        await store.records.write(budgets.set_limits(account, [limit], workspace=space, by="ann", now=1))
        await it.budgets_changed(space, by="ann")
        old = await it.create(space, plan("hello"))
        await ended(it, old, space)
        others = {
            "running": await it.create(space, plan("wait", ServerRef("wait")), thread=thread),
            "queued": await it.create(space, plan("hello"), thread=thread),
            "paused": await it.create(space, plan("ask", LocalRef("ask"))),
            "waiting for a client": await it.create(space, plan("ask", LocalRef("ask"))),
            "waiting for a person": await it.create(space, plan("pay", ServerRef("pay"))),
        }
        keys = {name: await it.locate(run, workspace=space) for name, run in others.items()}
        await until(lambda: "call.started" in kinds(disk, keys["running"]))
        await until(lambda: disk.runs[keys["paused"]].row.due_at)
        await it.pause(keys["paused"])
        await until(lambda: "await.opened" in kinds(disk, keys["waiting for a person"]))
        clock.us += 400 * DAY_US
        young = await it.create(space, plan("hello"))
        await ended(it, young, space)
        key = await it.locate(old, workspace=space)
        whole = {one: list(disk.runs[one].items) for one in disk.runs}
        assert len(whole[key]) > 3, "nothing is removed by itself, however old it is"
        before, tree = replace(disk.runs[key].row), await store.records.read(budgets.use(account))

        assert await it.trim(before=clock.us - DAY_US, after=0, workspace=None) == (key, 1)

        for one, items in whole.items():
            assert disk.runs[one].items == (items[-1:] if one == key else items), one
        found = await it.stored.find(old, workspace=space)
        assert found == before
        last = await it.stored.logs.entry(key, found.next_seq - 1)
        assert last is not None
        end = decode_fact.decode(last.head)
        assert isinstance(end, RunEnded)
        assert (end.status, end.usage, decode_ended(last.body).text) == ("succeeded", Usage(input=100, output=20), "hi")
        assert decode_state(found.state).totals.usage == end.usage
        assert await store.records.read(budgets.use(account)) == tree != []
        await it.cancel(keys["running"])


def kinds(disk: MemoryDisk, key: int) -> list[str]:
    return [item.kind for item in disk.runs[key].items]


async def test_run_whose_entries_were_removed_is_not_taken_for_damaged(caplog: pytest.LogCaptureFixture) -> None:
    it, _ = engine_on(MoodyStore(MemoryDisk()), SCRIPTS)
    async with it:
        space = await it.workspace("acme")
        run = await it.create(space, plan("hello"))
        await ended(it, run, space)
        key = await it.locate(run, workspace=space)
        assert await it.trim(before=2**60, after=0, workspace=None) == (key, 1)
        assert (await it.cancel(key)).status == "succeeded"
    assert "cannot be read" not in caplog.text
