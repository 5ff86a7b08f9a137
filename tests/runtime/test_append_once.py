"""What comes again under its key is appended once.

`docs/durability.md` has the rule: requests from outside have an Idempotency-Key, and what a run does by itself is
named by its place in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runtime.kit import MoodyStore, ended, engine_on, plan, until
from weftline import Agent, Engine, tool
from weftline.errors import Conflict
from weftline.kernel.entries import MessageQueued, decode_fact
from weftline.plan import LocalRef, ServerRef
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.store.memory import MemoryDisk
from weftline.store.rows import AwaitFilter, IdempotencyKey
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import ToolContext, ToolOutput

SCRIPTS: dict[str, Any] = {
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}, {"name": "pay", "args": {}}]}, {"text": "thanks"}]},
    "pay": {"turns": [{"tool_calls": [{"name": "pay", "args": {}}]}, {"text": "thanks"}]},
}
CODE = "idempotency_conflict"
Request = Callable[[], Awaitable[object]]


class Kept:
    """A store in memory, and how much it has been given."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.store = MoodyStore(self.disk)

    def look(self) -> object:
        logs = {key: (list(run.items), run.row.version, run.row.due_at) for key, run in self.disk.runs.items()}
        return logs, self.store.log.flushes


@tool(effect="once", confirm="Pay?", blocking=False)
def pay() -> str:
    """Pays."""
    return "Paid."


async def changes_nothing(kept: Kept, again: Request, other: Request, first: object, code: str = CODE) -> None:
    """The same request has the same outcome; another one under its key is refused. Neither is written anywhere."""
    before = kept.look()
    assert await again() == first
    assert kept.look() == before
    with pytest.raises(Conflict) as refused:
        await other()
    assert refused.value.code == code
    assert kept.look() == before


@pytest.mark.requirement("run.log.append_once")
async def test_repeated_request_is_appended_once_and_conflicts_are_refused() -> None:
    kept = Kept()
    async with engine_on(kept.store, SCRIPTS, tools={"pay": pay})[0] as it:
        space = await it.workspace("acme")

        def create(script: str, digest: bytes) -> Awaitable[str]:
            asks = plan(script, LocalRef("ask"), ServerRef("pay"))
            return it.create(space, asks, idempotency=IdempotencyKey("runs", "k", digest))

        first = await create("ask", b"1")
        key = await it.locate(first, workspace=space)
        await until(lambda: kept.disk.awaits)
        await changes_nothing(kept, lambda: create("ask", b"1"), lambda: create("pay", b"2"), first)

        [asked] = await it.stored.awaits(AwaitFilter(workspace=space))

        def decide(outcome: Any) -> Awaitable[object]:
            return it.answer_await(
                key, asked.id, AwaitAnswer(outcome=outcome, request="k"), by="ann", person_of=as_named
            )

        assert await decide("approved") == "approved"
        await changes_nothing(kept, lambda: decide("approved"), lambda: decide("denied"), "approved", "await_closed")

        def say(text: str, key: int = key) -> Awaitable[str]:
            return it.steer(key, text, idempotency_key="k")

        said = await say("Hurry.")
        await changes_nothing(kept, lambda: say("Hurry."), lambda: say("Wait."), said)
        await changes_nothing(
            kept, lambda: say("Hurry."), lambda: it.follow_up(key, "Hurry.", idempotency_key="k"), said
        )

        def answer(text: str) -> Awaitable[bool]:
            return it.answer(key, "call_0_0", ToolOutput.of(text), idempotency_key="k")

        assert await answer("42"), "the same key as that of the message and of the run: it is not the same request"
        await changes_nothing(kept, lambda: answer("42"), lambda: answer("43"), True)

        assert (await ended(it, first, space)).status == "succeeded"
        await changes_nothing(kept, lambda: decide("approved"), lambda: decide("denied"), "approved", "await_closed")
        await changes_nothing(kept, lambda: answer("42"), lambda: answer("43"), True)
        await changes_nothing(kept, lambda: create("ask", b"1"), lambda: create("pay", b"2"), first)


@pytest.mark.requirement("run.log.append_once")
async def test_requests_at_the_same_moment_are_appended_once_too() -> None:
    kept = Kept()
    async with engine_on(kept.store, SCRIPTS)[0] as it:
        space = await it.workspace("acme")
        key = await it.locate(await it.create(space, plan("ask", LocalRef("ask"), LocalRef("pay"))), workspace=space)
        said = await asyncio.gather(*[it.steer(key, "Hurry.", idempotency_key="k") for _ in range(5)])
        assert len(set(said)) == 1
        heads = [decode_fact.decode(item.head) for item in kept.disk.runs[key].items if item.head]
        assert [type(head) for head in heads].count(MessageQueued) == 1


@pytest.mark.requirement("run.log.append_once")
async def test_run_keys_survive_reexecution_and_differ_in_children() -> None:
    disk, keys = MemoryDisk(), list[str]()
    hold, began = asyncio.Event(), asyncio.Event()

    @tool(effect="idempotent", blocking=False)
    async def put(context: ToolContext) -> str:
        """Puts."""
        keys.append(context.idempotency_key)
        began.set()
        await hold.wait()
        return "put"

    script: dict[str, Any] = {"put": {"turns": [{"tool_calls": [{"name": "put", "args": {}}]}, {"text": "done"}]}}
    it, _ = engine_on(MoodyStore(disk), script, tools={"put": put})
    await it.start()
    space = await it.workspace("acme")
    run_id = await it.create(space, plan("put", ServerRef("put")))
    await began.wait()
    await it.stop(drain_s=0)
    hold.set()
    async with engine_on(MoodyStore(disk), script, tools={"put": put})[0] as it:
        assert (await ended(it, run_id, space)).status == "succeeded"
    [first, second] = keys
    assert first == second

    keys.clear()
    child = Agent(ScriptedModel([calls("put"), "Done."]), name="helper", tools=[put])
    turns = [calls(("put", {}), ("helper", {"task": "Put."}), ("helper", {"task": "Put."})), "Done."]
    async with Engine() as engine:
        await Agent(ScriptedModel(turns), name="top", tools=[put, child.as_tool("Helps.")]).run("Put.", engine=engine)
    assert len(keys) == 3 == len(set(keys)), "each is the first call of its run's first turn, with the same arguments"
