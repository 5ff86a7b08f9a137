"""Agents as tools of other agents: child runs, in memory and durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from agent.kit import key_of, workspace_of
from weftline import (
    Agent,
    Engine,
    Limits,
    RunContext,
    RunFailed,
    Settings,
    ToolContext,
    ToolFailed,
    prompts,
    spawn,
    tool,
)
from weftline.agent.hooking.around_calls import CHILD_POINTS
from weftline.events import AnyEvent, CallFinished, ChildEnded, ChildStarted, RunEnded, TextDelta
from weftline.hooks import ChildToolGate, McpToolGate, SpawnBefore, SpawnComplete, SpawnError, ToolAfter, ToolGate
from weftline.kernel.decide import decide
from weftline.kernel.state import Decision, State
from weftline.messages import Assistant, Text, ToolResults, Usage, User
from weftline.policies import Policy
from weftline.providers.base import Chunk, ModelRequest
from weftline.providers.catalog import Catalog
from weftline.runtime import ids, recovery
from weftline.runtime.fleet import driving
from weftline.runtime.fleet.lineage import Lineage
from weftline.store.rows import RunFilter
from weftline.testing import ScriptedModel, calls

PATIENCE_S = 60


def catalog(**models: ScriptedModel) -> Catalog:
    found = Catalog()
    for name, model in models.items():
        found.add(model, name=name)
    return found


def several(name: str, *tasks: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "args": {"task": task}} for task in tasks]}


def asked(requests: Sequence[ModelRequest]) -> list[str]:
    """What each conversation began with."""
    return [message.text for request in requests if isinstance(message := request.messages[0], User)]


class ByTask(ScriptedModel):
    """Plays one script per task: what a conversation begins with says which."""

    def __init__(self, scripts: dict[str, list[Any]]) -> None:
        super().__init__(["Not asked."])
        self._scripts = {task: ScriptedModel(turns) for task, turns in scripts.items()}

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        self.requests.append(replace(request, messages=list(request.messages)))
        return self._scripts[asked([request])[0]].stream(request)


async def children_of(engine: Engine, run_id: str) -> list[str]:
    events = [event async for event in engine.attach(run_id).events()]
    return [event.child_id for event in events if isinstance(event, ChildStarted)]


@pytest.mark.requirement("loop.spawn.inherit")
async def test_subagent_sees_its_task_and_returns_only_its_answer() -> None:
    inner = ScriptedModel(["42."])
    researcher = Agent(inner, name="researcher", instructions="You dig.")
    outer = ScriptedModel([calls("researcher", task="Why?"), "Because of 42."])
    agent = Agent(outer, instructions="You ask.", tools=[researcher.as_tool("Researches a question.")])
    result = await agent.run("Tell me.")
    assert result.text == "Because of 42."
    assert [(call.name, call.result, call.how) for call in result.calls] == [("researcher", "42.", "returned")]
    assert [type(message) for message in result.messages] == [User, Assistant, ToolResults, Assistant]
    (request,) = inner.requests
    assert (asked([request]), request.system, len(request.messages)) == (["Why?"], "You dig.", 1)
    (spec,) = outer.requests[0].tools
    assert (spec.name, spec.description) == ("researcher", "Researches a question.")


async def test_a_typed_answer_of_a_subagent_comes_as_json() -> None:
    counter = Agent(ScriptedModel(['{"value": 7}']), name="counter", output=int)
    agent = Agent(
        ScriptedModel([calls("how_many", task="Count."), "Seven."]), tools=[counter.as_tool("Counts.", name="how_many")]
    )
    result = await agent.run("Go.")
    assert [call.result for call in result.calls] == ["7"]


def test_a_subagent_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs one to be a tool"):
        Agent("m").as_tool("Helps.")
    assert Agent("m", name="My helper!").as_tool("Helps.").name == "My_helper_"


@pytest.mark.requirement("loop.spawn.inherit")
async def test_a_copy_inherits_model_settings_instructions_tools_and_hooks() -> None:
    seen: list[tuple[str, int, str | None]] = []

    @tool(effect="read")
    def look(context: ToolContext[str]) -> str:
        """Looks."""
        return f"nothing of {context.deps}"

    def instructions(context: RunContext[str]) -> str:
        return f"For {context.deps}, {context.run.depth} deep."

    model = ByTask({"Go.": [calls("spawn", task="Look."), "Seen."], "Look.": [calls("look"), "Nothing."]})
    settings = Settings(temperature=0.5)
    agent = Agent(model, deps=str, instructions=instructions, tools=[look, spawn()], settings=settings)

    @agent.on(ToolGate)
    def watch(gate: ToolGate, context: RunContext[str]) -> None:
        seen.append((gate.tool, context.run.depth, context.run.parent))

    result = await agent.run("Go.", deps="acme")
    assert result.text == "Seen."
    assert seen == [("spawn", 0, None), ("look", 1, result.run_id)]
    assert asked(model.requests) == ["Go.", "Look.", "Look.", "Go."]
    assert [request.system for request in model.requests[:2]] == ["For acme, 0 deep.", "For acme, 1 deep."]
    assert {request.temperature for request in model.requests} == {0.5}
    assert {tuple(spec.name for spec in request.tools) for request in model.requests} == {("look", "spawn")}
    found = model.requests[2].messages[-1]
    assert isinstance(found, ToolResults) and found.results[0].parts[0] == Text("nothing of acme")


async def test_a_copy_can_be_restricted_and_given_other_instructions() -> None:
    @tool(effect="read")
    def look() -> str:
        """Looks."""
        return "nothing"

    @tool
    def pay() -> str:
        """Pays."""
        raise AssertionError("a subagent must not pay")

    model = ByTask(
        {
            "Go.": [calls("spawn", task="Look.", system="You are a spy."), "Seen."],
            "Look.": [calls("pay"), "I cannot."],
        }
    )
    agent = Agent(model, instructions="You are kind.", tools=[look, pay, spawn(tools=["look"])])
    await agent.run("Go.")
    child = [request for request in model.requests if asked([request]) == ["Look."]]
    assert [request.system for request in child] == ["You are a spy."] * 2
    assert [spec.name for spec in child[0].tools] == ["look"]
    refused = child[1].messages[-2]  # a reminder follows
    assert isinstance(refused, ToolResults) and refused.results[0].is_error


@pytest.mark.requirement("loop.spawn.result", "loop.agent.result")
async def test_result_has_a_header_and_rolled_up_usage() -> None:
    def turn(words: Any, tokens: int) -> dict[str, Any]:
        said = {"text": words} if isinstance(words, str) else words
        return {**said, "usage": {"input": tokens, "output": 1}}

    model = ByTask(
        {
            "Go.": [turn(calls("spawn", task="Down."), 1), turn("Done.", 10)],
            "Down.": [turn(calls("spawn", task="Deeper."), 100), turn("Down there.", 1_000)],
            "Deeper.": [turn("Deep.", 10_000)],
        }
    )
    result = await Agent(model, tools=[spawn()]).run("Go.")
    assert result.usage == Usage(input=11_111, output=5)
    assert result.turns == 2
    (call,) = result.calls
    header, _, text = call.result.partition("\n")
    assert text == "Down there."
    assert header.startswith("[turns: 2, ms: ") and header.endswith(", tokens: 11103]")


@pytest.mark.requirement("run.usage.rollup")
async def test_run_reports_its_own_usage_and_the_total(tmp_path: Path) -> None:
    def turn(words: Any, tokens: int) -> dict[str, Any]:
        said = {"text": words} if isinstance(words, str) else words
        return {**said, "usage": {"input": tokens, "output": 1}}

    hanging = Hanging()
    broken = {"error": {"class": "auth", "message": "bad key", "retryable": False}}
    model = ByTask(
        {
            "Go.": [turn(several("spawn", "deep", "fails", "hangs"), 1), turn("Done.", 2)],
            "deep": [turn(calls("spawn", task="deeper"), 10), turn("Deep.", 20)],
            "deeper": [turn("Deeper.", 100)],
            "fails": [turn(calls("look"), 1_000), broken],
            "hangs": [turn(calls("hang"), 10_000), "Never."],
        }
    )
    agent = Agent("lab:script", name="top", tools=[spawn(), hanging.tool, look])
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent], models=catalog(lab=model)) as engine:
        run = await engine.start(agent, "Go.")
        await hanging.begun.wait()
        async for event in run.events():
            if isinstance(event, ChildStarted):
                began = await engine.attach(event.child_id).entries(limit=1)
                if "hangs" in str(began.entries[0].body):
                    await engine.attach(event.child_id).cancel()
                    break
        result = await run.result()
        children = [event async for event in run.events(children=True) if isinstance(event, ChildEnded)]
    totals = {event.child_id: event.usage for event in children}
    below = [event.usage for event in children if event.run_id == run.id]
    assert len(totals) == 4 and {event.status for event in children} == {"succeeded", "failed", "cancelled"}
    assert result.own_usage == Usage(input=3, output=2)
    assert result.usage.input == 3 + 30 + 100 + 1_000 + 10_000, "each call once"
    assert result.usage == result.own_usage + below[0] + below[1] + below[2]


@tool(effect="read")
def look() -> str:
    """Looks."""
    return "Seen."


@pytest.mark.requirement("loop.spawn.limits")
async def test_a_subagent_beyond_the_depth_is_refused_with_a_text() -> None:
    model = ByTask(
        {
            "Go.": [calls("spawn", task="1"), "Top."],
            "1": [calls("spawn", task="2"), "One."],
            "2": [calls("spawn", task="3"), "Two."],
        }
    )
    result = await Agent(model, tools=[spawn()], limits=Limits(max_depth=2)).run("Go.")
    assert result.status == "succeeded"
    refused = [request for request in model.requests if asked([request]) == ["2"]][1].messages[-1]
    assert isinstance(refused, ToolResults)
    assert (refused.results[0].is_error, refused.results[0].parts[0]) == (True, Text(prompts.subagents.too_deep(2)))


async def test_spawned_subagent_respects_its_parents_depth() -> None:
    model = ByTask({"Go.": [calls("deep", task="1"), "Top."], "1": [calls("spawn", task="2"), "One."]})
    deep = Agent(model, name="deep", tools=[spawn()], limits=Limits(max_depth=99))
    await Agent(model, tools=[deep.as_tool("Goes deep.")], limits=Limits(max_depth=1)).run("Go.")
    assert asked(model.requests) == ["Go.", "1", "1", "Go."]


@pytest.mark.requirement("loop.spawn.limits")
async def test_three_subagents_work_at_once_and_further_ones_wait() -> None:
    at_work, now, most = asyncio.Barrier(3), 0, 0

    @tool(effect="read")
    async def meet() -> str:
        """Waits for the others."""
        nonlocal now, most
        now += 1
        most = max(most, now)
        await at_work.wait()
        now -= 1
        return "met"

    worker = Agent(ScriptedModel([calls("meet"), "Met."]), name="worker", tools=[meet])
    model = ScriptedModel([several("worker", "1", "2", "3", "4", "5", "6"), "Done."])
    async with asyncio.timeout(PATIENCE_S):
        result = await Agent(model, tools=[worker.as_tool("Works.")]).run("Go.")
    assert [(call.how, call.result) for call in result.calls] == [("returned", "Met.")] * 6
    assert most == 3


async def test_a_parent_that_waits_takes_no_place_from_its_children() -> None:
    model = ByTask({"Go.": [calls("spawn", task="1"), "Top."], "1": [calls("spawn", task="2"), "One."], "2": ["Two."]})
    agent = Agent(model, name="nested", tools=[spawn()])
    async with asyncio.timeout(PATIENCE_S), Engine(max_runs=1) as engine:
        assert (await agent.run("Go.", engine=engine)).text == "Top."


@pytest.mark.requirement("loop.spawn.hooks")
async def test_hooks_hear_of_subagents_and_failed_one_is_error_result() -> None:
    told: list[str] = []
    model = ByTask(
        {
            "Go.": [several("spawn", "good", "bad"), "Done."],
            "good": ["Fine."],
            "bad": [{"error": {"class": "invalid_request", "message": "No such thing."}}],
        }
    )
    agent = Agent(model, tools=[spawn()])

    @agent.on(SpawnBefore)
    def before(point: SpawnBefore) -> None:
        told.append(f"before {point.task}")

    @agent.on(SpawnComplete)
    def complete(point: SpawnComplete) -> None:
        told.append(f"complete {point.text} {point.turns} {point.usage.output > 0} {point.child_id[:4]}")

    @agent.on(SpawnError)
    def error(point: SpawnError) -> None:
        told.append(f"error {point.error} {point.code}")

    @agent.on(ToolAfter)
    def after(point: ToolAfter) -> None:
        told.append(f"after {point.tool} {point.is_error}")

    result = await agent.run("Go.")
    assert result.text == "Done."
    results = {call.ok: call.result for call in result.calls}
    assert results[False] == prompts.subagents.child_failed("spawn", "No such thing.")
    assert sorted(told) == [
        "after spawn False",
        "after spawn True",
        "before bad",
        "before good",
        "complete Fine. 1 True run_",
        "error No such thing. invalid_request",
    ]


@pytest.mark.requirement("loop.spawn.bubble")
async def test_events_of_nested_children_reach_hooks_above() -> None:
    @tool(effect="read")
    def look() -> str:
        """Looks."""
        raise ToolFailed("too dark")

    told: list[tuple[str, int]] = []
    model = ByTask(
        {
            "Go.": [calls("deep", task="1"), "Top."],
            "1": [calls("deeper", task="2"), "One."],
            "2": [{"thinking": ["Hm."], **calls("look")}, "Two."],
        }
    )
    deeper = Agent(model, name="deeper", tools=[look], settings=Settings(reasoning="high"))
    deep = Agent(model, name="deep", tools=[deeper.as_tool("Goes deeper.")])
    agent = Agent(model, tools=[deep.as_tool("Goes deep.")])
    kinds = [kind for own, kind in CHILD_POINTS.items() if own is not McpToolGate]
    for kind in kinds:

        @agent.on(kind)
        def heard(point: Any) -> None:
            told.append((point.name, point.depth))

    assert (await agent.run("Go.")).text == "Top."
    assert {name for name, depth in told if depth == 2} == {kind.name for kind in kinds}
    assert {depth for _, depth in told} == {1, 2}
    assert ("child_stream_text", 1) in told


@pytest.mark.requirement("loop.spawn.bubble")
@pytest.mark.parametrize("does", ["block", "answer", "raise", "change"])
async def test_gate_above_decides_on_a_childs_call(does: str) -> None:
    @tool(effect="once")
    def pay(amount: int) -> str:
        """Pays."""
        return f"Paid {amount}."

    model = ByTask(
        {
            "Go.": [calls("deep", task="1"), "Top."],
            "1": [calls("deeper", task="2"), "One."],
            "2": [calls("pay", amount=5), "Two."],
        }
    )
    deeper = Agent(model, name="deeper", tools=[pay])
    deep = Agent(model, name="deep", tools=[deeper.as_tool("Goes deeper.")])
    agent = Agent(model, tools=[deep.as_tool("Goes deep.")])

    @deeper.on(ToolGate)
    def generous(gate: ToolGate) -> None:
        if does == "block":
            gate.answer("Paid by me.")  # blocking beats it

    @agent.on(ChildToolGate)
    def strict(gate: ChildToolGate) -> None:
        assert gate.child_id.startswith("run_")
        if gate.tool != "pay":
            return
        match does:
            case "block":
                gate.block("Not today.")
            case "answer":
                gate.answer("Paid by somebody else.")
            case "change":
                gate.args = {"amount": 1}
            case _:
                raise RuntimeError("broken gate")

    await agent.run("Go.")
    (result,) = [
        result
        for request in model.requests
        if asked([request]) == ["2"] and isinstance(last := request.messages[-1], ToolResults)
        for result in last.results
    ]
    words = {
        "block": prompts.calls.blocked("Not today."),
        "answer": "Paid by somebody else.",
        "raise": prompts.calls.blocked(prompts.calls.gate_failed("pay")),
        "change": "Paid 1.",
    }
    assert result.parts == (Text(words[does]),)


async def test_events_of_children_come_between_those_of_their_parent() -> None:
    model = ByTask(
        {
            "Go.": [several("spawn", "a", "b"), "Top."],
            "a": [calls("spawn", task="c"), "A."],
            "b": ["B."],
            "c": ["C."],
        }
    )
    agent = Agent(model, name="nested", tools=[spawn()])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.")
        events = [event async for event in run.events(children=True)]
        again = [event async for event in run.events(children=True)]
        own = [event async for event in run.events()]
        rest = [event async for event in run.events(children=True, after=own[-2].seq)]
    check_nested(events, run.id)
    check_nested(again, run.id)
    assert [event for event in events if event.run_id == run.id] == own
    assert {event.text for event in events if isinstance(event, TextDelta)} >= {"A.", "B.", "C.", "Top."}
    assert rest == own[-1:]
    assert len({event.run_id for event in events}) == 4


def check_nested(events: Sequence[AnyEvent], root: str) -> None:
    started: dict[str, int] = {root: -1}
    ended: dict[str, int] = {}
    for position, event in enumerate(events):
        assert event.run_id in started and event.run_id not in ended
        if isinstance(event, ChildStarted):
            started[event.child_id] = position
        if isinstance(event, RunEnded):
            ended[event.run_id] = position
        if isinstance(event, ChildEnded):
            assert event.child_id in ended
    assert set(ended) == set(started)
    for run_id in ended:
        seqs = [event.seq for event in events if event.run_id == run_id]
        assert seqs == sorted(set(seqs))


async def test_leaving_a_follower_of_children_leaves_nothing_behind() -> None:
    model = ByTask({"Go.": [calls("spawn", task="a"), "Top."], "a": ["A."]})
    agent = Agent(model, tools=[spawn()])
    before = asyncio.all_tasks()
    async with asyncio.timeout(PATIENCE_S), agent.stream("Go.") as run:
        events = run.events(children=True)
        async for event in events:
            if event.run_id != run.id:
                break
        await events.aclose()  # type: ignore[attr-defined]
        result = await run.result()
    assert result.text == "Top."
    assert not [task for task in asyncio.all_tasks() - before if "_Merged" in repr(task)]


# Stopping


class Hanging:
    """A tool that waits until it is let go, and says when it began."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.free = asyncio.Event()
        self.stopped = 0

        @tool(effect="read", name="hang")
        async def hang() -> str:
            """Hangs."""
            self.begun.set()
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                self.stopped += 1
                raise
            return "free"

        self.tool = hang


