"""Whoever follows a run sees the same: its own process through the library, and others through the client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, get_args

from weftline import Agent, Engine, Limits, ToolContext, asgi, events, hook, tool
from weftline.agent.run import Run
from weftline.behaviors import Behavior, Compaction
from weftline.client import AsyncClient
from weftline.client import tool as client_tool
from weftline.events import AnyEvent
from weftline.events.docs_page import names_of
from weftline.hooks import AwaitGate
from weftline.policies import BasicPolicy
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.testing import ScriptedModel, calls

from ..kit import TIMEOUT_S, local_tool
from .test_mounted import joined, listening

SCRIPTS = b"""{
  "lookup": {"turns": [{"tool_calls": [{"name": "lookup", "args": {"q": "one"}}]}, {"text": "{{tool_results.0}}"}]},
  "helper": {"turns": [{"text": "Forty-two."}]},
  "broken": {"turns": [{"error": {"class": "auth", "message": "bad key", "retryable": false}}]},
  "cut": {"turns": [{"text": "half an ans", "finish_reason": "max_tokens"}]}
}"""
UNSEEN = {
    events.ThinkingDelta,
    events.CallProgress,
    events.CallClaimed,
    events.CallFellBack,
    events.ProviderCalled,
    events.ContextRestored,
    events.UnknownEvent,
}
"""By these runs; generated logs have them."""


@tool
def dig(context: ToolContext[object], depth: int) -> str:
    """Digs."""
    context.emit("found", {"gold": depth})
    return f"{depth} m"


@tool(confirm="Spend {amount}?")
def buy(amount: int) -> str:
    """Buys."""
    return "bought"


@hook(AwaitGate)
def cheaper(gate: AwaitGate) -> None:
    gate.approve({"amount": 4})


@client_tool
def lookup(q: str) -> str:
    """Looks it up."""
    return f"{q} found"


class Held:
    """A tool that is under way until it is told to return."""

    def __init__(self) -> None:
        self.begun, self.release = asyncio.Event(), asyncio.Event()

        @tool
        async def hold() -> str:
            """Holds."""
            self.begun.set()
            await self.release.wait()
            return "held"

        self.tool = hold


def new_agents(held: Held) -> list[Agent[Any, Any]]:
    again = calls("dig", depth=1)
    helper = Agent("scripted:helper", name="helper")
    wordy = {"text": "Digging. " * 50, "tool_calls": [{"name": "dig", "args": {"depth": 1}}]}
    flaky = {"deltas": ["I th"], "error": {"class": "server", "message": "hiccup"}}
    return [
        Agent(ScriptedModel([again, again, again, again, "Stuck."]), name="looping", tools=[dig]),
        Agent(
            ScriptedModel([calls("dig", depth=1), calls("dig", depth=2), calls("dig", depth=3), "Enough."]),
            name="greedy",
            tools=[dig],
            limits=Limits(tool_budgets={"dig": 1}, max_turns=3),
            policy_engine=BasicPolicy(blocked_tags=["deep"]),
        ),
        Agent(ScriptedModel(["no number", "7"]), name="typed", output=int),
        Agent(
            ScriptedModel([calls("helper", task="Think."), "Done."]), name="asking", tools=[helper.as_tool("Helps.")]
        ),
        Agent(ScriptedModel([calls("hold"), "Done.", "More."]), name="held", tools=[held.tool]),
        Agent(ScriptedModel([flaky, "Better."]), name="flaky"),
        Agent(
            ScriptedModel([wordy, calls("dig", depth=2), "It dug.", "Deep."]),
            name="forgetful",
            tools=[dig],
            behavior=Behavior(compaction=Compaction(at_turns=2, keep_turns=1)),
        ),
        Agent(ScriptedModel([calls("buy", amount=5), "Bought."]), name="buying", tools=[buy], hooks=[cheaper]),
    ]


async def steered(run: Run[Any], held: Held) -> None:
    await held.begun.wait()
    await run.pause("Lunch.", by="ann")
    await run.steer("Trains only.")
    await run.resume("Go on.", by="ben")
    held.release.set()
    await run.result()


async def test_the_library_and_the_client_see_the_same_run(tmp_path: Path) -> None:
    models = Catalog()
    models.add(ScriptedProvider(parse_scripts(SCRIPTS)))
    held = Held()
    engine = Engine(tmp_path / "data", agents=new_agents(held), models=models, workspace="acme")
    async with (
        asyncio.timeout(TIMEOUT_S),
        listening(asgi(engine)) as url,
        joined(url, tmp_path / "data") as api,
        AsyncClient(api_key=api.key, workspace="acme", base_url=url) as client,
    ):
        started = [await engine.start(agent, "Go.") for agent in engine.agents.values()]
        await steered(started[list(engine.agents).index("held")], held)
        runs = [run.id for run in started]
        runs.append((await client.run("hi", model_id="scripted:lookup", tools=[lookup])).run_id)
        runs += [await api.start("broken"), await api.start("cut")]
        runs.append(await api.start("lookup", tools=[local_tool()], budgets={"localToolTimeoutMs": 10}))
        left = await api.start("lookup", tools=[local_tool()])
        async with api.stream(left) as stream:
            await stream.until("local_tool_call")
            await api.cancel(left)
        seen: set[type[AnyEvent]] = set()
        for run_id in [*runs, left]:
            mine = [event async for event in engine.attach(run_id).events()]
            async with await client.attach(run_id, dispatch=False) as there:
                frames = [frame async for frame in there.frames(raise_on_failure=False)]
            assert [frame.event for frame in frames] == mine
            assert isinstance(mine[0], events.RunStarted) and isinstance(mine[-1], events.RunEnded)
            middle = mine[len(mine) // 2].seq
            later = [event async for event in engine.attach(run_id).events(after=middle)]
            assert later == [event for event in mine if event.seq > middle]
            assert all(frame.type in names_of(type(frame.event)).wire for frame in frames)
            seen |= {type(event) for event in mine}
    assert seen == {*get_args(AnyEvent)} - UNSEEN
