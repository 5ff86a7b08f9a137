"""The agents whose runs are recorded, and the scripts that their models play.

Later versions continue the recorded runs with these agents, so an agent may be added here but not removed or renamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Raw

from weftline import Agent, Budget, Limits, RunContext, Settings, ToolContext, ToolFailed, ask_user, tool
from weftline.behaviors import Behavior, Compaction, Prompt
from weftline.failure import Telemetry
from weftline.hooks import AfterModel, AwaitGate, OutputReady, ToolGate, TurnEnded
from weftline.kernel.bodies import Peer
from weftline.kernel.entries import Effect
from weftline.messages import Image, ProviderCall, Text
from weftline.policies import Policy, PolicyDecision, PolicyTurn
from weftline.providers.base import Chunk, ModelRequest, ToolSpec, Whole
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, calls
from weftline.providers.scripts import parse_script
from weftline.tools import Bounded, Hint, ServerData
from weftline.tools.base import ClientKind, Reconciled, ToolOutput, ToolProgress, Traits, Unknown

from . import rare_cast

DECADES_S = 1e9
"""A fixture may be continued at any time."""
PAGE = "It was a dark and stormy night. " * 8


def together(*turns: dict[str, Any]) -> dict[str, Any]:
    """One turn with the calls of these."""
    return {"tool_calls": [call for turn in turns for call in turn["tool_calls"]]}


def failing(kind: str, message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"class": kind, "message": message, **more}}


SCRIPTS: dict[str, list[Any]] = {
    "plain": [{"thinking": ["Somebody ", "says hello."], "deltas": ["Hello, ", "you."]}],
    "search": ["The search found it."],
    "talk": ["You said: {{user_messages}}"],
    "clerk": [
        together(
            calls("measure", city="Oslo"),
            calls("measure", town="Oslo"),
            calls("weigh", city="Oslo"),
            calls("refuse", what="this"),
            calls("list_rows", table="people"),
        ),
        calls("measure", city="Rome"),
        "Measured.",
    ],
    "looper": [*[calls("look")] * 4, "Enough."],
    "typist": ["Not JSON.", '{"value": 1}', '{"value": 7}'],
    "coder": [calls("host"), "Ran."],
    "gated": [
        together(calls("look"), calls("pay", payee="ann"), calls("pay", payee="bob"), calls("wire", payee="cid")),
        calls("pay", payee="dan"),
        "Paid.",
    ],
    "asker": [
        calls("ask_user", question="Where?", further=[{"question": "When?", "options": ["Today", "Tomorrow"]}]),
        calls("forecast"),
        "Sunny.",
    ],
    "outside": [together(calls("weather", city="Oslo"), calls("weather", city="Rome")), "Rain."],
    "boss": [calls("ask_clerk", task="Pay."), calls("ask_finder", task="Find it."), "Thanks."],
    "subclerk": [together(calls("wire", payee="ann"), calls("look")), "Done."],
    "finder": [calls("report", year=1999), "Never said."],
    "steered": [calls("wait"), "First.", "Second."],
    "unlucky": [failing("server", "Try again.", retryable=True), failing("auth", "No such key.", retryable=False)],
    "reader": [*[calls("read", page=page) for page in range(1, 7)], "A novel."],
    "summary": ["Not asked.", "Not asked.", failing("server", "No summary."), "Weather, mostly."],
    "spender": [calls("look"), calls("look"), "Seen twice."],
    "thrifty": [calls("look"), calls("look"), "As far as I came."],
    "policed": [calls("look"), together(calls("look"), calls("pay", payee="eve")), calls("look"), "Capped."],
    "interrupted": [together(calls("stall"), calls("pay_slowly", payee="ann")), "Went on."],
    "deployed": [calls("wire", payee="ann"), "New words."],
    "slow": [{"deltas": ["One, ", "two, ", "three."], "delay_ms": 60_000}],
    "waiting": [calls("wire", payee="ann"), "{{all_tool_results}}"],
    "lookup": [calls("lookup", q="one"), "{{all_tool_results}}"],
    "peers": [
        together(calls("lookup", q="one"), calls("files_read", path="a"), calls("agent", message="Do it.")),
        "{{all_tool_results}}",
    ],
}


class Provider(ScriptedProvider):
    """Plays the scripts. One of its models has searched the web before it answers."""

    def __init__(self) -> None:
        scripts = {**SCRIPTS, **rare_cast.SCRIPTS}
        super().__init__(
            {name: parse_script({"turns": _turns(turns)}, name=name) for name, turns in scripts.items()}, record=True
        )

    async def response_metadata(self, request: ModelRequest) -> dict[str, str]:
        return rare_cast.metadata_of(request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        if request.model == "search":
            searched = ProviderCall(
                "search_1", "web_search", "scripted", input=Raw(b'{"query":"it"}'), result=Raw(b'["found"]')
            )
            yield (Whole(searched),)
        async for chunks in rare_cast.played(request, super().stream(request)):
            yield chunks


def _turns(turns: Sequence[Any]) -> list[Any]:
    return [{"text": turn} if isinstance(turn, str) else turn for turn in turns]


def catalog(provider: ScriptedProvider) -> Catalog:
    models = Catalog(prices=rare_cast.prices())
    models.add(provider)
    return models


# Tools

LOOKUP = {"type": "object", "properties": {"q": {"type": "string"}}}
CLIENT_TOOLS: list[dict[str, Any]] = [
    {"kind": "local", "name": "lookup", "description": "Looks it up.", "parameters": LOOKUP},
    {
        "kind": "mcp_local",
        "name": "files",
        "serverInfo": {"name": "Files", "version": "1.0"},
        "tools": [
            {
                "name": "files_read",
                "description": "Reads a file.",
                "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
                "annotations": {"readOnlyHint": True},
            }
        ],
    },
    {"kind": "a2a_local", "name": "agent", "description": "Does it.", "agentCard": {"name": "Agent"}},
]
"""What HTTP clients execute themselves: a function, an MCP server's tool and an A2A agent."""