def nested(hanging: Hanging) -> tuple[Agent, ByTask]:
    model = ByTask(
        {
            "Go.": [calls("spawn", task="1"), "Top."],
            "1": [calls("spawn", task="2"), "One."],
            "2": [calls("hang"), "Two."],
        }
    )
    return Agent("lab:script", name="nested", tools=[spawn(), hanging.tool]), model


@pytest.mark.requirement("loop.abort.at_once")
@pytest.mark.parametrize("durable", [False, True])
async def test_cancel_reaches_children_at_every_depth_before_parent_ends(durable: bool, tmp_path: Path) -> None:
    hanging = Hanging()
    agent, model = nested(hanging)
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path if durable else None, models=catalog(lab=model)) as engine:
            run = await engine.start(agent, "Go.")
            await hanging.begun.wait()
            (child,) = await children_of_running(engine, run.id)
            (grandchild,) = await children_of_running(engine, child)
            receipt = await run.cancel()
            assert receipt.status == "cancelled"
            results = [await engine.attach(one).result() for one in (grandchild, child, run.id)]
    assert [result.status for result in results] == ["cancelled"] * 3
    assert [result.reason for result in results] == ["parent", "parent", "user"]
    assert hanging.stopped == 1
    assert [call.how for call in results[2].calls] == ["cancelled"]


