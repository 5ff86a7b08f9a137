"""The run that carries out a subagent's call: what it begins with, where it is listed, what its parent's log says."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, RunContext, ToolContext, spawn, tool
from weftline.agent.engine import engine as library
from weftline.agent.run import Run
from weftline.details import ChildRunLinked, ToolCallUpdated
from weftline.errors import Conflict
from weftline.events import AwaitOpened, CallFinished, CallOpened, ChildEnded, RunEnded
from weftline.hooks import BeforeModel, SpawnBefore
from weftline.messages import Assistant, User
from weftline.policies import Policy
from weftline.runs import RunInfo
from weftline.runtime import ids
from weftline.store.base import Store
from weftline.store.rows import RunFilter
from weftline.testing import ScriptedModel, calls

PATIENCE_S = 60
GIVEN: Any = {
    "turn_id": "turn-7",
    "labels": {"tenant": "acme"},
    "metadata": {"ticket": [1]},
    "policy": Policy(max_tool_calls=5, denied_tags=["costly"]),
}


class Family:
    """A boss that asks a helper, who asks a clerk; and what the runs below know of themselves."""

    def __init__(self, **options: Any) -> None:
        self.infos: list[RunInfo] = []
        self.contexts: list[ToolContext] = []

        @tool(effect="read")
        def look(context: ToolContext) -> str:
            """Looks."""
            self.contexts.append(context)
            return "seen"

        clerk = Agent(ScriptedModel([calls("look"), "Looked."]), name="clerk", tools=[look])
        self.model = ScriptedModel([calls("clerk", task="Look."), "Helped."])
        helper = Agent(self.model, name="helper", tools=[clerk.as_tool("Looks.", **options)])
        self.boss = Agent(
            ScriptedModel([calls("ask_helper", task="Help."), "Done."]),
            name="boss",
            tools=[helper.as_tool("Helps.", name="ask_helper", **options)],
        )

        def begun(_: BeforeModel, context: RunContext[Any]) -> None:
            if context.run not in self.infos:
                self.infos.append(context.run)

        for agent in (helper, clerk):
            agent.on(BeforeModel)(begun)


async def plan_of(engine: Engine, run_id: str) -> dict[str, Any]:
    """What the run was given, with its limits, which are in the head of its first entry."""
    page = await engine.attach(run_id).entries(limit=1)
    head, body = page.entries[0].head, page.entries[0].body
    assert head is not None
    return {"limits": head["limits"], **body["plan"]}


@pytest.mark.requirement("run.child.start")
@pytest.mark.parametrize("durable", [True, False])
async def test_child_begins_with_its_call_in_its_parents_thread(durable: bool, tmp_path: Path) -> None:
    family = Family()
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path if durable else None, agents=[family.boss]) as engine:
        run = await engine.start(family.boss, "Go.", thread="t", **GIVEN)
        result = await run.result()
        (call,) = result.calls
        helper, clerk = family.infos
        assert len({run.id, helper.id, clerk.id}) == 3
        assert (helper.parent, helper.parent_agent, helper.parent_call) == (run.id, "boss", call.id)
        assert (helper.tool, helper.tool_args) == ("ask_helper", call.args) and call.args == {"task": "Help."}
        assert (clerk.parent, clerk.parent_agent, clerk.tool) == (helper.id, "helper", "clerk")
        snapshot = await run.snapshot()
        for below in (helper, clerk):
            assert (below.thread_id, below.turn_id) == (snapshot.thread, "turn-7")
            assert (below.labels, below.metadata) == ({"tenant": "acme"}, {})
            own = await engine.attach(below.id).snapshot()
            assert (own.thread, own.turn_id, own.labels) == (snapshot.thread, "turn-7", {"tenant": "acme"})
            plan = await plan_of(engine, below.id)
            assert plan["limits"]["policy"] is None and plan["own_policy"] is None, "the run's is its own"
            assert plan["metadata"] == {} and len(plan["messages"]) == 1
        (context,) = family.contexts
        assert (context.thread_id, context.metadata, context.labels) == (snapshot.thread, {}, {"tenant": "acme"})
        # They are listed with the thread, and neither their messages nor they themselves are in its way.
        host, thread = await engine.runtime(), ids.parse(snapshot.thread or "", prefix="ses_")
        assert thread is not None
        rows = await host.stored.logs.runs(RunFilter(thread=thread[0], with_children=True))
        assert [ids.run_id(row.key, row.salt) for row in rows] == [clerk.id, helper.id, run.id]
        assert [row.key for row in await host.stored.logs.runs(RunFilter(thread=thread[0]))] == [ids.key_of(run.id)]
        said = [one.text for one in await engine.thread("t").messages() if isinstance(one, User | Assistant)]
        assert "Go." in said and "Done." in said
        assert not {"Help.", "Helped.", "Look.", "Looked."} & set(said)
        again = await engine.start(family.boss, "And now?", thread="t")
        assert (await again.result()).text == "Done."
        await (await engine.start(family.boss, "Go.")).result()
        assert [info.thread_id for info in family.infos[2:]] == [*[snapshot.thread] * 2, None, None]


@pytest.mark.requirement("run.child.start")
async def test_run_policy_is_inherited_where_the_tool_says_so(tmp_path: Path) -> None:
    family = Family(inherit_policy=True)
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[family.boss]) as engine:
        await (await engine.start(family.boss, "Go.", **GIVEN)).result()
        for below in family.infos:
            policy = (await plan_of(engine, below.id))["limits"]["policy"]
            assert (policy["max_tool_calls"], policy["denied_tags"]) == (5, ["costly"])
        family.infos.clear()
        await (await engine.start(family.boss, "Go.")).result()
        assert (await plan_of(engine, family.infos[0].id))["limits"]["policy"] is None


async def test_policy_that_is_handed_down_stays_within_agents_own() -> None:
    helper = Agent(ScriptedModel(["Helped."]), name="helper", policy=Policy(max_tool_calls=2, tool_timeout_s=3))
    tools = [helper.as_tool("Helps.", inherit_policy=True)]
    boss = Agent(ScriptedModel([calls("helper", task="Help."), "Done."]), name="boss", tools=tools)
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(boss, "Go.", policy=Policy(max_tool_calls=9, per_turn_max_tool_calls=4))
        result = await run.result()
        assert result.calls[0].child is not None
        policy = (await plan_of(engine, result.calls[0].child.run_id))["limits"]["policy"]
    assert (policy["max_tool_calls"], policy["per_turn_max_tool_calls"]) == (2, 4)
    assert policy["tool_timeout_us"] == 3_000_000


async def test_copy_of_agent_has_policy_that_it_was_itself_given() -> None:
    model = ScriptedModel([calls("spawn", task="You do it."), "Copied.", "Done."])
    agent = Agent(model, name="boss", tools=[spawn()])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.", policy=Policy(max_tool_calls=9), metadata={"a": 1})
        result = await run.result()
        assert result.calls[0].child is not None
        plan = await plan_of(engine, result.calls[0].child.run_id)
    assert plan["limits"]["policy"]["max_tool_calls"] == plan["own_policy"]["max_tool_calls"] == 9
    assert plan["metadata"] == {}


@tool(effect="read")
def look(n: int = 0) -> str:
    """Looks."""
    return "seen"


@tool(effect="once", confirm="Really?")
def pay() -> str:
    """Pays."""
    return "Paid."


@pytest.mark.requirement("run.child.linked")
async def test_parent_log_has_call_link_growth_and_result(
    tmp_path: Path,
) -> None:
    turns = [calls("look", n=1), calls(("look", {"n": 2}), ("look", {"n": 3})), calls("pay"), "Helped."]
    helper = Agent(ScriptedModel(turns), name="helper", tools=[look, pay], limits=Limits(loop_soft=0))
    tools = [helper.as_tool("Helps.", name="ask_helper")]
    boss = Agent(ScriptedModel([calls("ask_helper", task="Help."), "Done."]), name="boss", tools=tools)
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, agents=[boss]) as engine:
            run = await engine.start(boss, "Go.")
            await asked_below(run)
        async with Engine(tmp_path, agents=[boss]) as engine:  # the last growth and the end are another process's
            (question,) = await engine.awaits()
            run = engine.attach(run.id)
            await run.below(question.run_id).approve(question.id)
            result = await run.result()
            (call,) = result.calls
            events = [event async for event in run.events(profile="all")]
            late = [event async for event in run.events(profile="all", after=events[6].seq)]
            entries = (await run.entries(limit=1000)).entries
            child = engine.attach(question.run_id)
            last = (await child.entries(limit=1000)).entries[-1]
    kinds = (CallOpened, ChildRunLinked, ToolCallUpdated, ChildEnded, CallFinished)
    told: list[Any] = [event for event in events if isinstance(event, kinds)]
    assert [type(event) for event in told] == [
        CallOpened,
        ChildRunLinked,
        ToolCallUpdated,
        ToolCallUpdated,
        ToolCallUpdated,
        ChildEnded,
        CallFinished,
    ]
    link, *grown = told[1:5]
    assert (link.name, link.call_id, link.child_id, link.child_agent) == ("ask_helper", call.id, child.id, "ask_helper")
    assert [(one.call_id, one.expected_children) for one in grown] == [(call.id, 1), (call.id, 3), (call.id, 4)]
    assert late == events[7:] and {event.run_id for event in events} == {run.id}
    assert len({event.key for event in grown}) == 3
    # The child's entries are in its log alone, and its terminal one comes before the result.
    assert not any(entry.kind in ("call.opened", "call.closed") and "look" in str(entry.head) for entry in entries)
    (closed,) = [entry for entry in entries if entry.kind == "call.closed"]
    assert last.kind == "run.ended" and last.at <= closed.at
    assert isinstance(events[-1], RunEnded)


async def asked_below(run: Run[Any]) -> None:
    async for event in run.events(children=True):
        if isinstance(event, AwaitOpened):
            return


class Delegating:
    """A boss that waits before it starts its clerk, until it is let on."""

    def __init__(self) -> None:
        self.about_to_start, self.let_on, self.started = asyncio.Event(), asyncio.Event(), asyncio.Event()
        clerk = Agent(ScriptedModel(["Looked."]), name="clerk")
        self.boss = Agent(
            ScriptedModel([calls("clerk", task="Look."), "Done."]), name="boss", tools=[clerk.as_tool("Looks.")]
        )
        self.boss.on(SpawnBefore)(self._wait)
        clerk.on(BeforeModel)(self._start)

    async def _wait(self, _: SpawnBefore, __: RunContext[Any]) -> None:
        self.about_to_start.set()
        await self.let_on.wait()

    def _start(self, _: BeforeModel, __: RunContext[Any]) -> None:
        self.started.set()


async def until_it_closes(engine: Engine) -> None:
    with suppress(Conflict):
        while await engine.runtime():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)


async def test_a_subagent_can_be_started_while_the_engine_closes(tmp_path: Path) -> None:
    first, second = Delegating(), Delegating()
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, agents=[first.boss]) as engine:
            run = await engine.start(first.boss, "Go.")
            await first.about_to_start.wait()
            closing = asyncio.create_task(engine.close())
            await until_it_closes(engine)
            first.let_on.set()
            await closing
        second.let_on.set()
        async with Engine(tmp_path, agents=[second.boss]) as engine:
            result = await engine.attach(run.id).result()
    assert [(call.how, call.result) for call in result.calls] == [("returned", "Looked.")]


async def test_a_subagent_can_be_started_while_the_engine_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Delegating(), Delegating()
    open_store = library.open_store_off_loop

    async def open_slowly(folder: str | Path) -> Store:
        store = await open_store(folder)
        next_due = store.log.next_due

        async def later(after: int) -> int | None:
            second.let_on.set()
            await second.started.wait()
            return await next_due(after)

        monkeypatch.setattr(store.log, "next_due", later)
        return store

    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, agents=[first.boss], drain_s=0.0) as engine:
            run = await engine.start(first.boss, "Go.")
            await first.about_to_start.wait()
        monkeypatch.setattr(library, "open_store_off_loop", open_slowly)
        async with Engine(tmp_path, agents=[second.boss]) as engine:
            result = await engine.attach(run.id).result()
    assert [(call.how, call.result) for call in result.calls] == [("returned", "Looked.")]
