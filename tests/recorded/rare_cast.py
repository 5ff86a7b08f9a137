"""Agents whose runs have the fields that ordinary ones lack: prices, estimates, refusals, and much that goes wrong.

As in `cast.py`, an agent may be added here but not removed or renamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from weftline import Agent, Budget, Limits, RunContext, Settings, ToolContext, ToolFailed, ask_user, tool
from weftline.agent.behavior import ToolBudget
from weftline.agent.settings import Caps
from weftline.behaviors import Behavior, Compaction, Prompt
from weftline.hooks import AfterModel, ToolGate
from weftline.kernel.entries import Effect
from weftline.kernel.seats import RunStopped, SeatForced
from weftline.messages import File, Image, Opaque, ProviderCall, Text, Thinking
from weftline.policies import Policy, PolicyDecision, PolicyTurn, TagClause
from weftline.providers.base import CallStart, Chunk, Finish, ModelRequest, ProviderError, UsageUpdate, Whole
from weftline.providers.pricing import Price, PriceOverride, Prices
from weftline.providers.scripted import calls
from weftline.runtime.agent_code.seats import Ending, Seat
from weftline.tools import Bounded, ServerData, ToolQuestion, toolset
from weftline.tools.base import Paging

PAGE = "It was a dark and stormy night. " * 8


def together(*turns: dict[str, Any]) -> dict[str, Any]:
    """One turn with the calls of these."""
    return {"tool_calls": [call for turn in turns for call in turn["tool_calls"]]}


USED = {"input": 10, "cached": 3, "reasoning": 2, "output": 5, "cache_write": 1}
SCRIPTS: dict[str, list[Any]] = {
    "debate": [
        "I say yes.",
        "Let me think.",
        calls("rest", text="I say no."),
        "Then I go on.",
        calls("peek"),
        "That is all.",
        calls("peek"),
    ],
    "desk": [calls("refunds"), "Paid back."],
    "rich": [{**calls("look_up"), "usage": USED}, {"text": "Rich.", "usage": USED}],
    "broken": [{"text": "So far, ", "usage": USED}],
    "cut_short": [{"text": "As far as", "finish_reason": "max_tokens"}],
    "uncounted": ["Nobody counts."],
    "uncounted_caller": [calls("ask_uncounted", task="Go."), "Counted."],
    "steered_budget": [calls("peek"), calls("peek"), calls("peek"), calls("peek", at="b"), calls("page"), "Steered."],
    "doubtful": [together(calls("note_down"), calls("send_slowly", to="ann")), "Sent."],
    "confirmed": [
        together(calls("send", to="ann"), calls("send", to="bob")),
        together(calls("send", to="ann"), calls("post", to="ann")),
        calls("post", to="ann"),
        calls("choose"),
        calls("ask_user", question="Which?", options=["One", "Two"], multiple=True),
        calls("break_down"),
        calls("replan"),
        "Confirmed.",
    ],
    "remembering": [calls("send", to="ann"), calls("send", to="ann"), "Sent twice."],
    "stamped": [calls("report_in", place="Oslo"), "Stamped."],
    "failed_by_child": [calls("ask_broken", task="Go."), "It broke."],
    "stricter": [calls("turn", valve=1), "Turned."],
    "full": [
        *[calls("recite", page=page) for page in range(1, 4)],
        {"error": {"class": "context_window", "message": "Too long."}},
        "Short enough.",
    ],
    "held_reader": [*[calls("recite", page=page) for page in range(1, 7)], "Read."],
    "summary_held": ["Not asked.", "Not asked.", {"text": ""}, "Pages."],
    "capped": [calls("peek"), "Capped."],
    "disabled": [calls("peek"), "Disabled."],
    "misjudged": [calls("peek"), "Misjudged."],
    "in_circles": [*[calls("peek", at="a"), calls("peek", at="b")] * 4, "Enough."],
    "grandparent": [calls("ask_parent", task="Go."), "Grand."],
    "parent": [calls("ask_child", task="Go."), calls("ask_refuser", task="Go."), "Fine."],
    "child": [calls("deliver", item="it"), "Never said."],
    "refuser": [calls("give_up"), "Never said."],
    "writer": [{"error": {"class": "server", "message": "Again."}}, calls("peek", at="a"), "Written."],
}
PRICED = ("rich", "broken", "uncounted", "summary_held", "held_reader")


def prices() -> Prices:
    price = Price(input_per_1m_usd=1.0, output_per_1m_usd=2.0)
    return Prices([PriceOverride("scripted", model, price) for model in PRICED])


async def played(request: ModelRequest, stream: AsyncIterator[Sequence[Chunk]]) -> AsyncIterator[Sequence[Chunk]]:
    """What a provider of some models adds to, or takes from, its script."""
    if request.model == "rich":
        yield (Whole(Thinking("Hm.", "scripted", "signed", Raw(b'{"of":"scripted"}'))),)
        yield (Whole(ProviderCall("search_1", "web_search", "scripted", status="failed", opaque=Raw(b"[1]"))),)
        yield (Whole(Opaque("scripted", Raw(b'{"kept":true}'))),)
    async for chunks in stream:
        yield [_changed(request, chunk) for chunk in chunks if _is_played(request, chunk)]
    if request.model == "broken":
        try:
            raise ConnectionError("The line was cut.")
        except ConnectionError as error:
            raise ProviderError(
                "overloaded", "Too busy.", status=529, code="busy", retry_after_s=0.01, retryable=True
            ) from error


def _is_played(request: ModelRequest, chunk: Chunk) -> bool:
    if isinstance(chunk, UsageUpdate):
        return not request.model.startswith("uncounted") and request.model != "summary_held"
    return not (isinstance(chunk, Finish) and request.model == "broken")


def _changed(request: ModelRequest, chunk: Chunk) -> Chunk:
    if request.model == "rich" and isinstance(chunk, CallStart):
        return replace(chunk, extra=Raw(b'{"thought":1}'))
    return chunk


def metadata_of(request: ModelRequest) -> dict[str, str]:
    return {"response_id": "resp_1"} if request.model == "rich" else {}


# Tools


@tool(effect="read")
def look_up() -> list[Any]:
    """Looks it up."""
    content = "aGVsbG8="
    return [Text("Found."), Image("image/png", data=content), File("application/pdf", data=content)]


@tool(effect="read")
def peek(at: str = "a") -> str:
    """Peeks."""
    return f"Peeked at {at}."


@tool(effect="idempotent")
def rest(text: str) -> str:
    """Ends its turn."""
    return "Noted."


@tool(effect="read")
def refunds() -> str:
    """Pays back."""
    return "Refunds will take over."


@tool(effect="read", bounded=Paging("after"))
def page(after: str = "") -> Bounded:
    """A page of a list."""
    return Bounded(value={"rows": [1]}, returned=1, total=2, truncated=True, next_cursor="2")


@tool(effect="once", bookkeeping=True)
def note_down() -> str:
    """Notes it down."""
    return "Noted."


@tool(effect="once", in_doubt="ask")
async def send_slowly(to: str, context: ToolContext) -> str:
    """Sends something, and never says so the first time."""
    if context.attempt == 1:
        await asyncio.Event().wait()
    return f"Sent to {to}."


@tool(effect="once", confirm="Send it to {to}?", confirm_timeout_s=1e9)
def send(to: str, text: str = "") -> str:
    """Sends something."""
    return f"Sent {text} to {to}."


@tool(effect="once")
def post(to: str) -> str:
    """Posts something."""
    return f"Posted to {to}."


@tool(external=True)
def report_in(place: str) -> str:
    """Reports from a place."""
    raise AssertionError("it is carried out outside")


def _stamped(call: Any, result: Any) -> Any:
    return {"stamped": call.tool}


@tool(effect="read")
def choose() -> list[str]:
    """Asks which."""
    raise ToolQuestion("Which?", options=["One", "Two"], multiple=True)


@tool(effect="read")
def break_down() -> str:
    """Breaks down."""
    try:
        raise KeyError("the key")
    except KeyError as error:
        raise RuntimeError("It broke.") from error


@tool(effect="read")
def replan() -> str:
    """Needs another plan."""
    raise ToolFailed("Not like this.", recovery="replan")


@tool(effect="read")
def recite(page: int) -> str:
    """Recites a page."""
    return f"Page {page}. {PAGE}"


@tool(effect="read", terminal=True)
def deliver(item: str, context: ToolContext) -> str:
    """Delivers it, which ends the run."""
    context.server_data.append(ServerData("raw", {"item": item}, "evidence"))
    return f"Delivered {item}."


@tool(effect="read", terminal=True)
def give_up() -> object:
    """Gives up, which ends the run."""
    return ToolFailed("It cannot be done.")


def valve(effect: Effect) -> Any:
    @tool(effect=effect, confirm="Turn it?")
    def turn(valve: int) -> str:
        """Turns a valve."""
        return "Turned."

    return turn


# Agents


def agents(*, deployed: bool = False) -> list[Agent[Any, Any]]:
    """All agents; `deployed`, with the code of a later deploy."""
    free = Limits(loop_soft=0)
    child = Agent("scripted:child", name="child", tools=[deliver])
    refuser = Agent("scripted:refuser", name="refuser", tools=[give_up])
    breaks = Agent("scripted:broken", name="breaks", limits=Limits(max_retries=0))
    uncounted = Agent("scripted:uncounted", name="uncounted")
    parent = Agent(
        "scripted:parent",
        name="parent",
        tools=[child.as_tool("Delivers.", name="ask_child"), refuser.as_tool("Refuses.", name="ask_refuser")],
        budget=Budget(calls=50),
    )
    return [
        Agent("scripted:rich", name="rich", tools=[look_up], budget=Budget(usd=5.0)),
        Agent("scripted:broken", name="broken", limits=Limits(max_retries=1)),
        Agent("scripted:broken", name="changed_model", fallbacks=["scripted:plain"], limits=Limits(max_retries=0)),
        Agent("scripted:cut_short", name="cut_short"),
        uncounted,
        Agent(
            "scripted:uncounted_caller",
            name="uncounted_caller",
            tools=[uncounted.as_tool("Does not count.", name="ask_uncounted")],
        ),
        Agent(
            "scripted:steered_budget",
            name="steered_budget",
            tools=[peek, page],
            limits=free,
            behavior=Behavior(tool_budgets={"peek": ToolBudget(1, "steer")}, dedup_tools={"peek": None}),
        ),
        _answers_pages(),
        Agent("scripted:doubtful", name="doubtful", tools=[note_down, send_slowly], policy=Policy(max_tool_calls=9)),
        _confirmed(),
        Agent("scripted:stricter", name="stricter", tools=[valve("once" if deployed else "read")]),
        Agent(
            "scripted:held_reader",
            name="held_reader",
            tools=[recite],
            limits=free,
            budget=Budget(tokens=1_000_000),
            behavior=Behavior(compaction=Compaction(at_tokens=200, keep_turns=1, model="scripted:summary_held")),
        ),
        Agent(
            "scripted:full",
            name="full",
            tools=[recite],
            limits=free,
            behavior=Behavior(compaction=Compaction(keep_turns=1, model="scripted:summary_held")),
        ),
        Agent(
            "scripted:capped",
            name="capped",
            tools=[peek],
            policy=Policy(max_tool_calls=9, tag_clauses=[TagClause(denied_any=("costly",))]),
            policy_engine=_caps,
        ),
        Agent("scripted:disabled", name="disabled", tools=[peek], policy_engine=_disables),
        Agent("scripted:misjudged", name="misjudged", tools=[peek], policy_engine=_fails),
        Agent("scripted:in_circles", name="in_circles", tools=[peek], limits=Limits(loop_soft=2, loop_hard=3)),
        Agent("scripted:remembering", name="remembering", tools=[send], limits=free),
        Agent("scripted:stamped", name="stamped", tools=toolset("desk", report_in, materialize=_stamped)),
        Agent(
            "scripted:failed_by_child",
            name="failed_by_child",
            tools=[breaks.as_tool("Breaks.", name="ask_broken")],
        ),
        child,
        refuser,
        parent,
        Agent("scripted:grandparent", name="grandparent", tools=[parent.as_tool("Asks.", name="ask_parent")]),
        _writer(),
        _debate(),
        _desk(),
        Agent(
            "scripted:writer",
            name="sampled",
            tools=[peek],
            settings=Settings(temperature=0.5, top_p=0.9, stop=["END"], max_output_tokens=900),
        ),
    ]


def _answers_pages() -> Agent[Any, Any]:
    agent = Agent("scripted:steered_budget", name="answers_pages", tools=[peek, page], limits=Limits(loop_soft=0))

    @agent.on(ToolGate)
    def gate(point: ToolGate, context: RunContext[Any]) -> None:
        if point.tool == "page":
            point.answer(Bounded(value={"rows": []}, returned=0, total=2, truncated=True, next_cursor="1"))

    return agent


def _confirmed() -> Agent[Any, Any]:
    agent = Agent(
        "scripted:confirmed",
        name="confirmed",
        tools=[send, post, choose, ask_user, break_down, replan],
        limits=Limits(loop_soft=0, in_doubt="report"),
    )

    @agent.on(ToolGate)
    def gate(point: ToolGate, context: RunContext[Any]) -> None:
        if point.tool == "post":
            point.ask("Post it?")

    return agent


def _writer() -> Agent[Any, Any]:
    def instructions(context: RunContext[Any]) -> str:
        context.state["rendered"] = True
        return context.render("manner", who="Ann")

    manner = Prompt("manner", "Write to {who}.", version="1")
    agent = Agent("scripted:writer", name="writer", instructions=instructions, prompts=[manner], tools=[peek])

    @agent.on(AfterModel)
    def noted(point: AfterModel, context: RunContext[Any]) -> None:
        context.note("answered")

    return agent


def _debate() -> Agent[Any, Any]:
    """Two sides: one that is made to speak twice and has one step, and one that ends its turn by a call."""
    agent = Agent("scripted:debate", name="debate", instructions="Be for it.", tools=[rest, peek])
    agent.seats = (
        Seat(name="debate/a", tools=frozenset({"peek"}), max_steps=1),
        Seat(
            name="debate/b",
            side="b",
            model="scripted:debate",
            system="Be against it.",
            tools=frozenset({"peek", "rest"}),
            endings={"rest": Ending("side", argument="text")},
            stop_on_response=False,
            stop_tool="rest",
        ),
    )
    agent.max_side_turns = 20

    @agent.on(AfterModel)
    def steered(point: AfterModel, context: RunContext[Any]) -> None:
        inside = context.entered.inside
        if inside is not None and point.turn == 3:
            inside.ask(SeatForced(0, "hook:steered"))
        if inside is not None and point.turn == 6:
            inside.ask(RunStopped("hook:steered"))

    return agent


def _desk() -> Agent[Any, Any]:
    agent = Agent("scripted:desk", name="desk", instructions="Sort it.", tools=[refunds])
    agent.seats = (
        Seat(name="desk/a", tools=frozenset({"refunds"}), endings={"refunds": Ending("handoff", "refunds/a")}),
        Seat(name="refunds/a", model="scripted:desk", system="Pay it back."),
    )
    return agent


def _caps(turn: PolicyTurn) -> PolicyDecision:
    return PolicyDecision(caps=Caps(tool_calls=3, consecutive_failures=2))


def _disables(turn: PolicyTurn) -> PolicyDecision:
    return PolicyDecision(disable_tools=True)


def _fails(turn: PolicyTurn) -> PolicyDecision:
    raise RuntimeError("It cannot decide.")