async def children_of_running(engine: Engine, run_id: str) -> list[str]:
    async for event in engine.attach(run_id).events():
        if isinstance(event, ChildStarted):
            return [event.child_id]
    return []


async def test_leaving_a_run_in_memory_ends_its_children_too() -> None:
    hanging = Hanging()
    agent, model = nested(hanging)
    async with asyncio.timeout(PATIENCE_S):
        with agent.override(model=model):
            task = asyncio.create_task(agent.run("Go."))
            await hanging.begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert hanging.stopped == 1


async def test_cancelled_child_is_error_result_and_its_parent_goes_on(tmp_path: Path) -> None:
    hanging = Hanging()
    agent, model = nested(hanging)
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, models=catalog(lab=model)) as engine:
        run = await engine.start(agent, "Go.")
        await hanging.begun.wait()
        (child,) = await children_of_running(engine, run.id)
        await engine.attach(child).cancel()
        result = await run.result()
    assert result.text == "Top."
    assert [(call.how, call.result) for call in result.calls] == [
        ("failed", prompts.subagents.child_cancelled("spawn"))
    ]


async def test_a_pause_and_a_resume_reach_children(tmp_path: Path) -> None:
    hanging = Hanging()
    agent, model = nested(hanging)
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, models=catalog(lab=model)) as engine:
        run = await engine.start(agent, "Go.")
        await hanging.begun.wait()
        await run.pause("Wait.")
        await run.pause("Wait.")
        (child,) = await children_of_running(engine, run.id)
        (grandchild,) = await children_of_running(engine, child)
        hanging.free.set()
        async for event in engine.attach(grandchild).events():
            if isinstance(event, CallFinished):
                break
        host = await engine.runtime()
        rows = [
            await host.stored.find(one, workspace=await workspace_of(engine)) for one in (run.id, child, grandchild)
        ]
        assert [row.status for row in rows] == ["paused"] * 3
        before = len(model.requests)
        await run.resume()
        assert (await run.result()).text == "Top."
    assert len(model.requests) == before + 3


