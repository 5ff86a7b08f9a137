"""Batches of many calls, each a case for `test_batches`: what is played, and what of it is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.json import encode

from agent.test_nested_calls import Host
from weftline import Agent, Engine, Limits, tool
from weftline.agent.behavior import Behavior
from weftline.behaviors import ToolBudget
from weftline.events import AwaitOpened
from weftline.hooks import AwaitGate, ToolAfter, ToolBefore, ToolGate, TurnEnded
from weftline.kernel.entries import CallOpened, decode_fact
from weftline.messages import User
from weftline.plan import LocalRef, RunPlan, ServerRef
from weftline.policies import Policy
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.runtime.engine import OwnedEngine
from weftline.runtime.new_engine import new_engine
from weftline.runtime.tool_calls.provided import Provided
from weftline.store.memory import MemoryStore
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import ToolOutput

from .counting import Lines

Play = Callable[[int], Awaitable[Lines]]


@tool(effect="read", concurrent=True)
async def scan(n: int) -> int:
    """Scans."""
    return n


@tool(effect="read", concurrent=True)
async def fetch(n: int) -> int:
    """Takes a moment, each call another."""
    for _ in range(n % 7):
        await asyncio.sleep(0)
    return n


@tool(effect="read", concurrent=False)
async def look(n: int) -> int:
    """Looks, one call at a time."""
    return n


@tool(effect="once", confirm="Wire {n}?")
async def wire(n: int) -> int:
    """Wires money."""
    return n


@tool(effect="idempotent", concurrent=True, confirm="Wipe {n}?")
async def wipe(n: int) -> int:
    """Wipes."""
    return n


TOOLS = [scan, fetch, look, wire, wipe]


def asked_for(name: str, count: int) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "args": {"n": n}} for n in range(count)]}


def agent_that_asks(*turns: Any, **options: Any) -> Agent[Any, Any]:
    model = ScriptedModel([*turns, "Done."])
    tools = options.pop("tools", TOOLS)
    return Agent(model, tools=tools, name="batches", limits=Limits(loop_soft=0), **options)


def in_code(name: str, *points: type[Any], **options: Any) -> Play:
    """The calls of an agent in Python, with watchers at these points."""

    async def play(count: int) -> Lines:
        agent = agent_that_asks(asked_for(name, count), **options)
        for point in points:
            agent.on(point)(_nothing)
        async with Engine(agents=[agent]) as engine:
            with Lines() as lines:
                run = await engine.start(agent, "Go.")
                result = await run.result()
        assert len(result.calls) == count
        return lines

    return play


async def _nothing(point: Any) -> None:
    pass


def approved(name: str) -> Play:
    """A person approves the calls one after another."""

    async def play(count: int) -> Lines:
        agent = agent_that_asks(asked_for(name, count))
        async with Engine(agents=[agent]) as engine:
            with Lines() as lines:
                run = await engine.start(agent, "Go.")
                ids: list[str] = []
                async for event in run:
                    if isinstance(event, AwaitOpened):
                        ids.append(event.id)
                    if len(ids) == count:
                        break
                for id in ids:
                    await run.approve(id)
                result = await run.result()
        assert [call.how for call in result.calls] == ["returned"] * count
        return lines

    return play


def approved_by_code(name: str) -> Play:
    async def play(count: int) -> Lines:
        agent = agent_that_asks(asked_for(name, count))

        @agent.on(AwaitGate)
        async def approve(gate: AwaitGate) -> None:
            gate.approve()

        async with Engine(agents=[agent]) as engine:
            with Lines() as lines:
                run = await engine.start(agent, "Go.")
                result = await run.result()
        assert [call.how for call in result.calls] == ["returned"] * count
        return lines

    return play


def nested(name: str, *points: type[Any], at_once: bool) -> Play:
    async def play(count: int) -> Lines:
        async def script(ask: Any) -> str:
            asking = [ask(name, f'{{"n": {n}}}') for n in range(count)]
            if at_once:
                await asyncio.gather(*asking)
            else:
                for one in asking:
                    await one
            return "ok"

        agent = agent_that_asks(calls("host"), tools=[Host(script), *TOOLS])
        for point in points:
            agent.on(point)(_nothing)
        async with Engine(agents=[agent]) as engine:
            with Lines() as lines:
                run = await engine.start(agent, "Go.")
                result = await run.result()
        assert len(result.calls) == count + 1
        return lines

    return play


def of_server(name: str) -> Play:
    """The calls of a run that a client described."""

    async def play(count: int) -> Lines:
        async with _engine(name, count) as engine:
            workspace = await engine.workspace("a")
            with Lines() as lines:
                await _ended(engine, workspace, await engine.create(workspace, _plan()))
        return lines

    return play


def of_client(answer: Callable[[OwnedEngine, int, list[str]], Awaitable[None]]) -> Play:
    """The calls that a client answers."""

    async def play(count: int) -> Lines:
        async with _engine("ask", count) as engine:
            workspace = await engine.workspace("a")
            with Lines() as lines:
                run_id = await engine.create(workspace, _plan())
                key = await engine.locate(run_id, workspace=workspace)
                follower = engine.follow(key, run_id)
                ids: list[str] = []
                while len(ids) < count:
                    for batch in await follower.next() or ():
                        heads = [decode_fact.decode(item.head) for item in batch.items if item.head]
                        ids += [head.id for head in heads if isinstance(head, CallOpened)]
                await answer(engine, key, ids)
                await _ended(engine, workspace, run_id)
        return lines

    return play


async def _one_by_one(engine: OwnedEngine, key: int, ids: list[str]) -> None:
    for id in ids:
        await engine.answer(key, id, ToolOutput.of("ok"))


async def _in_one_request(engine: OwnedEngine, key: int, ids: list[str]) -> None:
    await engine.provide(key, "external_0", [Provided(call_id=id, result="ok") for id in ids])


async def _under_leases(engine: OwnedEngine, key: int, ids: list[str]) -> None:
    for id in ids:
        leased = await engine.claim(key, id, lease_us=60_000_000, claim_id=id, by="me")
        await engine.heartbeat(key, id, leased.token)
        await engine.answer(key, id, ToolOutput.of("ok"), token=leased.token)


def _engine(name: str, count: int) -> OwnedEngine:
    models = Catalog()
    scripts = {"m": {"turns": [asked_for(name, count), {"text": "Done."}]}}
    models.add(ScriptedProvider(parse_scripts(encode(scripts))), name="scripted")
    return new_engine(MemoryStore(), models=models, tools={one.spec.name: one for one in TOOLS})


def _plan() -> RunPlan:
    tools = (*[ServerRef(one.spec.name) for one in (scan, fetch, look)], LocalRef("ask"))
    return RunPlan(messages=(User.of("Go."),), model="scripted:m", tools=tools)


async def _ended(engine: OwnedEngine, workspace: int, run_id: str) -> None:
    follower = engine.follow(await engine.locate(run_id, workspace=workspace), run_id)
    while await follower.next() is not None:
        pass


def read(what: Callable[[Engine, Any], Awaitable[object]], name: str = "scan") -> Play:
    """Something that is read of a run with a large batch."""

    async def play(count: int) -> Lines:
        agent = agent_that_asks(asked_for(name, count))
        async with Engine(agents=[agent]) as engine:
            run = await engine.start(agent, "Go.")
            await run.result()
            with Lines() as lines:
                await what(engine, run)
        return lines

    return play


async def _events(engine: Engine, run: Any) -> None:
    assert [event async for event in run.events()]


async def _replayed(engine: Engine, run: Any) -> None:
    assert (await engine.replay(run.id)).divergence is None


CASES: dict[str, Play] = {
    "server, side by side": of_server("scan"),
    "server, each takes its time": of_server("fetch"),
    "server, one after another": of_server("look"),
    "client, one by one": of_client(_one_by_one),
    "client, in one request": of_client(_in_one_request),
    "client, under leases": of_client(_under_leases),
    "in code, side by side": in_code("scan"),
    "in code, one after another": in_code("look"),
    "in code, unknown": in_code("nope"),
    "gated, side by side": in_code("scan", ToolGate),
    "gated, one after another": in_code("look", ToolGate),
    "hooks": in_code("look", ToolBefore, ToolAfter, TurnEnded),
    "policy": in_code("look", policy=Policy(time_budget_s=600)),
    "budget that steers": in_code("look", behavior=Behavior(tool_budgets={"look": ToolBudget(5, "steer")})),
    "same result again": in_code("look", behavior=Behavior(dedup_tools={"look": lambda _: "same"})),
    "approved, one after another": approved("wire"),
    "approved, side by side": approved("wipe"),
    "approved by code": approved_by_code("wipe"),
    "nested, one after another": nested("look", at_once=False),
    "nested, side by side": nested("scan", at_once=True),
    "nested and gated": nested("look", ToolGate, at_once=True),
    "snapshot": read(lambda engine, run: run.snapshot()),
    "list of calls": read(lambda engine, run: engine.calls(run.id)),
    "messages": read(lambda engine, run: run.messages()),
    "events": read(_events),
    "replay": read(_replayed, "look"),  # side by side, the calls of the small batch would not fill all 64 slots
}
