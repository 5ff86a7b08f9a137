"""What is set for one run: in place of the agent's own, and gone with the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, RunContext, Settings, ask_user, files, hook, skills, tool
from weftline.behaviors import Behavior
from weftline.errors import Conflict, InvalidRequest
from weftline.events import AwaitOpened
from weftline.hooks import BeforeModel, McpConnect
from weftline.messages import Image, Text, User
from weftline.policies import Policy
from weftline.providers.base import ModelRequest
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import Tool
from weftline.tools.contexts.base import Handle
from weftline.tools.contexts.process import ProcessContext

from .test_engine import catalog

PNG = Image("image/png", data="iVBORw0KGgo=")


@tool(effect="read")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: sunny"


@tool(effect="read")
def news() -> str:
    """The news."""
    return "None."


class Kit:
    """A set of tools that counts how often it is opened and closed."""

    def __init__(self, *tools: Any) -> None:
        self._tools = tools
        self.opened = 0
        self.closed = 0

    async def open(self) -> Sequence[Tool]:
        self.opened += 1
        await asyncio.sleep(0)
        return self._tools

    async def close(self) -> None:
        self.closed += 1


def offered(request: ModelRequest) -> list[str]:
    return [one.name for one in request.tools]


@pytest.mark.requirement("loop.agent.run_options")
async def test_run_options_override_the_agents_for_that_run() -> None:
    own, other = ScriptedModel(["Own.", "Own again."]), ScriptedModel(["Other."])
    agent = Agent(own, instructions="Be brief.", tools=[weather], settings=Settings(reasoning="low"))
    heard: list[int] = []

    @hook(BeforeModel)
    def watch(point: BeforeModel) -> None:
        heard.append(point.turn)

    await agent.run(
        "What is this?",
        files=[PNG],
        model=other,
        instructions="Be long.",
        settings=Settings(reasoning="high"),
        behavior=Behavior(cache=False),
        tools=[news],
        hooks=[watch],
    )
    [asked] = other.requests
    assert (asked.system, asked.reasoning, asked.cache, offered(asked)) == ("Be long.", 80, False, ["news"])
    [message] = asked.messages
    assert isinstance(message, User)
    assert [(type(one), getattr(one, "text", "")) for one in message.parts] == [(Image, ""), (Text, "What is this?")]
    await agent.run("And this?", tools=[])
    await agent.run("And now?")
    without, back = own.requests
    assert (without.system, offered(without)) == ("Be brief.", [])
    assert (back.system, back.reasoning, back.cache, offered(back)) == ("Be brief.", 30, True, ["weather"])
    assert len(heard) == 1


@pytest.mark.requirement("loop.agent.run_options")
async def test_run_is_cancelled_by_its_awaiting_task_on_a_signal() -> None:
    begun = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hangs."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel([calls("hang"), "Never."]))
    running = asyncio.create_task(agent.run("Go.", tools=[hang]))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_run_instructions_may_come_from_a_function_of_deps() -> None:
    model = ScriptedModel(["Yes."])

    def instructed(context: RunContext[str]) -> str:
        return f"You work for {context.deps}."

    await Agent(model, instructions="Be brief.", deps=str).run("Hi.", deps="acme", instructions=instructed)
    assert model.requests[0].system == "You work for acme."


async def test_toolset_of_a_run_closes_with_the_last_such_run() -> None:
    kit, own = Kit(weather), Kit(news)
    agent = Agent(ScriptedModel(["One.", "Two."]), tools=[own])
    async with Engine() as engine:
        await asyncio.gather(*[agent.run("Go.", tools=[kit, own], engine=engine) for _ in range(2)])
        assert (kit.opened, kit.closed) == (1, 1)
        assert (own.opened, own.closed) == (1, 0)
    assert (kit.closed, own.closed) == (1, 1)


async def test_other_tools_are_another_input_under_the_same_key() -> None:
    agent = Agent(ScriptedModel(["One."]), name="a", tools=[weather, news])
    async with Engine() as engine:
        run = await engine.start(agent, "Go.", key="k", tools=[weather])
        assert (await engine.start(agent, "Go.", key="k", tools=[weather])).id == run.id
        with pytest.raises(Conflict):
            await engine.start(agent, "Go.", key="k", tools=[news])
        await run.result()


def test_tools_of_run_are_checked_as_those_of_agent() -> None:
    agent = Agent(ScriptedModel(["Done."]))
    with pytest.raises(ValueError, match="two tools"):
        agent.run_sync("Go.", tools=[weather, weather])


@pytest.mark.requirement("loop.agent.run_options")
async def test_options_of_a_durable_run_survive_in_the_next_process(tmp_path: Path) -> None:
    model = ScriptedModel([calls("ask_user", question="Where?"), "Sunny."])
    agent = Agent("lab:script", name="forecast", instructions="Be brief.", tools=[ask_user, weather, Kit(news)])
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        run = await engine.start(agent, "Will it rain?", instructions="Be long.", tools=[ask_user])
        await anext(event async for event in run if isinstance(event, AwaitOpened))
    today = Agent("lab:script", name="forecast", instructions="Other.", tools=[ask_user, weather, Kit(news)])
    async with Engine(tmp_path, agents=[today], models=catalog(model)) as engine:
        [asked] = await engine.awaits()
        run = engine.attach(asked.run_id)
        await run.answer(asked.id, "Lyon.")
        assert (await run.result()).text == "Sunny."
    assert [(one.system, offered(one)) for one in model.requests] == [("Be long.", ["ask_user"])] * 2


async def test_durable_run_opens_only_some_of_its_agents_tools(tmp_path: Path) -> None:
    def plain() -> str:
        """A function."""
        return ""

    model, kit = ScriptedModel(["None.", "One.", "All."]), Kit(news)
    agent = Agent("lab:script", name="forecast", tools=[weather, plain, kit])
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        await agent.run("Go.", engine=engine, tools=[])
        assert kit.opened == 0
        await agent.run("Go.", engine=engine, tools=[plain, kit])
        await agent.run("Go.", engine=engine)
        with pytest.raises(InvalidRequest, match="next process"):
            await agent.run("Go.", engine=engine, tools=[news])
        with pytest.raises(InvalidRequest, match="next process"):
            await agent.run("Go.", engine=engine, instructions=lambda _: "Be brief.")
    assert [offered(one) for one in model.requests] == [[], ["plain", "news"], ["weather", "plain", "news"]]


async def test_durable_run_connects_only_to_its_own_tool_server(tmp_path: Path) -> None:
    @tool(effect="read", name="docs__find")
    def find() -> str:
        """Finds."""
        return ""

    class Wiki(Server):
        name, prefix = "wiki", "wiki__"

    model, docs, wiki = ScriptedModel(["Done."]), Server(find), Wiki(news)
    agent = Agent("lab:script", name="reader", tools=[docs, wiki, weather])
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        await agent.run("Go.", engine=engine, tools=[docs])
    assert (offered(model.requests[0]), docs.opened, wiki.opened) == (["docs__find"], 1, 0)


# What an agent opens, and when


@pytest.mark.requirement("loop.agent.lazy_init")
async def test_agent_opens_everything_once_on_demand(tmp_path: Path) -> None:
    kit = Kit(news)
    agent = Agent(ScriptedModel(["One.", "Two.", "Three."]), tools=[kit, weather])
    assert kit.opened == 0
    async with Engine() as engine:
        assert kit.opened == 0
        await asyncio.gather(
            agent.warmup(engine=engine),
            agent.run("Go.", engine=engine),
            engine.warmup(agent),
            agent.run("Go.", engine=engine),
        )
        assert kit.opened == 1
        await agent.run("Once more.", engine=engine)
    assert (kit.opened, kit.closed) == (1, 1)


def write_skill(root: Path, name: str) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: About {name}.\n---\nRead on.\n")


class Place(ProcessContext):
    """This machine, and how often it was entered and left."""

    def __init__(self) -> None:
        super().__init__()
        self.spawned = self.destroyed = 0

    async def spawn(self, *args: Any, **options: Any) -> Handle:
        self.spawned += 1
        return await super().spawn(*args, **options)

    async def destroy(self, handle: Handle) -> None:
        self.destroyed += 1
        await super().destroy(handle)


@pytest.mark.requirement("loop.agent.lazy_init")
async def test_execution_context_is_reused_by_the_next_run(tmp_path: Path) -> None:
    place = Place()
    agent = Agent(ScriptedModel([calls("list_files"), "Done."]), tools=[files(tmp_path, context=place)])
    async with Engine() as engine:
        assert place.spawned == 0
        await asyncio.gather(*[agent.run("Go.", engine=engine) for _ in range(2)])
        await agent.run("Go.", engine=engine)
        assert (place.spawned, place.destroyed) == (1, 0)
    assert place.destroyed == 1


@pytest.mark.requirement("loop.agent.lazy_init")
async def test_skills_are_looked_for_by_first_run_and_not_again(tmp_path: Path) -> None:
    model = ScriptedModel(["One.", "Two."])
    agent = Agent(model, tools=[skills(tmp_path)])
    write_skill(tmp_path, "tea")
    await agent.run("Go.")
    write_skill(tmp_path, "coffee")
    await agent.run("Go.")
    first, second = [one.system or "" for one in model.requests]
    assert "About tea." in first
    assert second == first


@pytest.mark.requirement("loop.agent.lazy_init")
async def test_warm_up_without_engine_is_for_runs_in_memory() -> None:
    kit = Kit(news)
    agent = Agent(ScriptedModel(["One."]), tools=[kit])
    await agent.warmup()
    assert kit.opened == 1
    await agent.run("Go.")
    assert kit.opened == 1


class Held(Kit):
    """A set of tools that takes its time to open."""

    def __init__(self, *tools: Any) -> None:
        super().__init__(*tools)
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def open(self) -> Sequence[Tool]:
        self.begun.set()
        await self.go.wait()
        return await super().open()


@pytest.mark.requirement("loop.agent.eager")
async def test_eager_agent_opens_with_its_engine_before_its_run() -> None:
    kit, late = Held(news), Held(weather)
    model = ScriptedModel(["One.", "Two."])
    agent = Agent(model, name="first", tools=[kit], eager=True)
    made = Engine(agents=[agent])
    made.register(Agent(model, name="second", tools=[late], eager=True))
    async with made as engine:
        await kit.begun.wait()
        await late.begun.wait()
        run = await engine.start(agent, "Go.")
        await asyncio.sleep(0)
        assert model.requests == []
        kit.go.set()
        await run.result()
        assert (kit.opened, offered(model.requests[0])) == (1, ["news"])
        late.go.set()
    assert kit.closed == 1


class Server(Kit):
    """The same as a server's."""

    name, prefix = "docs", "docs__"

    def stand_in(self, error: Exception) -> Sequence[Tool]:
        return ()


