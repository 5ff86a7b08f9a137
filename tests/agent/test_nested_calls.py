"""Calls that a running call asks for: the pipeline, people and restarts, without a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from weftline import Agent, Engine, tool
from weftline.agent.behavior import Behavior
from weftline.behaviors import ToolBudget
from weftline.events import CallFinished, CallOpened
from weftline.hooks import ToolGate
from weftline.kernel.bodies import Peer
from weftline.kernel.entries import Effect
from weftline.messages import Assistant, ToolResults, joined_text
from weftline.providers.base import ToolSpec
from weftline.runs import trace
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import ClientKind, Diverged, Reconciled, ToolContext, ToolOutput, Traits, Unknown

from .kit import asked, scripted
from .test_tracing import Traces

Script = Callable[[Callable[[str, str], Awaitable[ToolOutput]]], Awaitable[str]]


class Host:
    """A tool that is code without a sandbox."""

    spec = ToolSpec("host", "Runs a script.", Raw(b'{"type":"object","properties":{}}'))
    effect: Effect = "read"
    concurrent = False
    timeout_s: float | None = 30.0
    client: ClientKind | None = None
    peer: Peer | None = None
    traits = Traits(host=True)

    def __init__(self, script: Script) -> None:
        self.script = script
        self.runs = 0
        self.clocks: list[int] = []

    async def prepare(self, args: str) -> bytes:
        return b"{}"

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        self.runs += 1
        further = context.further
        assert further is not None
        self.clocks.append(further.clock_ms)
        try:
            said = await self.script(further.ask)
        except Diverged as error:
            return ToolOutput.of(str(error), is_error=True)
        await further.settled()
        return ToolOutput.of(said)

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        return Unknown()


done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


@tool(effect="once")
def pay(payee: str, cents: int = 1) -> str:
    """Pay somebody."""
    done.append(payee)
    return f"Paid {payee} {cents}."


@tool(effect="once", confirm="Wire money to {payee}?")
def wire(payee: str) -> str:
    """Wire money."""
    done.append(f"wire {payee}")
    return f"Wired to {payee}."


@tool(effect="read", concurrent=True)
async def look(at: str) -> str:
    """Look at something."""
    done.append(at)
    return f"{at} is fine."


def hosted(script: Script, *more: Any, **options: Any) -> tuple[Agent[Any, Any], ScriptedModel, Host]:
    host = Host(script)
    agent, model = scripted(calls("host"), "Done.", tools=[host, pay, wire, look, *more], name="hosted", **options)
    return agent, model, host


async def say(ask: Callable[[str, str], Awaitable[ToolOutput]], name: str, args: str) -> str:
    output = await ask(name, args)
    return ("! " if output.is_error else "") + joined_text(output.parts)


async def test_model_reads_only_call_that_asked_for_others() -> None:
    async def script(ask: Any) -> str:
        return " ".join([await say(ask, "pay", '{"payee": "Ann"}'), await say(ask, "pay", '{"payee": "Bob"}')])

    agent, model, _ = hosted(script)
    result = await agent.run("Go.")
    assert result.text == "Done."
    assert done == ["Ann", "Bob"]
    assert len(model.requests) == 2
    said = [message for message in result.new_messages if isinstance(message, Assistant | ToolResults)]
    assert [len(one.calls) if isinstance(one, Assistant) else len(one.results) for one in said] == [1, 1, 0]
    assert [(call.name, call.parent_call, call.ok) for call in result.calls] == [
        ("pay", "call_0_0", True),
        ("pay", "call_0_0", True),
        ("host", None, True),
    ]
    assert [call.id for call in result.calls] == ["call_0_0.1", "call_0_0.2", "call_0_0"]
    assert result.calls[2].result == "Paid Ann 1. Paid Bob 1."


async def test_events_name_the_parent_of_a_nested_call() -> None:
    async def script(ask: Any) -> str:
        return await say(ask, "look", '{"at": "x"}')

    agent, _, _ = hosted(script)
    async with agent.stream("Go.") as run:
        seen = [event async for event in run if isinstance(event, CallOpened | CallFinished)]
    assert [(event.name, event.parent_call) for event in seen] == [
        ("host", None),
        ("look", "call_0_0"),
        ("look", "call_0_0"),
        ("host", None),
    ]


async def test_each_nested_call_passes_checks_gates_and_budgets() -> None:
    heard: list[str] = []

    async def script(ask: Any) -> str:
        asked = [
            ("pay", '{"payee": "Ann", "cents": "7"}'),
            ("pay", '{"cents": 1}'),
            ("nowhere", "{}"),
            ("pay", '{"payee": "Mallory"}'),
            ("look", '{"at": "a"}'),
            ("look", '{"at": "b"}'),
        ]
        heard.extend([await say(ask, name, args) for name, args in asked])
        return "ok"

    agent, _, _ = hosted(script, behavior=Behavior(tool_budgets={"look": ToolBudget(max=1)}))

    @agent.on(ToolGate)
    def refuse(gate: ToolGate) -> None:
        if gate.args.get("payee") == "Mallory":
            gate.block("not to Mallory")

    result = await agent.run("Go.")
    assert [call.how for call in result.calls] == [
        "returned",
        "invalid",
        "unknown",
        "blocked",
        "returned",
        "budget",
        "returned",
    ]
    assert heard[0] == "Paid Ann 7."
    assert all(text.startswith("! ") for text in (*heard[1:4], heard[5]))
    assert "not to Mallory" in heard[3]
    assert done == ["Ann", "a"]


async def test_unawaited_calls_are_executed_before_the_code_ends() -> None:
    left: list[asyncio.Future[ToolOutput]] = []

    async def script(ask: Any) -> str:
        left.append(asyncio.ensure_future(ask("pay", '{"payee": "Ann"}')))
        await asyncio.sleep(0)
        return "left"

    agent, _, _ = hosted(script)
    result = await agent.run("Go.")
    assert [call.name for call in result.calls] == ["pay", "host"]
    assert done == ["Ann"]


async def test_parked_run_with_an_approval_does_nothing_twice(tmp_path: Path) -> None:
    async def script(ask: Any) -> str:
        said = await asyncio.gather(say(ask, "pay", '{"payee": "Ann"}'), say(ask, "look", '{"at": "x"}'))
        return " ".join([*said, await say(ask, "wire", '{"payee": "Bob"}'), await say(ask, "pay", '{"payee": "Cem"}')])

    agent, _, host = hosted(script)
    async with Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        event = await asked(run)
        assert (event.name, event.call_id) == ("wire", "call_0_0.3")
        run_id = run.id
    assert done == ["Ann", "x"]
    agent, model, again = hosted(script)
    async with Engine(tmp_path, agents=[agent]) as engine:
        run = engine.attach(run_id)
        [question] = await engine.awaits()
        await run.approve(question.id)
        result = await run.result()
    assert done == ["Ann", "x", "wire Bob", "Cem"]
    assert result.calls[-1].result == "Paid Ann 1. x is fine. Wired to Bob. Paid Cem 1."
    assert (host.runs, again.runs) == (1, 1)
    assert host.clocks == again.clocks
    assert len(model.requests) == 1
    assert [call.how for call in result.calls] == ["returned"] * 5


async def test_code_that_diverges_when_restarted_ends_with_an_error(tmp_path: Path) -> None:
    payees = iter(["Ann", "Eve"])

    async def script(ask: Any) -> str:
        await ask("pay", f'{{"payee": "{next(payees)}"}}')
        return await say(ask, "wire", '{"payee": "Bob"}')

    agent, _, _ = hosted(script)
    async with Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        event = await asked(run)
        await run.approve(event.id)
        result = await run.result()
    assert done == ["Ann", "wire Bob"]
    [last] = [call for call in result.calls if call.name == "host"]
    assert not last.ok
    assert "now calls pay with different arguments" in last.result


async def test_answers_are_handed_out_in_the_order_of_the_log(tmp_path: Path) -> None:
    slow = asyncio.Event()
    order: list[str] = []

    @tool(effect="read", concurrent=True)
    async def late(at: str) -> str:
        """Answers late."""
        await slow.wait()
        return at

    async def first(ask: Any) -> None:
        order.append(await say(ask, "late", '{"at": "late"}'))
        await ask("pay", '{"payee": "after late"}')

    async def second(ask: Any) -> None:
        order.append(await say(ask, "look", '{"at": "quick"}'))
        slow.set()
        await ask("pay", '{"payee": "after quick"}')

    async def script(ask: Any) -> str:
        await asyncio.gather(first(ask), second(ask))
        return await say(ask, "wire", '{"payee": "Bob"}')

    agent, _, host = hosted(script, late)
    async with Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        event = await asked(run)
        await run.approve(event.id)
        result = await run.result()
    assert host.runs == 2
    assert order == ["quick is fine.", "late", "quick is fine.", "late"]
    assert done == ["quick", "after quick", "after late", "wire Bob"]
    assert result.calls[-1].ok


async def test_pause_puts_code_away_and_resume_carries_it_out_again() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def script(ask: Any) -> str:
        begun.set()
        await go_on.wait()
        return await say(ask, "pay", '{"payee": "Ann"}')

    agent, _, host = hosted(script)
    async with Engine(agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        await begun.wait()
        await run.pause("wait")
        go_on.set()
        await run.resume()
        result = await run.result()
    assert done == ["Ann"]
    assert result.calls[-1].result == "Paid Ann 1."
    assert host.runs in (1, 2)


async def test_a_cancel_ends_the_code_and_what_it_calls() -> None:
    begun = asyncio.Event()

    @tool(effect="once")
    async def hang() -> str:
        """Never returns."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    async def script(ask: Any) -> str:
        return await say(ask, "hang", "{}")

    agent, _, _ = hosted(script, hang)
    async with Engine(agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        await begun.wait()
        receipt = await run.cancel()
        result = await run.result()
    assert result.status == "cancelled"
    assert [(call.name, call.how) for call in result.calls] == [("hang", "in_doubt"), ("host", "cancelled")]
    assert [call.name for call in receipt.in_doubt] == ["hang"]


async def test_span_of_nested_call_is_inside_that_of_its_parent() -> None:
    async def script(ask: Any) -> str:
        return await say(ask, "look", '{"at": "x"}')

    traces = Traces()
    agent, _, _ = hosted(script)
    trace(agent, tracer_provider=traces.provider)
    await agent.run("Go.")
    tree = traces.tree()
    assert tree["execute_tool look"] == "execute_tool host"
    assert tree["execute_tool host"] == "turn 0"


async def test_run_with_nested_calls_replays_and_shows_its_messages(tmp_path: Path) -> None:
    async def script(ask: Any) -> str:
        return await say(ask, "pay", '{"payee": "Ann"}') + await say(ask, "look", '{"at": "x"}')

    agent, _, _ = hosted(script)

    @agent.on(ToolGate)
    def change(gate: ToolGate) -> None:
        if gate.tool == "pay":
            gate.args = {**gate.args, "cents": 9}

    async with Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        result = await run.result()
        assert result.calls[0].args == {"payee": "Ann", "cents": 9}
        assert [one.role for one in await run.messages()] == ["user", "assistant", "tool", "assistant"]
        listed = await engine.calls(run.id)
        replayed = await engine.replay(run.id)
    assert [(one.name, one.parent) for one in listed] == [("host", ""), ("pay", "call_0_0"), ("look", "call_0_0")]
    assert replayed.divergence is None, str(replayed)
    assert replayed.calls == 3


async def waited(agent: Agent[Any, Any], say: Callable[[Engine, str], Awaitable[object]]) -> tuple[Any, str]:
    """The result of a run that one person was asked about, and what a replay says of it."""
    async with Engine(agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        event = await asked(run)
        await say(engine, event.id)
        result = await run.result()
        return result, str(await engine.replay(run.id, agents=[agent]))


@tool(effect="read", confirm="Count {what}?")
def count(what: str) -> dict[str, int]:
    """Counts."""
    return {what: 3}


async def test_call_that_person_refused_is_error_to_code() -> None:
    heard: list[str] = []

    async def script(ask: Any) -> str:
        heard.append(await say(ask, "wire", '{"payee": "Bob"}'))
        return "ok"

    async def deny(engine: Engine, id: str) -> None:
        [question] = await engine.awaits()
        await engine.attach(question.run_id).deny(id, "Too much.")

    result, _ = await waited(hosted(script)[0], deny)
    assert [call.how for call in result.calls] == ["denied", "returned"]
    assert heard[-1].startswith("! ") and "Too much." in heard[-1]
    assert done == []


async def test_call_whose_arguments_person_changed_gives_code_its_result_alone() -> None:
    async def script(ask: Any) -> str:
        return await say(ask, "count", '{"what": "sheep"}')

    async def approve(engine: Engine, id: str) -> None:
        [question] = await engine.awaits()
        await engine.attach(question.run_id).approve(id, args={"what": "goats"})

    result, replayed = await waited(hosted(script, count)[0], approve)
    assert result.calls[-1].result == '{"goats":3}'
    assert "comes out the same" in replayed


@pytest.mark.requirement("run.replay.offline")
async def test_a_replay_answers_nested_calls_from_the_log() -> None:
    async def script(ask: Any) -> str:
        some = [say(ask, "look", f'{{"at": "{n}"}}') for n in range(3)]
        said = [*await asyncio.gather(*some), await say(ask, "pay", '{"payee": "Ann"}'), await say(ask, "gone", "{}")]
        return " ".join([*said, await say(ask, "pay", "{}")])

    agent, _, _ = hosted(script)
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        result = await run.result()
        made = list(done)
        same = await engine.replay(run.id, agents=[agent])
        assert same.divergence is None, str(same)
        assert same.calls == len(result.calls) == 7
        without = await engine.replay(run.id)
        assert without.divergence is None and without.code_missing
        assert done == made

        @tool(effect="read")
        def pay(payee: str, cents: int = 1) -> str:
            """Pay somebody."""
            return "Paid."

        other = Agent(ScriptedModel(["Done."]), tools=[Host(script), pay, wire, look], name="hosted")
        differs = await engine.replay(run.id, agents=[other])
        assert differs.divergence is not None
        assert (differs.divergence.kind, differs.divergence.differences[0].field) == ("call.asked", "call.effect")
