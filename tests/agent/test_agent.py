"""An agent in a script: no server, no file left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Literal, assert_type

import pytest
from pydantic import BaseModel

from weftline import Agent, Limits, RunCancelled, RunContext, RunFailed, Settings, ToolContext, WeftlineError, tool
from weftline.events import CallFinished, CallOpened, Note, RunEnded, RunStarted, TextDelta, TurnFinished
from weftline.hooks import OutputReady
from weftline.messages import Assistant, Image, Text, ToolResults, User
from weftline.providers.sampling import SamplingLimits
from weftline.runs import InvalidOutput, OutputTruncated, ProviderFailed, RunInfo
from weftline.testing import ScriptedModel, calls


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: sunny"


async def test_an_agent_answers_with_the_help_of_its_tool() -> None:
    model = ScriptedModel([calls("weather", city="Lyon"), "No."])
    agent = Agent(model, instructions="Be brief.", tools=[weather])
    result = await agent.run("Do I need an umbrella?")
    assert (result.text, result.output, result.status, result.turns) == ("No.", "No.", "succeeded", 2)
    assert [(call.name, call.args, call.result, call.how) for call in result.calls] == [
        ("weather", {"city": "Lyon"}, "Lyon: sunny", "returned")
    ]
    assert [type(message) for message in result.messages] == [User, Assistant, ToolResults, Assistant]
    assert result.new_messages == result.messages
    assert model.requests[0].system == "Be brief."
    assert [spec.name for spec in model.requests[0].tools] == ["weather"]
    model.assert_done()


async def test_a_conversation_goes_on_from_a_result() -> None:
    model = ScriptedModel(["Ann.", "Ann again."])
    agent = Agent(model)
    first = await agent.run("Who?")
    again = await agent.run("Who again?", messages=first.messages)
    assert [message.text for message in again.messages if isinstance(message, User | Assistant)] == [
        "Who?",
        "Ann.",
        "Who again?",
        "Ann.",
    ]
    assert len(again.new_messages) == 2
    assert len(model.requests[1].messages) == 3


class Invoice(BaseModel):
    number: str
    total_eur: Decimal


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Invoice, '{"number": "7", "total_eur": "1.50"}', Invoice(number="7", total_eur=Decimal("1.50"))),
        (int, '{"value": 3}', 3),
        (list[str], '{"value": ["a"]}', ["a"]),
        (Literal["yes", "no"], '{"value": "no"}', "no"),
        (Invoice | None, '{"value": null}', None),
    ],
)
async def test_an_answer_is_a_value_of_the_output_type(kind: Any, text: str, value: object) -> None:
    agent: Agent[Any] = Agent(ScriptedModel([text]), output=kind)
    assert (await agent.run("Read this.")).output == value


class Refusal(BaseModel):
    why: str


async def test_the_type_of_the_answer_is_known_to_type_checkers() -> None:
    either = Agent(ScriptedModel(['{"value": {"why": "No."}}']), output=Invoice | Refusal)
    assert_type(either, Agent[Invoice | Refusal, object])
    assert (await either.run("Read this.")).output == Refusal(why="No.")
    assert_type(Agent("m"), Agent[str, object])
    assert_type(Agent("m", output=Invoice), Agent[Invoice, object])
    assert_type(Agent("m", output=list[str]), Agent[list[str], object])
    assert_type(Agent("m", output=Literal["a", "b"]), Agent[Literal["a", "b"], object])
    assert_type(Agent("m", output=Invoice | None), Agent[Invoice | None, object])


async def test_unfitting_answer_is_requested_again_and_then_fails() -> None:
    model = ScriptedModel(['{"number": "7"}', '{"number": "7", "total_eur": "x"}'])
    agent = Agent(model, output=Invoice)
    with pytest.raises(InvalidOutput) as caught:
        await agent.run("Read this.")
    assert len(model.requests) == 2
    assert caught.value.result.text
    assert isinstance(model.requests[1].messages[-1], User)
    assert "total_eur" in model.requests[1].messages[-1].text


async def test_a_hook_may_reject_an_answer() -> None:
    model = ScriptedModel(['{"number": "7", "total_eur": "-1"}', '{"number": "7", "total_eur": "1"}'])
    agent = Agent(model, output=Invoice)

    @agent.on(OutputReady)
    def positive(answer: OutputReady[Invoice]) -> None:
        if answer.output.total_eur <= 0:
            answer.reject("The total must be positive.")

    result = await agent.run("Read this.")
    assert result.output.total_eur == 1
    assert isinstance(model.requests[1].messages[-1], User)
    assert model.requests[1].messages[-1].text == "The total must be positive."


async def test_deps_reach_tools_hooks_and_instructions() -> None:
    opened: list[str] = []

    @asynccontextmanager
    async def database(run: RunInfo) -> AsyncGenerator[str]:
        opened.append(run.id)
        yield "acme"
        opened.append("closed")

    @tool(effect="read")
    def tenant(context: ToolContext[str]) -> str:
        """Who we work for."""
        return context.deps

    def instructions(context: RunContext[str]) -> str:
        return f"You work for {context.deps}."

    model = ScriptedModel([calls("tenant"), "Done."])
    agent = Agent(model, deps=database, tools=[tenant], instructions=instructions)
    result = await agent.run("Who?")
    assert result.calls[0].result == "acme"
    assert {request.system for request in model.requests} == {"You work for acme."}
    assert opened == [result.run_id, "closed"]


async def test_deps_of_a_type_are_given_with_the_run() -> None:
    @tool
    def tenant(context: ToolContext[str]) -> str:
        """Who we work for."""
        return context.deps

    agent = Agent(ScriptedModel([calls("tenant"), "Done."]), deps=str, tools=[tenant])
    assert (await agent.run("Who?", deps="acme")).calls[0].result == "acme"
    with pytest.raises(WeftlineError, match="give the run deps="):
        await agent.run("Who?")


async def test_a_stream_shows_what_happens() -> None:
    @tool
    def lookup(context: ToolContext, word: str) -> str:
        """Looks a word up."""
        context.emit("page", {"number": 7})
        return word

    agent = Agent(ScriptedModel([calls("lookup", word="x"), "All done."]), tools=[lookup])
    async with agent.stream("Go.") as run:
        events = [event async for event in run]
        result = await run.result()
    kinds = [type(event) for event in events]
    assert kinds[0] is RunStarted
    assert kinds[-1] is RunEnded
    assert [kind for kind in kinds if kind in (CallOpened, Note, CallFinished)] == [CallOpened, Note, CallFinished]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "All done."
    assert [event.data for event in events if isinstance(event, Note)] == [{"number": 7}]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert {event.run_id for event in events} == {run.id}
    assert result.text == "All done."


async def test_an_event_stream_goes_on_after_a_seq() -> None:
    agent = Agent(ScriptedModel(["All done."]))
    async with agent.stream("Go.") as run:
        everything = [event async for event in run]
        rest = [event async for event in run.events(after=everything[1].seq)]
    assert rest == everything[2:]


async def test_leaving_a_stream_early_cancels_the_run_and_its_tools() -> None:
    stopped = asyncio.Event()
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    agent = Agent(ScriptedModel([calls("wait"), "Done."]), tools=[wait])
    async with agent.stream("Go.") as run:
        await begun.wait()
    assert stopped.is_set()
    result = await run.result()
    assert result.status == "cancelled"
    with pytest.raises(RunCancelled):
        _ = result.output


async def test_cancelling_the_awaiting_task_cancels_the_run() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    agent = Agent(ScriptedModel([calls("wait"), "Done."]), tools=[wait])
    task = asyncio.create_task(agent.run("Go."))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped.is_set()
    assert (await Agent(ScriptedModel(["Still here."])).run("Go.")).text == "Still here."


async def test_a_failed_run_raises_by_class() -> None:
    broken = ScriptedModel([{"error": {"class": "auth", "message": "No such key."}}])
    with pytest.raises(ProviderFailed, match="No such key") as caught:
        await Agent(broken).run("Go.")
    assert (caught.value.code, caught.value.result.status) == ("auth", "failed")
    assert isinstance(caught.value, RunFailed)
    cut = ScriptedModel([{"text": "So f", "finish_reason": "max_tokens"}])
    with pytest.raises(OutputTruncated) as truncated:
        await Agent(cut).run("Go.")
    assert truncated.value.result.text == "So f"


async def test_limits_and_settings_reach_the_run() -> None:
    model = ScriptedModel([calls("weather", city="a"), calls("weather", city="b"), "Enough."])
    agent = Agent(
        model, tools=[weather], limits=Limits(max_turns=2), settings=Settings(reasoning="low", max_output_tokens=50)
    )
    result = await agent.run("Go.", settings=Settings(temperature=0.5))
    assert result.reason == "max_turns"
    assert model.requests[-1].tools_disabled
    assert (model.requests[0].reasoning, model.requests[0].max_output_tokens) == (30, 50)
    assert model.requests[0].temperature == 0.5


async def test_model_can_be_overridden_for_runs_that_start_in_block() -> None:
    agent = Agent("openai:gpt-5", tools=[weather])
    with agent.override(model=ScriptedModel(["Scripted."])):
        assert (await agent.run("Go.")).text == "Scripted."


async def test_an_image_comes_with_the_prompt() -> None:
    model = ScriptedModel(["A cat."])
    picture = Image("image/png", data="iVBORw0KGgo=", name="cat.png")
    await Agent(model).run("What is this?", files=[picture])
    (message,) = model.requests[0].messages
    assert isinstance(message, User)
    assert [type(part) for part in message.parts] == [Image, Text]
    assert isinstance(message.parts[0], Image)
    assert message.parts[0].data == "iVBORw0KGgo="


async def test_tool_state_stays_from_call_to_call() -> None:
    @tool
    def count(context: ToolContext) -> int:
        """Counts."""
        context.state["n"] = context.state.get("n", 0) + 1
        return context.state["n"]

    model = ScriptedModel([calls("count"), calls("count"), "Done."])
    result = await Agent(model, tools=[count], limits=Limits(loop_soft=0)).run("Go.")
    assert [call.result for call in result.calls] == ["1", "2"]


async def test_a_follow_up_is_answered_before_the_run_ends() -> None:
    sent = asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        await sent.wait()
        return "ok"

    model = ScriptedModel([calls("wait"), "One.", "Two."])
    async with Agent(model, tools=[wait]).stream("Go.") as run:
        await run.follow_up("And then?")
        sent.set()
        result = await run.result()
    texts = [message.text for message in result.messages if isinstance(message, User | Assistant)]
    assert texts == ["Go.", "", "One.", "And then?", "Two."]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Agent("m", name=" "), "must not be empty"),
        (lambda: Settings(reasoning="lots"), "reasoning must be one of"),  # type: ignore[arg-type]
        (lambda: Settings(reasoning=101), "0 to 100"),
        (lambda: Limits(max_turns=0), "max_turns must be above 0"),
        (lambda: Limits(max_cost_usd=0), "max_cost_usd must be above 0"),
        (lambda: Limits(tool_budgets={"x": -1}), "must be 0 or more"),
        (lambda: Agent("m", hooks=[print]), "is not a hook"),  # type: ignore[list-item]
    ],
)
async def test_bad_settings_are_refused_when_they_are_given(make: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        make()


class WithLimits(ScriptedModel):
    def sampling_limits(self, model: str, *, reasoning: int | None) -> SamplingLimits:
        return SamplingLimits(top_p=False, max_stops=1, blank_stops=False, max_output_tokens=10)


async def test_settings_a_model_rejects_have_their_python_names() -> None:
    settings = Settings(top_p=0.5, stop=["a", " "], max_output_tokens=11)
    with pytest.raises(WeftlineError, match=r"^top_p: .+; stop: .+; stop\[1\]: .+ \(and 1 more\)$") as refused:
        await Agent(WithLimits(["x"]), settings=settings).run("Go.")
    assert [one["path"] for one in refused.value.details["issues"]] == ["top_p", "stop", "stop[1]", "max_output_tokens"]


async def test_a_run_needs_something_to_go_on() -> None:
    with pytest.raises(WeftlineError, match="needs a prompt"):
        await Agent(ScriptedModel(["x"])).run()


async def test_two_tools_of_one_name_are_refused() -> None:
    @tool(name="weather")
    def other() -> str:
        """Another one."""
        return ""

    with pytest.raises(ValueError, match="two tools of the agent are named 'weather'"):
        Agent(ScriptedModel(["x"]), tools=[weather, other])


async def test_deps_that_cannot_be_made_fail_run_with_their_error() -> None:
    @asynccontextmanager
    async def database(run: RunInfo) -> AsyncGenerator[str]:
        raise ConnectionError("no database")
        yield ""

    model = ScriptedModel(["x"])
    with pytest.raises(RunFailed, match="no database"):
        await Agent(model, deps=database).run("Go.")
    assert model.requests == []


async def test_a_turn_finished_names_its_calls() -> None:
    agent = Agent(ScriptedModel([calls("weather", city="Lyon"), "No."]), tools=[weather])
    async with agent.stream("Go.") as run:
        turns = [event async for event in run if isinstance(event, TurnFinished)]
    assert [call.name for call in turns[0].calls] == ["weather"]
    assert turns[1].text == "No."


async def test_runs_in_memory_are_forgotten_after_a_while() -> None:
    from weftline.agent.engine.in_memory import in_memory

    agent = Agent(ScriptedModel(["Hello."]))
    first = await agent.run("Hi.")
    engine = await in_memory()
    for _ in range(70):
        await agent.run("Hi.")
    with pytest.raises(WeftlineError, match="There is no run"):
        await engine.attach(first.run_id).result()