@pytest.mark.requirement("loop.agent.eager")
async def test_eager_agent_hooks_see_its_servers_before_runs() -> None:
    heard: list[str] = []
    connected = asyncio.Event()

    @hook(McpConnect)
    def watch(point: McpConnect) -> None:
        heard.append(point.server)
        connected.set()

    server = Server(news)
    async with Engine(agents=[Agent(ScriptedModel(["Done."]), name="a", tools=[server], hooks=[watch], eager=True)]):
        await connected.wait()
    assert (heard, server.opened) == (["docs"], 1)


async def test_toolset_an_eager_agent_missed_is_opened_by_its_run() -> None:
    class Shy(Kit):
        async def open(self) -> Sequence[Tool]:
            tools = await super().open()
            if self.opened == 1:
                raise RuntimeError("not yet")
            return tools

    shy = Shy(news)
    agent = Agent(ScriptedModel(["One."]), name="shy", tools=[shy], eager=True)
    async with Engine(agents=[agent]) as engine:
        for _ in range(5):
            await asyncio.sleep(0)
        assert (await agent.run("Go.", engine=engine)).text == "One."
    assert shy.opened == 2


async def test_call_under_key_is_same_after_deployment_that_changed_agent(tmp_path: Path) -> None:
    before = Agent(ScriptedModel(["Done."]), name="keyed", instructions="Be brief.")
    async with Engine(tmp_path, agents=[before]) as engine:
        first = await engine.start(before, "Go.", key="k", policy=Policy(max_tool_calls=3))
        await first.result()
    after = Agent(
        ScriptedModel(["Other."]),
        name="keyed",
        instructions="Be very brief.",
        tools=[weather],
        limits=Limits(max_turns=3),
        policy=Policy(max_tool_calls=2),
    )
    async with Engine(tmp_path, agents=[after]) as engine:
        again = await engine.start(after, "Go.", key="k", policy=Policy(max_tool_calls=3))
        assert again.id == first.id
        for other in (Policy(max_tool_calls=1), Policy()):
            with pytest.raises(Conflict):
                await engine.start(after, "Go.", key="k", policy=other)
