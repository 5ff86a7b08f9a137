"""Approvals: who may give one, and what the log tells about each afterwards."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, hook, prompts, spawn, tool
from weftline.errors import WeftlineError
from weftline.events import AwaitOpened, CallFinished
from weftline.hooks import AwaitGate, SpawnBefore, ToolGate
from weftline.runtime import ids
from weftline.store.rows import RunFilter
from weftline.testing import ScriptedModel, calls
from weftline.text.canonical import canonical_value, digest
from weftline.tools.function import FunctionTool


@tool(effect="once", confirm="Pay {amount}?", approvers=["user:boss"])
def pay(amount: int) -> str:
    """Pays."""
    return f"Paid {amount}."


@tool(effect="once", confirm="Wire {amount}?")
def wire(amount: int) -> str:
    """Wires."""
    return f"Wired {amount}."


async def asked(run: Any, amount: int) -> str:
    async for event in run:
        if isinstance(event, AwaitOpened) and event.args["amount"] == amount:
            return event.id
    raise AssertionError("nobody was asked")


@pytest.mark.requirement("run.grant.audit")
async def test_the_log_and_its_export_tell_everything_about_every_grant(tmp_path: Path) -> None:
    turns = [calls("wire", amount=1), calls("wire", amount=2), calls("wire", amount=3), calls("wire", amount=4)]
    agent = Agent(ScriptedModel([*turns, "Done."]), name="payer", tools=[wire], limits=Limits(grant_ttl_s=60))
    async with Engine(tmp_path / "data", agents=[agent]) as engine:
        run = await engine.start(agent, "Pay.")
        await run.approve(await asked(run, 1), args={"amount": 10}, by="user:ann")
        await run.approve(await asked(run, 2), remember={"amount": 2}, by="user:ben")
        await run.deny(await asked(run, 3), by="user:ben")
        last = await asked(run, 4)
        await run.pause()
        await run.approve(last, by="user:eve")
        await run.cancel()
        grants = await engine.grants(run.id)
        made = {call.id: call for call in await engine.calls(run.id)}
        path = await engine.export(run.id, tmp_path / "run.jsonl")

    def sha(amount: int) -> str:
        return digest(canonical_value({"amount": amount}))

    shown = [(one.args, one.digest, one.edited, one.shown_digest, one.by) for one in grants]
    assert shown == [
        ({"amount": 10}, sha(10), True, sha(1), "user:ann"),
        ({"amount": 2}, sha(2), False, sha(2), "user:ben"),
        ({"amount": 4}, sha(4), False, sha(4), "user:eve"),
    ]
    assert all(one.expires_at - one.at == timedelta(seconds=60) for one in grants)
    first, second, unused = grants
    for one in (first, second):
        (use,) = one.used
        call = made[use.call_id]
        assert (call.id, call.digest) == (one.call_id, one.digest)
        assert call.started_at == use.at.timestamp() * 1_000_000
    assert unused.used == () and unused.remember is False and second.remember == {"amount": 2}
    assert [one.shown_args for one in grants] == [{"amount": 1}, {"amount": 2}, {"amount": 4}]
    async with Engine() as elsewhere:
        await elsewhere.import_runs(path)
        assert await elsewhere.grants(run.id) == grants


async def test_only_those_who_are_named_may_decide() -> None:
    agent = Agent(ScriptedModel([calls("pay", amount=1), "Done."]), name="payer", tools=[pay])
    async with Engine() as engine:
        run = await engine.start(agent, "Pay.")
        id = await asked(run, 1)
        (listed,) = await engine.awaits()
        assert listed.approvers == ("user:boss",)
        for decide in (run.approve(id, by="user:ann"), run.deny(id, by="user:ann"), run.approve(id)):
            with pytest.raises(WeftlineError) as refused:
                await decide
            assert (refused.value.code, refused.value.details["approvers"]) == ("not_approver", ("user:boss",))
        await run.approve(id, by="user:boss")
        assert (await run.result()).calls[0].result == "Paid 1."


@pytest.mark.parametrize("named", [True, False])
async def test_hook_decides_for_named_people_only_if_named(named: bool) -> None:
    asked_code: list[str] = []

    @hook(AwaitGate)
    def yes(gate: AwaitGate) -> None:
        asked_code.append(gate.id)
        gate.approve()

    @hook(ToolGate)
    def ask(gate: ToolGate) -> None:
        gate.ask("Really?", approvers=["hook:yes"] if named else ["user:boss"])

    agent = Agent(ScriptedModel([calls("wire", amount=1), "Done."]), name="payer", tools=[wire], hooks=[yes, ask])
    async with Engine() as engine:
        run = await engine.start(agent, "Pay.")
        if not named:
            await run.approve(await asked(run, 1), by="user:boss")
        assert (await run.result()).calls[0].result == "Wired 1."
    assert len(asked_code) == named


async def test_one_persons_grant_does_not_bind_another_named_one() -> None:
    @hook(ToolGate)
    def ask(gate: ToolGate) -> None:
        gate.ask("Really?", approvers=["user:ann"] if gate.args["amount"] == 1 else ["user:ben"])

    turns = [calls("wire", amount=1), calls("wire", amount=2), calls("wire", amount=3)]
    agent = Agent(ScriptedModel([*turns, "Done."]), name="payer", tools=[wire], hooks=[ask])
    async with Engine() as engine:
        run = await engine.start(agent, "Pay.")
        await run.approve(await asked(run, 1), by="user:ann", remember=True)
        await run.approve(await asked(run, 2), by="user:ben", remember=True)
        assert [call.ok for call in (await run.result()).calls] == [True, True, True]
        assert [len(one.used) for one in await engine.grants(run.id)] == [1, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"approvers": []}, "approvers are one or more names"),
        ({"approvers": "user:boss"}, "approvers are a list of names"),
        ({"approvers": [7]}, "approvers are one or more names"),
        ({"approvers": ["user:boss"], "confirm": None}, "approvers needs confirm"),
    ],
)
def test_approvers_that_nobody_could_be_are_refused(options: dict[str, Any], words: str) -> None:
    def fire() -> str:
        """Fires."""
        return ""

    with pytest.raises(ValueError, match=words):
        FunctionTool(fire, **{"confirm": "Fire?", **options})  # pyright: ignore[reportArgumentType]


async def test_agent_whose_approval_lapses_during_planning_is_not_called(tmp_path: Path) -> None:
    model = ScriptedModel([calls("spawn", task="Look."), "Done."])
    agent = Agent(model, name="boss", tools=[spawn()], limits=Limits(grant_ttl_s=0.01))
    closed = asyncio.Event()

    @agent.on(ToolGate)
    def ask(gate: ToolGate) -> None:
        gate.ask("Really?")

    @agent.on(SpawnBefore)
    async def slow(point: SpawnBefore) -> None:
        await closed.wait()

    async with asyncio.timeout(60), Engine(tmp_path / "data", agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        async for event in run:
            if isinstance(event, AwaitOpened):
                await run.approve(event.id, by="user:ann")
            elif isinstance(event, CallFinished):
                assert (event.how, event.result) == ("skipped", prompts.people.APPROVAL_LAPSED)
                closed.set()
        facts = await engine.store.log.facts(ids.key_of(run.id), kinds=("call.started", "run.adopted"))
        assert (await run.result()).text == "Done." and facts == []
        assert await engine.store.log.count_runs(RunFilter()) == 1