@tool(effect="read", concurrent=True)
def look() -> str:
    """Looks."""
    return "Seen."


@tool(effect="idempotent")
async def measure(city: str, context: ToolContext) -> str:
    """Measures a city.

    Args:
        city: Its name.
    """
    context.on_progress(ToolProgress(1, 2, "half way"))
    context.emit("log", {"measuring": city})
    context.state[city] = 1
    context.server_data.append(ServerData("raw", {"km": 3}, "evidence"))
    context.telemetry = Telemetry(tokens_used=3, model="ruler")
    return f"{city} is large."


@tool(effect="once")
def refuse(what: str) -> str:
    """Refuses."""
    raise ToolFailed("Not that.", kind="domain_rejection", hint=Hint("invalid_arguments", "Ask for something else."))


@tool(effect="read", bounded=True)
def list_rows(table: str) -> Bounded:
    """Lists rows."""
    return Bounded(value={"rows": ["ann", "bob"]}, returned=2, total=9, truncated=True, refinement_hint="Name one.")


@tool(effect="read", example={"city": "Paris"})
def forecast(city: str) -> str:
    """Forecast.

    Args:
        city: Name of the city.
    """
    return f"Sun in {city}."


@tool(effect="once")
def pay(payee: str, cents: int = 1) -> str:
    """Pays somebody."""
    return f"Paid {payee} {cents}."


@tool(effect="once", confirm="Wire money to {payee}?")
def wire(payee: str) -> str:
    """Wires money."""
    return f"Wired to {payee}."


@tool(external=True)
def weather(city: str) -> str:
    """The weather in a city."""
    raise AssertionError("it is carried out outside")


@tool(effect="read", terminal=True, bounded=True)
def report(year: int, context: ToolContext) -> Bounded:
    """Reports the year, which ends the run."""
    context.telemetry = Telemetry(tokens_used=1)
    return Bounded(value={"year": year}, returned=1)


@tool(effect="read")
def read(page: int) -> str:
    """Reads a page."""
    return f"Page {page}. {PAGE}"


@tool(effect="read")
async def wait(context: ToolContext) -> str:
    """Waits until the engine stops, the first time."""
    return await _first_time_forever(context)


@tool(effect="idempotent", concurrent=True)
async def stall(context: ToolContext) -> str:
    """Waits until the engine stops, the first time."""
    return await _first_time_forever(context)


@tool(effect="once", concurrent=True)
async def pay_slowly(payee: str, context: ToolContext) -> str:
    """Pays somebody, and never says so."""
    return await _first_time_forever(context)


async def _first_time_forever(context: ToolContext) -> str:
    if context.attempt == 1:
        await asyncio.Event().wait()
    return "Waited."


class Host:
    """A tool that is code, without a sandbox: it calls two others."""

    spec = ToolSpec("host", "Runs a script.", Raw(b'{"type":"object","properties":{}}'))
    effect: Effect = "read"
    concurrent = False
    timeout_s: float | None = 30.0
    client: ClientKind | None = None
    peer: Peer | None = None
    traits = Traits(host=True)

    async def prepare(self, args: str) -> bytes:
        return b"{}"

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        further = context.further
        assert further is not None
        said = [await further.ask("look", "{}"), await further.ask("pay", '{"payee":"ann"}')]
        await further.settled()
        return ToolOutput.of(" ".join([output.text for output in said]))

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        return Unknown()


# Agents


