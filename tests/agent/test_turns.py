"""The turns of a run: what is said to it on the way, and what each call of a turn leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import pytest

from weftline import Agent, Engine, Limits, ToolFailed, prompts, tool
from weftline.agent.run import Run
from weftline.behaviors import Behavior, ThinkingDecay
from weftline.hooks import (
    BeforeModel,
    ContextBuilt,
    MessageInjected,
    MessagesTaken,
    ResultsStored,
    RowsLoaded,
    SystemRendered,
    ToolGate,
)
from weftline.messages import Assistant, Image, Text, ToolResults, User
from weftline.providers.base import ModelInfo
from weftline.testing import ScriptedModel, calls

from .kit import results_in

PATIENCE_S = 60.0


def texts_of(messages: Any) -> list[str]:
    return [message.text for message in messages if isinstance(message, User | Assistant)]


async def said_in_turn_0(agent: Agent[Any, Any], say: Callable[[Run[Any]], Awaitable[None]]) -> list[str]:
    """Runs the agent; `say` is called while its first model call is under way. Returns the conversation."""
    running: asyncio.Future[Run[Any]] = asyncio.get_running_loop().create_future()

    @agent.on(BeforeModel)
    async def talk(at: BeforeModel) -> None:
        if at.turn == 0:
            await say(await running)

    async with asyncio.timeout(PATIENCE_S), agent.stream("Go.") as run:
        running.set_result(run)
        return texts_of((await run.result()).messages)


@pytest.mark.requirement("loop.turn.steer_before_done")
async def test_steering_during_the_final_answer_is_followed_by_another_turn() -> None:
    model = ScriptedModel(["One.", "Two."])
    said = await said_in_turn_0(Agent(model), lambda run: run.steer("Trains only."))
    assert said == ["Go.", "One.", "Trains only.", "Two."]
    assert texts_of(model.requests[1].messages) == ["Go.", "One.", "Trains only."]


@pytest.mark.requirement("loop.turn.follow_up", "loop.turn.queues")
async def test_follow_ups_wait_for_the_answer_and_steering() -> None:
    @tool
    def look() -> str:
        """Looks."""
        return "seen"

    model = ScriptedModel([calls("look"), "One.", "Two."])
    agent = Agent(model, tools=[look])
    taken: list[int] = []
    injected: list[str] = []
    agent.on(MessagesTaken)(lambda at: taken.append(at.count))
    agent.on(MessageInjected)(lambda at: injected.append(at.text))

    async def say(run: Run[Any]) -> None:
        await run.follow_up("f1")
        await run.steer("s1")
        await run.steer("s2")
        await run.follow_up("f2")

    said = await said_in_turn_0(agent, say)
    assert said == ["Go.", "", "s1", "s2", "One.", "f1", "f2", "Two."]
    assert taken == [1, 2, 2], "the prompt, what steers, and what follows"
    assert injected == ["s1", "s2", "f1", "f2"], "each of them once, and not the prompt"


@pytest.mark.requirement("loop.hook.run_order")
async def test_messages_come_before_their_turn_and_results_when_stored() -> None:
    @tool
    def look() -> str:
        """Looks."""
        return "seen"

    agent = Agent(ScriptedModel([calls("look"), "Done."]), tools=[look], instructions="Be brief.")
    seen: list[str] = []
    told = ("run_start", "run_messages", "system_before", "turn_before", "tool_results_after", "agent_done")
    for name in (*told, "steer_inject"):
        agent.on(name)(lambda at: seen.append(at.name))  # pyright: ignore
    await said_in_turn_0(agent, lambda run: run.steer("Trains only."))
    assert seen == [
        "run_started",
        "messages_taken",
        "system_rendered",
        "before_model",
        "results_stored",
        "messages_taken",
        "message_injected",
        "system_rendered",
        "before_model",
        "run_ended",
    ]


@pytest.mark.requirement("loop.turn.queues")
async def test_unread_messages_of_a_cancelled_run_are_dropped() -> None:
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    model = ScriptedModel([calls("wait"), "Done."])
    agent = Agent(model, tools=[wait])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.", thread="t")
        await begun.wait()
        await run.follow_up("Never read.")
        await run.steer("Nor this.")
        await run.cancel()
        with agent.override(model=ScriptedModel(["Fine."])):
            after = await agent.run("Again.", thread="t", engine=engine)
    assert texts_of(after.messages) == ["Go.", "", "Again.", "Fine."]


@pytest.mark.requirement("loop.turn.pairing")
async def test_calls_of_a_turn_have_one_result_each_in_place() -> None:
    @tool
    def look(at: str) -> str:
        """Looks."""
        if at == "nothing":
            raise ToolFailed("There is nothing.")
        return f"{at}: seen"

    @tool
    async def listen() -> str:
        """Listens, until somebody speaks."""
        await (await running).steer("Stop.")
        return "heard"

    asked = ["a", "blocked", "answered", "nothing"]
    turn: list[tuple[str, dict[str, Any]]] = [("look", {"at": at}) for at in asked]
    odd: list[tuple[str, dict[str, Any]]] = [
        ("look", {"at": []}),
        ("ghost", {}),
        ("listen", {}),
        ("look", {"at": "skipped"}),
    ]
    agent = Agent(ScriptedModel([calls(*turn, *odd), "Done."]), tools=[look, listen], limits=Limits(loop_soft=0))
    running: asyncio.Future[Run[Any]] = asyncio.get_running_loop().create_future()
    stored: list[ResultsStored] = []
    agent.on(ResultsStored)(stored.append)

    @agent.on(ToolGate)
    def decide(gate: ToolGate) -> None:
        if gate.args.get("at") == "blocked":
            gate.block("No.")
        if gate.args.get("at") == "answered":
            gate.answer("from a gate")

    async with asyncio.timeout(PATIENCE_S), agent.stream("Go.") as run:
        running.set_result(run)
        result = await run.result()
    how = ["returned", "blocked", "answered", "failed", "invalid", "unknown", "returned", "not_run"]
    assert sorted(call.how for call in result.calls) == sorted(how)
    message, results = result.messages[1], result.messages[2]
    assert isinstance(message, Assistant) and isinstance(results, ToolResults)
    assert [one.id for one in results.results] == [call.id for call in message.calls]
    beginnings = [
        "a: seen",
        "Blocked: No.",
        "from a gate",
        "There is nothing",
        "",
        "Unknown tool",
        "heard",
        "Skipped: ",
    ]
    for one, begins in zip(results.results, beginnings, strict=True):
        assert one.text.startswith(begins)
    (told,) = stored
    assert [call.id for call in told.calls] == [call.id for call in message.calls]
    assert told.results == results.results


@pytest.mark.requirement("loop.turn.pairing")
async def test_interrupted_calls_have_results_on_their_thread_too() -> None:
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel([calls(("wait", {}), ("wait", {})), "Done."]), tools=[wait])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.", thread="t")
        await begun.wait()
        await run.cancel()
        result = await run.result()
        stored = await engine.thread("t").messages()
    assert [type(one).__name__ for one in stored] == ["User", "Assistant", "ToolResults"]
    assert results_in(stored) == results_in(result.messages)
    assert [text.startswith("Aborted: ") for text in results_in(result.messages)] == [True, True]


@pytest.mark.requirement("loop.batch.concurrent")
async def test_concurrent_calls_start_together_and_report_in_order() -> None:
    both = asyncio.Barrier(2)
    last = asyncio.Event()

    @tool(effect="read", concurrent=True, timeout_s=30)
    async def first() -> str:
        """The first."""
        await both.wait()
        await last.wait()
        return "1"

    @tool(effect="read", concurrent=True, timeout_s=20)
    async def second() -> str:
        """The second."""
        await both.wait()
        last.set()
        return "2"

    model = ScriptedModel([calls(("first", {}), ("second", {})), "Done."])
    async with asyncio.timeout(PATIENCE_S):
        result = await Agent(model, tools=[first, second]).run("Go.")
    assert results_in(result.messages) == ["1", "2"]
    assert [call.name for call in result.calls] == ["first", "second"], "as the model made them"


@pytest.mark.requirement("loop.batch.concurrent")
@pytest.mark.parametrize(("concurrent", "behavior"), [(None, "sequential"), (False, "auto"), (None, "auto")])
async def test_reading_tools_run_side_by_side_unless_something_says_otherwise(
    concurrent: bool | None, behavior: Literal["auto", "sequential"]
) -> None:
    together = concurrent is None and behavior == "auto"
    everybody, begun = asyncio.Barrier(4), list[int]()

    @tool(effect="read", concurrent=concurrent)
    async def look(page: int) -> str:
        """Looks."""
        begun.append(page)
        if together:
            await everybody.wait()
        return f"page {page} after {begun}"

    model = ScriptedModel([calls(*[("look", {"page": page}) for page in range(4)]), "Done."])
    agent = Agent(model, tools=[look], behavior=Behavior(tool_execution=behavior))
    async with asyncio.timeout(PATIENCE_S):
        result = await agent.run("Go.")
    seen = [[0, 1, 2, 3]] * 4 if together else [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert results_in(result.messages) == [f"page {page} after {pages}" for page, pages in enumerate(seen)]


@pytest.mark.requirement("loop.turn.request_order")
async def test_each_step_of_request_sees_what_ones_before_it_made() -> None:
    @tool(effect="read")
    def look() -> str:
        """Looks."""
        return "x" * 900

    model = ScriptedModel([calls("look"), "Done."])
    behavior = Behavior(
        compact_strategy="tail",
        compact_threshold_bytes=100,
        compact_keep_turns=0,
        reasoning_budget_tokens=4000,
        thinking_decay=ThinkingDecay(after_turn=1, factor=0.5),
    )
    agent = Agent(model, tools=[look], instructions="Be brief.", behavior=behavior)
    seen: list[tuple[str, object]] = []

    @agent.on(SystemRendered)
    def system(at: SystemRendered) -> None:
        seen.append((f"system {at.turn}", at.system))
        at.system += " Please."

    @agent.on(RowsLoaded)
    def rows(at: RowsLoaded) -> None:
        seen.append((f"rows {at.turn}", [len(text) for text in results_in(at.messages)]))
        at.messages = [*at.messages, User.of("one more")]

    @agent.on(ContextBuilt)
    def built(at: ContextBuilt) -> None:
        seen.append((f"built {at.turn}", texts_of(at.messages)[-1]))
        at.messages = [*at.messages, User.of("and one")]

    @agent.on(BeforeModel)
    def before(at: BeforeModel) -> None:
        short = all(len(text) < 150 for text in results_in(at.messages))
        seen.append((f"before {at.turn}", (at.system, texts_of(at.messages)[-2:], short)))

    await agent.run("Go.")
    system_text = "Be brief. Please."
    assert seen == [
        ("system 0", "Be brief."),
        ("rows 0", []),
        ("built 0", "one more"),
        ("before 0", (system_text, ["one more", "and one"], True)),
        ("system 1", "Be brief."),
        ("rows 1", [900]),
        ("built 1", "one more"),
        ("before 1", (system_text, ["one more", "and one"], True)),
    ]
    assert [request.system for request in model.requests] == [system_text] * 2
    assert [request.reasoning_budget_tokens for request in model.requests] == [4000, 2000]
    turns = [name.split()[1] for name, _ in seen]
    assert turns == ["0"] * 4 + ["1"] * 4, "each turn has a number of its own"


@pytest.mark.requirement("loop.turn.request_order")
async def test_images_become_words_before_anything_else() -> None:
    class Blind(ScriptedModel):
        def models(self) -> Sequence[ModelInfo]:
            return (ModelInfo(super().models()[0].vendor_id, vision=False),)

    @tool(effect="read")
    def camera() -> list[Text | Image]:
        """Takes a picture."""
        return [Text("x" * 900), Image("image/png", data="iVBORw0KGgo=")]

    behavior = Behavior(compact_strategy="tail", compact_threshold_bytes=10, compact_keep_turns=1)
    agent = Agent(Blind([calls("camera"), calls("camera"), "Done."]), tools=[camera], behavior=behavior)
    loaded: list[list[str]] = []
    sent: list[list[str]] = []
    agent.on(RowsLoaded)(lambda at: loaded.append(results_in(at.messages)))
    agent.on(BeforeModel)(lambda at: sent.append(results_in(at.messages)))
    await agent.run("Go.")
    words = "x" * 900 + "\n" + prompts.models.unseen_image("image/png")
    assert loaded == [[], [words], [words, words]]
    stub, kept = sent[2]
    assert kept == words and "xxx" not in stub, "the older one was replaced by a stub after that"
