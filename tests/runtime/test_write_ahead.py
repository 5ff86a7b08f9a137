"""The ledger of effects: what a tool is about to do is in the log before it begins, with the digest of what it gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from weftline import Agent, Engine, hook, tool
from weftline.hooks import ToolGate
from weftline.kernel.entries import KIND, AttemptStarted, Limits
from weftline.kernel.policy import BudgetRule
from weftline.plan import ServerRef
from weftline.runtime import ids
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.reads.calls import LoggedCall
from weftline.store.memory import MemoryDisk
from weftline.testing import ScriptedModel, calls
from weftline.text.canonical import canonical, digest
from weftline.tools.base import ToolContext

from .kit import MoodyStore, ended, engine_on, plan, until

SCRIPTS: dict[str, Any] = {
    "pays": {
        "turns": [
            {"tool_calls": [{"name": "hold_the_disk", "args": {}}]},
            {"tool_calls": [{"name": "pay", "args": {"amount": 5}}]},
            {"text": "done"},
        ]
    },
}


@pytest.mark.requirement("run.effect.write_ahead")
async def test_call_is_durable_before_its_tool_begins() -> None:
    store = MoodyStore(MemoryDisk())
    seen: list[tuple[LoggedCall, ToolContext]] = []
    engines: list[EmbeddedEngine] = []

    @tool
    async def pay(amount: int, context: ToolContext) -> str:
        """Pays."""
        row = await engines[0].stored.row(ids.key_of(context.run_id))
        assert row is not None
        [_, call] = await engines[0].stored.calls(row)
        seen.append((call, context))
        return f"paid {amount}"

    @tool
    async def hold_the_disk() -> str:
        """From here on, no call can be announced."""
        store.log.holds = "call.opened"
        store.log.gate.clear()
        return "held"

    async with engine_on(store, SCRIPTS, tools={"pay": pay, "hold_the_disk": hold_the_disk})[0] as engine:
        engines.append(engine)
        space = await engine.workspace("acme")
        run_id = await engine.create(space, plan("pays", ServerRef("pay"), ServerRef("hold_the_disk")))
        row = await engine.stored.find(run_id, workspace=space)
        await until(lambda: not store.log.gate.is_set() and store.log.waited)
        assert seen == [] and [call.name for call in await engine.stored.calls(row)] == ["hold_the_disk"]
        store.log.refusals = 1
        store.log.gate.set()
        await until(lambda: not store.log.refusals)
        assert seen == []
        assert (await ended(engine, run_id, space)).status == "succeeded"
        [(call, context)] = seen
        assert (call.run_id, call.id, call.name, call.state) == (run_id, context.call_id, "pay", "started")
        assert (call.key, call.effect, call.attempts) == (context.idempotency_key, "once", 1)
        assert call.digest == digest(b'{"amount":5}')


@hook(ToolGate)
def doubled(gate: ToolGate) -> None:
    gate.args = {**gate.args, "amount": gate.args["amount"] * 2}


@pytest.mark.requirement("run.effect.digest")
async def test_the_digest_is_that_of_the_canonical_arguments_that_run() -> None:
    ran: list[int] = []

    @tool(confirm="Pay {amount} to {payee}?")
    def pay(amount: int, payee: str = "Ann") -> str:
        """Pays."""
        ran.append(amount)
        return "paid"

    assert digest(canonical('{ "payee":"Ben" ,"amount":3}')) == digest(canonical('{"amount":3,"payee":"Ben"}'))
    assert len({digest(canonical(one)) for one in ('{"a":1}', '{"a":1.5}', '{"a":"1"}', '{"a":null}', '{"b":1}')}) == 5
    # A number as a text is coerced, keys come in any order, and a default is filled in.
    asked = ({"amount": "3", "payee": "Ben"}, {"payee": "Ben", "amount": 3}, {"amount": 4})
    agent = Agent(ScriptedModel([calls(*[("pay", args) for args in asked]), "Done."]), tools=[pay], hooks=[doubled])
    async with Engine() as engine:
        run = await engine.start(agent, "Pay.")
        async for event in run.events():
            if type(event).__name__ == "AwaitOpened":
                for question in await engine.awaits():
                    amount = question.args["amount"]
                    await run.approve(question.id, args={**question.args, "amount": 9} if amount == 8 else None)
        listed = await engine.calls(run.id)
        assert sorted(ran) == [6, 6, 9]
        assert [call.digest for call in listed] == [
            digest(b'{"amount":6,"payee":"Ben"}'),
            digest(b'{"amount":6,"payee":"Ben"}'),
            digest(b'{"amount":9,"payee":"Ann"}'),
        ]


@pytest.mark.parametrize("limited", [True, False])
async def test_model_is_asked_once_its_cost_is_reserved(limited: bool) -> None:
    store = MoodyStore(MemoryDisk())
    engine, provider = engine_on(store, {"hello": {"turns": [{"text": "hello"}]}})
    async with engine:
        space = await engine.workspace("acme")
        store.log.holds = KIND[AttemptStarted]
        store.log.gate.clear()
        limits = Limits(budget=BudgetRule(tokens=100_000) if limited else None)
        run_id = await engine.create(space, replace(plan("hello"), limits=limits))
        await until(lambda: store.log.waited)
        for _ in range(50):
            await asyncio.sleep(0)
        asked = len(provider.requests)
        store.log.gate.set()
        assert asked == (0 if limited else 1), "a crash could undo the reservation"
        assert (await ended(engine, run_id, space)).status == "succeeded"