async def test_pause_during_a_resume_pauses_all_or_none(tmp_path: Path) -> None:
    hanging = Hanging()
    agent, model = nested(hanging)
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, models=catalog(lab=model)) as engine:
        run = await engine.start(agent, "Go.")
        await hanging.begun.wait()
        await run.pause()
        await asyncio.gather(run.resume(), run.pause())
        await run.resume()
        hanging.free.set()
        assert (await run.result()).text == "Top."


async def test_a_resume_that_got_no_answer_can_be_sent_again(tmp_path: Path) -> None:
    """Its caller, or the process, was gone halfway: a parent that went on would wait for children that never do."""
    hanging = Hanging()
    agent, model = nested(hanging)
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, models=catalog(lab=model)) as engine:
        run = await engine.start(agent, "Go.")
        await hanging.begun.wait()
        await run.pause("Wait.")
        hanging.free.set()
        interrupted = asyncio.create_task(run.resume())
        await asyncio.sleep(0)  # it has said so to the first of them
        interrupted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await interrupted
        await run.resume()
        assert (await run.result()).text == "Top."


async def test_children_of_an_abandoned_run_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would read what they come to, and they may wait for ever."""
    monkeypatch.setattr(recovery, "RETRY_S", 0.0)

    def buggy(state: State) -> Decision:
        if state.parent is None and not state.broken:
            raise ValueError("a bug")
        return decide(state)

    hanging = Hanging()
    agent, model = nested(hanging)
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, models=catalog(lab=model)) as engine:
        run = await engine.start(agent, "Go.")
        await hanging.begun.wait()
        (child,) = await children_of_running(engine, run.id)
        monkeypatch.setattr(driving, "decide", buggy)
        await run.follow_up("Are you there?")
        with pytest.raises(RunFailed):
            await run.result()
        assert (await engine.attach(child).result()).status == "cancelled"
    assert hanging.stopped == 1


# Surviving


async def test_children_continue_in_the_next_process_without_repeats(tmp_path: Path) -> None:
    first = Hanging()
    agent, model = nested(first)
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, models=catalog(lab=model), drain_s=0.05) as engine:
            run = await engine.start(agent, "Go.")
            await first.begun.wait()
        second = Hanging()
        second.free.set()
        today, _ = nested(second)
        async with Engine(tmp_path, agents=[today], models=catalog(lab=model), drain_s=0.05) as engine:
            assert await engine.unclaimed() == []
            result = await engine.attach(run.id).result()
    assert result.text == "Top."
    assert [call.result.partition("\n")[2] for call in result.calls] == ["One."]
    assert asked(model.requests) == ["Go.", "1", "2", "2", "1", "Go."]


async def test_parent_is_unattended_until_its_childs_first_note(tmp_path: Path) -> None:
    """The note makes the row that of the new process, which nobody could tell from one that was there all the time."""

    def both(hanging: Hanging) -> tuple[Agent, ByTask]:
        model = ByTask({"Go.": [calls("spawn", task="1"), "Top."], "1": [calls("hang"), calls("hang"), "One."]})
        policy = Policy(time_budget_s=3600)
        return Agent("lab:script", name="parent", tools=[spawn(), hanging.tool], policy=policy), model

    first, second = Hanging(), Hanging()
    agent, model = both(first)
    second.free.set()
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, models=catalog(lab=model), drain_s=0.05) as engine:
            run = await engine.start(agent, "Go.")
            await first.begun.wait()
        async with Engine(tmp_path, agents=[both(second)[0]], models=catalog(lab=model)) as engine:
            assert (await engine.attach(run.id).result()).text == "Top."
            page = await engine.store.log.page(ids.key_of(run.id), after=0, max_bytes=2**20)
    assert page is not None
    kinds = [item.kind for item in page.items]
    notes = [place for place, kind in enumerate(kinds) if kind == "note.child"]
    assert len(notes) == 2 and "run.unattended" in kinds[notes[0] : notes[1]]


async def test_parent_outside_memory_is_notified_of_its_childs_end(tmp_path: Path) -> None:
    hanging = Hanging()
    agent, model = nested(hanging)
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, models=catalog(lab=model), drain_s=0.05) as engine:
            run = await engine.start(agent, "Go.")
            await hanging.begun.wait()
            (child,) = await children_of_running(engine, run.id)
        async with Engine(tmp_path, models=catalog(lab=model), drain_s=0.05) as engine:  # nobody knows the agent
            assert len(await engine.unclaimed()) == 3
            await engine.attach(child).cancel()
            assert await engine.unclaimed() == [run.id]
        async with Engine(tmp_path, agents=[agent], models=catalog(lab=model), drain_s=0.05) as engine:
            result = await engine.attach(run.id).result()
    assert [call.result for call in result.calls] == [prompts.subagents.child_cancelled("spawn")]


async def test_missing_subagent_fails_with_a_reason(tmp_path: Path) -> None:
    hanging = Hanging()
    worker = Agent("lab:script", name="worker", tools=[hanging.tool])
    model = ByTask({"Go.": [calls("worker", task="1"), "Top."], "1": [calls("hang"), "One."]})
    agent = Agent("lab:script", name="boss", tools=[worker.as_tool("Works.")])
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, models=catalog(lab=model), drain_s=0.05) as engine:
            run = await engine.start(agent, "Go.")
            await hanging.begun.wait()
        alone = Agent("lab:script", name="boss")
        async with Engine(tmp_path, agents=[alone], models=catalog(lab=model), drain_s=0.05) as engine:
            result = await engine.attach(run.id).result()
    assert result.text == "Top."
    assert [call.ok for call in result.calls] == [False]
    assert "no subagent 'worker' any more" in result.calls[0].result


async def test_subagent_without_deps_gets_those_of_its_parent() -> None:
    @tool(effect="read")
    def whose(context: ToolContext[str]) -> str:
        """Says whose it is."""
        return context.deps

    model = ByTask({"Go.": [calls("worker", task="1"), "Top."], "1": [calls("whose"), "One."]})
    worker = Agent(model, name="worker", deps=str, tools=[whose])
    await Agent(model, deps=str, tools=[worker.as_tool("Works.")]).run("Go.", deps="acme")
    found = [request.messages[-1] for request in model.requests if asked([request]) == ["1"]][-1]
    assert isinstance(found, ToolResults) and found.results[0].parts == (Text("acme"),)


async def test_subagent_with_other_deps_fails_with_a_reason() -> None:
    worker = Agent(ScriptedModel(["Never."]), name="worker", deps=str)
    model = ScriptedModel([calls("worker", task="1"), "Top."])
    tools = [worker.as_tool("Works.")]
    without = await Agent(model, tools=tools).run("Go.")
    other = await Agent(model, deps=int, tools=tools).run("Go.", deps=3)
    for result, kind in ((without, "NoneType"), (other, "int")):
        (call,) = result.calls
        assert not call.ok and f"deps are of the type str, not {kind}" in call.result and result.text == "Top."


async def test_a_subagent_whose_model_is_missing_is_an_error_result() -> None:
    worker = Agent("lab:nowhere", name="worker")
    model = ScriptedModel([calls("worker", task="1"), "Top."])
    async with Engine(models=catalog(lab=model)) as engine:
        result = await Agent("lab:script", tools=[worker.as_tool("Works.")]).run("Go.", engine=engine)
    assert result.text == "Top."
    assert (result.calls[0].how, result.calls[0].ok) == ("failed", False)
    assert "could not be started" in result.calls[0].result


async def test_cancel_that_was_cut_off_reaches_children_in_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = asyncio.Event()

    async def dies_first(lineage: Lineage, children: Sequence[str], *, by: str = "") -> None:
        """As if the process had died between the parent's fact and the children's."""
        died.set()

    hanging = Hanging()
    agent, model = nested(hanging)
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, models=catalog(lab=model), drain_s=0.05) as engine:
            run = await engine.start(agent, "Go.")
            await hanging.begun.wait()
            with monkeypatch.context() as patched:
                patched.setattr(Lineage, "cancel", dies_first)
                cancelling = asyncio.create_task(run.cancel())
                await died.wait()
                cancelling.cancel()
        async with Engine(tmp_path, models=catalog(lab=model), drain_s=0.05) as engine:  # not even the agent is needed
            results = [await engine.attach(run.id).result()]
            for _ in range(2):
                (child,) = await children_of(engine, results[-1].run_id)
                results.append(await engine.attach(child).result())
    assert [result.status for result in results] == ["cancelled"] * 3


async def test_child_of_an_abandoned_parent_is_cancelled_on_return(tmp_path: Path) -> None:
    hanging = Hanging()
    agent, model = nested(hanging)
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, models=catalog(lab=model), drain_s=0.05) as engine:
            run = await engine.start(agent, "Go.")
            await hanging.begun.wait()
            (child,) = await children_of_running(engine, run.id)
            host: Any = await engine.runtime()
            host._recovery._give_up(await host._load(await key_of(engine, run.id)))
            with pytest.raises(RunFailed):
                await run.result()
        async with Engine(tmp_path, agents=[agent], models=catalog(lab=model), drain_s=0.05) as engine:
            assert (await engine.attach(child).result()).status == "cancelled"


async def test_children_of_runs_in_memory_are_forgotten_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weftline.agent.engine.logs.MAX_RETAINED", 1)
    model = ByTask({"Go.": [calls("spawn", task="1"), "Top."], "1": [calls("spawn", task="2"), "One."], "2": ["Two."]})
    agent = Agent(model, tools=[spawn()])
    async with Engine() as engine:
        for _ in range(4):
            await agent.run("Go.", engine=engine)
        host = await engine.runtime()
        assert len(await host.stored.logs.runs(RunFilter(limit=99))) == 3


@pytest.mark.parametrize("column", ["head", "body"])
async def test_child_with_an_unreadable_end_fails_and_its_parent_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    ended = asyncio.Event()

    def dies_first(lineage: Lineage, child: object, write: object) -> bool:
        """As if the process had died before the parent heard of it."""
        ended.set()
        return True

    worker = Agent("lab:script", name="worker")
    model = ByTask({"Go.": [calls("worker", task="1"), "Top."], "1": ["One."]})
    agent = Agent("lab:script", name="top", tools=[worker.as_tool("Works.")])
    async with asyncio.timeout(PATIENCE_S):
        with monkeypatch.context() as patched:
            patched.setattr(Lineage, "hand_over", dies_first)
            async with Engine(tmp_path, agents=[agent], models=catalog(lab=model)) as engine:
                run = await engine.start(agent, "Go.")
                await ended.wait()
        db = apsw.Connection(str(tmp_path / "weftline.db"))
        db.execute(f"UPDATE entries SET {column} = x'7b' WHERE kind = 'run.ended'")  # pyright: ignore[reportUnknownMemberType]
        db.close()
        async with Engine(tmp_path, agents=[agent], models=catalog(lab=model)) as engine:
            result = await engine.attach(run.id).result()
    assert (result.text, [(call.how, call.ok) for call in result.calls]) == ("Top.", [("failed", False)])
    assert "cannot be read" in result.calls[0].result