def agents(*, deployed: bool = False) -> list[Agent[Any, Any]]:
    """All agents, by name; `deployed`, with the code of a later deploy."""
    free = Limits(loop_soft=0)
    subclerk = Agent("scripted:subclerk", name="subclerk", tools=[wire, look], policy=Policy(time_budget_s=600))
    finder = Agent("scripted:finder", name="finder", tools=[report])
    reads = Compaction(at_tokens=200, keep_turns=1, model="scripted:summary")
    return [
        _plain(),
        Agent("scripted:search", name="search"),
        Agent("scripted:talk", name="talk"),
        Agent(
            "scripted:clerk",
            name="clerk",
            tools=[measure, refuse, list_rows],
            limits=Limits(tool_budgets={"measure": 1}),
            behavior=Behavior(tool_output_budget_bytes=60),
        ),
        Agent("scripted:looper", name="looper", tools=[look], limits=Limits(loop_soft=2, loop_hard=4)),
        _typist(),
        Agent("scripted:coder", name="coder", tools=[Host(), look, pay]),
        _gated(),
        Agent(
            "scripted:asker",
            name="asker",
            tools=[ask_user, forecast],
            policy=Policy(on_missing_fields="await_clarification"),
        ),
        Agent("scripted:outside", name="outside", tools=[weather], limits=Limits(external_timeout_s=DECADES_S)),
        subclerk,
        finder,
        Agent(
            "scripted:boss",
            name="boss",
            tools=[
                subclerk.as_tool("Sees to it.", name="ask_clerk"),
                finder.as_tool("Finds things.", name="ask_finder"),
            ],
            policy=Policy(time_budget_s=900),
        ),
        Agent("scripted:steered", name="steered", tools=[wait]),
        Agent("scripted:unlucky", name="unlucky", limits=Limits(max_retries=1)),
        Agent("scripted:reader", name="reader", tools=[read], limits=free, behavior=Behavior(compaction=reads)),
        Agent("scripted:spender", name="spender", tools=[look], limits=free, budget=Budget(calls=1, on_exceeded="ask")),
        Agent("scripted:thrifty", name="thrifty", tools=[look], limits=free, budget=Budget(calls=1)),
        Agent(
            "scripted:policed",
            name="policed",
            tools=[look, pay],
            limits=free,
            policy=Policy(max_tool_calls=2),
            policy_engine=_without_paying,
        ),
        Agent("scripted:interrupted", name="interrupted", tools=[stall, pay_slowly], policy=Policy(time_budget_s=600)),
        Agent("scripted:deployed", name="deployed", tools=[wire], instructions="Newer." if deployed else "Older."),
        Agent("scripted:slow", name="slow"),
        Agent("scripted:waiting", name="waiting", tools=[wire]),
        *rare_cast.agents(deployed=deployed),
    ]


def _plain() -> Agent[Any, Any]:
    def instructions(context: RunContext[Any]) -> str:
        return context.render("tone", who=str(context.run.metadata["who"]))

    tone = Prompt("tone", "Be brief with {who}.", version="1")
    thinks = Settings(reasoning="medium")
    agent = Agent("scripted:plain", name="plain", instructions=instructions, prompts=[tone], settings=thinks)

    @agent.on(AfterModel)
    def counted(point: AfterModel, context: RunContext[Any]) -> None:
        context.state["answers"] = 1
        context.note("answered", {"turn": str(point.turn)})

    return agent


def _typist() -> Agent[Any, Any]:
    agent = Agent("scripted:typist", name="typist", output=int, limits=Limits(output_retries=2))

    @agent.on(OutputReady)
    def at_least_two(point: OutputReady[int], context: RunContext[Any]) -> None:
        if point.output < 2:
            point.reject("That is too little.")

    return agent


def _gated() -> Agent[Any, Any]:
    agent = Agent("scripted:gated", name="gated", tools=[look, pay, wire])

    @agent.on(ToolGate)
    def gate(point: ToolGate, context: RunContext[Any]) -> None:
        context.state[point.call_id] = point.tool
        match point.args.get("payee"):
            case "ann":
                point.args = {**point.args, "cents": 5}
                point.display_hint = "Paying Ann"
            case "bob":
                point.block("Not to Bob.")
            case None:
                point.answer([Text("Looked already."), Image("image/png", url="https://example.com/a.png")])
            case _:
                point.ask("Pay?", approvers=["user:ann"])

    @agent.on(TurnEnded)
    def counted(point: TurnEnded, context: RunContext[Any]) -> None:
        context.state["turns"] = point.turn + 1

    @agent.on(AwaitGate)
    def leaves_it_to_people(point: AwaitGate) -> None:
        pass

    return agent


def _without_paying(turn: PolicyTurn) -> PolicyDecision:
    return PolicyDecision(allowed_tools=["look"], labels={"seen": "yes"}, metadata={"why": "thrift"})
