"""Labels and metadata of runs, and the arguments that a run fills in."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from weftline import Agent, Engine, RunContext, ToolContext, code, tool
from weftline.agent.run import Run
from weftline.client import tool as client_tool
from weftline.errors import InvalidRequest
from weftline.events import CallOpened, RunEnded
from weftline.hooks import BeforeModel, ToolGate
from weftline.policies import PolicyDecision, PolicyTurn
from weftline.testing import ScriptedModel, calls
from weftline.tools import Injected

from .kit import asked, scripted

LABELS = {"tenant": "acme-secret", "limit": "7"}
METADATA: dict[str, Any] = {"ticket": {"id": 42, "tags": ["meta-secret"]}}


@pytest.mark.requirement("run.label.flow")
async def test_labels_reach_everything_but_the_model(tmp_path: Path) -> None:
    seen: dict[str, dict[str, str]] = {}
    metadata: list[dict[str, Any]] = []

    @tool(effect="read")
    def look(context: ToolContext) -> str:
        """Looks."""
        seen["tool"] = context.labels
        return "ok"

    def below(context: RunContext[Any]) -> str:
        seen["child"] = context.run.labels
        return "You help."

    def instructions(context: RunContext[Any]) -> str:
        seen["prompt"] = context.run.labels
        return "You lead."

    def engine(turn: PolicyTurn) -> PolicyDecision:
        seen["policy"] = dict(turn.labels)
        return PolicyDecision()

    helper = Agent(helping := ScriptedModel(["helped"]), name="helper", instructions=below)
    model = ScriptedModel([calls("look"), calls("helper", task="Help."), "Done."])
    agent = Agent(
        model, name="lead", instructions=instructions, tools=[look, helper.as_tool("Helps.")], policy_engine=engine
    )

    @agent.on(BeforeModel)
    def shaped(_: BeforeModel, context: RunContext[Any]) -> None:
        seen["hook"] = context.run.labels
        metadata.append(context.run.metadata)

    async with Engine(tmp_path, agents=[agent]) as engine_:
        run = await engine_.start(agent, "Go.", labels=LABELS, metadata=METADATA)
        await run.result()
        (end,) = [event async for event in run if isinstance(event, RunEnded)]
        page = await run.entries(limit=1)
    assert seen == dict.fromkeys(("tool", "child", "prompt", "policy", "hook"), LABELS)
    assert end.labels == LABELS
    assert metadata[0] == METADATA and page.entries[0].body["plan"]["metadata"] == METADATA
    said = str([*model.requests, *helping.requests])
    assert "acme-secret" not in said and "meta-secret" not in said


@pytest.mark.requirement("run.label.flow")
async def test_cancelled_and_failed_run_have_their_labels_at_end() -> None:
    agent, _ = scripted({"error": {"class": "auth"}}, tools=[])
    async with agent.stream("Go.", labels=LABELS) as run:
        events = [event async for event in run]
    assert isinstance(events[-1], RunEnded) and (events[-1].status, events[-1].labels) == ("failed", LABELS)

    @tool(effect="once", confirm="Sure?")
    def pay() -> str:
        """Pays."""
        return "paid"

    agent, _ = scripted(calls("pay"), tools=[pay])
    async with agent.stream("Go.", labels=LABELS) as run:
        assert isinstance(run, Run)
        await asked(run)
        await run.cancel()
        events = [event async for event in run]
    assert isinstance(events[-1], RunEnded) and (events[-1].status, events[-1].labels) == ("cancelled", LABELS)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"labels": {"a b": "x"}}, "'a b' must match"),
        ({"labels": {5: "x"}}, "must be a string"),
        ({"labels": {"a": 5}}, "labels.a: must be a string"),
        ({"labels": {"a": "x" * 513}}, "at most 512 characters"),
        ({"labels": dict.fromkeys(map(str, range(17)), "x")}, "has 17 entries"),
        ({"labels": dict.fromkeys(map(str, range(16)), "😀" * 512)}, "more than 16384 bytes"),
        ({"labels": {"a": "\ud800"}}, "is not JSON"),
        ({"labels": ["a"]}, "labels: must be a mapping"),
        ({"metadata": {"a": object()}}, "metadata: is not JSON"),
        ({"metadata": {"a": "x" * 65_536}}, "more than 65536 bytes"),
    ],
)
async def test_labels_and_metadata_that_cannot_be_are_refused(options: dict[str, Any], why: str) -> None:
    agent, model = scripted(tools=[])
    with pytest.raises(InvalidRequest, match=why):
        await agent.run("Go.", **cast(Any, options))
    assert not model.requests


# What a run fills in


@tool(effect="read")
def orders(
    customer: str,
    tenant: Injected[str],
    limit: Injected[int],
    run_id: Injected[str],
    turn_id: Injected[str],
    tool_call_id: Injected[str],
    thread_id: Injected[str] = "none",
    parent_tool_call_id: Injected[str] = "none",
    region: Injected[str] = "eu",
) -> str:
    """The orders of a customer."""
    where = f"{run_id} {turn_id} {tool_call_id} {thread_id} {parent_tool_call_id}"
    return f"{customer} {tenant} {limit + 1} {region} | {where}"


@pytest.mark.requirement("run.call.injected")
async def test_run_fills_in_what_model_neither_sees_nor_sets(tmp_path: Path) -> None:
    model = ScriptedModel([calls("orders", customer="ann", tenant="evil", limit=99, run_id="mine"), "Done."])
    agent = Agent(model, name="shop", tools=[orders])
    async with Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.", labels=LABELS, thread="t")
        result = await run.result()
        (opened,) = [event async for event in run if isinstance(event, CallOpened)]
    (call,) = result.calls
    about = f"{run.id} {run.id}.0 {call.id} {opened.args['thread_id']} none"
    assert call.result == f"ann acme-secret 8 eu | {about}"
    assert opened.args["thread_id"].startswith("ses_")
    assert opened.args == call.args and call.args["tenant"] == "acme-secret" and call.args["limit"] == 7
    schema = json.loads(bytes(model.requests[0].tools[0].parameters))
    assert list(schema["properties"]) == schema["required"] == ["customer"]
    assert "acme-secret" not in str(model.requests[0])


@pytest.mark.requirement("run.call.injected")
async def test_call_of_code_fills_in_call_that_asked_for_it() -> None:
    script = 'const told = await orders({customer: "ann"}); export default told;'
    agent, _ = scripted(calls("code", code=script), tools=[orders, code()])
    result = await agent.run("Go.", labels=LABELS)
    nested, outer = result.calls
    assert nested.result.endswith(f"{nested.id} none {outer.id}") and nested.parent_call == outer.id


@pytest.mark.requirement("run.call.injected")
async def test_label_that_does_not_fit_is_error_that_names_field() -> None:
    agent, _ = scripted(calls("orders", customer="ann"), tools=[orders])
    (call,) = (await agent.run("Go.", labels={**LABELS, "limit": "many"})).calls
    assert call.failure is not None and (call.ok, call.failure.kind) == (False, "unavailable")
    assert "needs a value for limit, which you cannot set" in call.result and "integer" in call.result


@pytest.mark.requirement("run.call.injected")
async def test_label_that_is_missing_is_error_that_names_field() -> None:
    class Shop:
        """A set of tools says only when it is opened what it has, so that the run has begun by then."""

        async def open(self) -> list[Any]:
            return [orders]

        async def close(self) -> None: ...

    agent, _ = scripted(calls("orders", customer="ann"), tools=[Shop()])
    (call,) = (await agent.run("Go.", labels={"limit": "7"})).calls
    assert not call.ok and "needs a value for tenant" in call.result


async def test_neither_gate_nor_person_can_set_what_run_fills_in() -> None:
    @tool(effect="once", confirm="Look up {customer} of {tenant}?")
    def find(customer: str, tenant: Injected[str]) -> str:
        """Finds."""
        return f"{customer} of {tenant}"

    agent, _ = scripted(calls("find", customer="ann"), tools=[find])

    @agent.on(ToolGate)
    def other(gate: ToolGate) -> None:
        gate.args = {**gate.args, "customer": "bob", "tenant": "evil"}

    async with agent.stream("Go.", labels=LABELS) as run:
        assert isinstance(run, Run)
        question = await asked(run)
        assert question.question == "Look up bob of acme-secret?"
        await run.approve(question.id, args={"customer": "cas", "tenant": "evil"})
        (call,) = (await run.result()).calls
    assert call.result.startswith("cas of acme-secret")


@pytest.mark.requirement("run.start.required_labels")
async def test_run_without_required_labels_is_refused_with_all(tmp_path: Path) -> None:
    agent, model = scripted(tools=[orders], name="shop")
    async with Engine(tmp_path, agents=[agent]) as engine:
        with pytest.raises(InvalidRequest) as refused:
            await engine.start(agent, "Go.", labels={"region": "us"})
    assert (refused.value.code, refused.value.details["missing"]) == ("missing_labels", ["limit", "tenant"])
    assert "the labels 'limit', 'tenant'" in refused.value.message
    assert not model.requests


@pytest.mark.requirement("run.start.required_labels")
async def test_child_run_without_them_is_error_of_call() -> None:
    shop = Agent(selling := ScriptedModel(["sold"]), name="shop", tools=[orders])
    agent, _ = scripted(calls("shop", task="Sell."), tools=[shop.as_tool("Sells.")])
    (call,) = (await agent.run("Go.", labels={"limit": "7"})).calls
    assert not call.ok and "'tenant'" in call.result and not selling.requests


@pytest.mark.requirement("run.call.input")
async def test_tool_gets_everything_about_its_call_as_one_value(tmp_path: Path) -> None:
    seen: list[tuple[ToolContext, dict[str, Any]]] = []

    @tool(effect="read")
    def look(context: ToolContext, b: int, a: str = "x") -> str:
        """Looks."""
        seen.append((context, {"a": a, "b": b}))
        return "ok"

    class Eyes:
        name = "eyes"

        async def open(self) -> list[Any]:
            return [look]

        async def close(self) -> None: ...

    script = "export default await look({b: 2});"
    turns = [calls(("look", {"b": "1"}), ("code", {"code": script})), "Done."]
    agent = Agent(ScriptedModel(turns), name="watcher", tools=[Eyes(), code()])
    async with Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.", labels=LABELS, thread="t")
        result = await run.result()
        opened = {event.call_id: event async for event in run if isinstance(event, CallOpened)}
    (first, args), (nested, _) = seen
    by_id = {call.id: call for call in result.calls}
    assert (first.run_id, first.tool_name, first.toolset, first.labels) == (run.id, "look", "eyes", LABELS)
    assert (first.turn, first.parent_call, by_id[first.call_id].name) == (0, None, "look")
    assert first.agent_id == "watcher" and (first.thread_id or "").startswith("ses_")
    assert nested.parent_call == next(call.id for call in result.calls if call.name == "code")
    assert args == by_id[first.call_id].args == opened[first.call_id].args == {"a": "x", "b": 1}


def test_options_of_server_tools_only_are_refused_elsewhere() -> None:
    def find(tenant: Injected[str]) -> str:
        """Finds."""
        return tenant

    with pytest.raises(TypeError, match="only a tool of the server can have 'tenant' injected"):
        asyncio.run(client_tool(find).acquire())
