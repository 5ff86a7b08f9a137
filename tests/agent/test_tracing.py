"""Traces of runs, as an exporter of OpenTelemetry gets them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from weftline import Agent, Engine, RunFailed, ask_user, tool
from weftline.events import AwaitOpened
from weftline.runs import trace
from weftline.testing import ScriptedModel, calls

from .test_engine import catalog


class Traces:
    """An exporter that keeps what it gets."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def tree(self) -> dict[str, str | None]:
        """By the name of a span, the name of the one that it is in."""
        spans = self._exporter.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans if span.context is not None}
        assert len({span.context.trace_id for span in spans if span.context is not None}) <= 1
        return {span.name: None if span.parent is None else names.get(span.parent.span_id, "?") for span in spans}


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise RuntimeError("no such city")
    return f"{city}: sunny"


@pytest.mark.requirement("loop.trace.spans")
async def test_run_is_a_tree_of_spans_with_its_children() -> None:
    traces = Traces()
    clerk = Agent(ScriptedModel([calls("weather", city="Lyon"), "Sunny."]), name="clerk", tools=[weather])
    model = ScriptedModel([calls("ask_clerk", task="How is Lyon?"), "Take no umbrella."])
    agent = Agent(model, name="boss", tools=[clerk.as_tool("Knows the weather.", name="ask_clerk")])
    trace(agent, tracer_provider=traces.provider)
    trace(agent, tracer_provider=traces.provider)  # said twice, and still one tree
    trace(clerk, tracer_provider=traces.provider)  # its run is in the trace of the run above, and not once more
    result = await agent.run("An umbrella?")
    # Both runs ask their models twice: spans of the same names are in both.
    assert traces.tree() == {
        "invoke_agent boss": None,
        "turn 0": "invoke_agent boss",
        "turn 1": "invoke_agent boss",
        "chat script": "turn 1",
        "execute_tool ask_clerk": "turn 0",
        "invoke_agent ask_clerk": "execute_tool ask_clerk",
        "execute_tool weather": "turn 0",
    }
    spans = traces.spans
    run, call, child = spans["invoke_agent boss"], spans["execute_tool ask_clerk"], spans["invoke_agent ask_clerk"]
    assert of(run)["weftline.run_id"] == result.run_id
    assert of(run)["gen_ai.usage.input_tokens"] == result.usage.input
    assert of(call)["weftline.child_id"] == of(child)["weftline.run_id"] != result.run_id
    assert of(call)["weftline.turn_id"] == f"{result.run_id}.0"
    inner = of(spans["execute_tool weather"])
    assert (inner["gen_ai.tool.name"], inner["weftline.output_bytes"]) == ("weather", len("Lyon: sunny"))
    assert inner["weftline.run_id"] == of(child)["weftline.run_id"]
    assert inner["gen_ai.tool.call.id"] == inner["weftline.call_id"]
    asked = spans["chat script"]
    assert asked.kind is SpanKind.CLIENT
    assert {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "scripted", "weftline.attempt": 1}.items() <= of(
        asked
    ).items()
    for span in spans.values():
        assert span.start_time is not None and span.end_time is not None
        assert span.start_time <= span.end_time
        assert span.status.status_code is StatusCode.UNSET


@pytest.mark.requirement("loop.trace.spans")
async def test_failed_result_is_marked_as_error() -> None:
    traces = Traces()
    broken = {"error": {"class": "auth", "message": "bad key", "retryable": False}}
    agent = Agent(ScriptedModel([calls("weather", city="Atlantis"), broken]), name="lost", tools=[weather])
    trace(agent, tracer_provider=traces.provider)
    with pytest.raises(RunFailed):
        await agent.run("How is Atlantis?")
    failed = {name: of(span)["error.type"] for name, span in traces.spans.items() if not span.status.is_unset}
    assert failed == {
        "invoke_agent lost": "auth",
        "turn 1": "auth",
        "chat script": "auth",
        "execute_tool weather": "failed",
    }


@pytest.mark.requirement("loop.trace.spans")
async def test_an_agent_that_is_not_traced_emits_nothing() -> None:
    traces = Traces()
    traced, plain = Agent(ScriptedModel(["One."]), name="traced"), Agent(ScriptedModel(["Two."]), name="plain")
    trace(traced, tracer_provider=traces.provider)
    await plain.run("Go.")
    assert traces.spans == {}
    await traced.run("Go.")
    assert len(traces.spans) == 3


async def test_run_of_two_processes_is_one_tree_in_its_trace(
    tmp_path: Path,
) -> None:
    traces, model = Traces(), ScriptedModel([calls("ask_user", question="Where?"), "Sunny."])
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def agent() -> Agent:
        made = Agent("lab:script", name="forecast", tools=[ask_user])
        trace(made, tracer_provider=traces.provider)
        return made

    first = agent()
    async with Engine(tmp_path, agents=[first], models=catalog(model)) as engine:
        run = await engine.start(first, "Will it rain?", metadata={"traceparent": parent})
        await anext(event async for event in run if isinstance(event, AwaitOpened))
    assert traces.spans == {}
    async with Engine(tmp_path, agents=[agent()], models=catalog(model)) as engine:
        [asked] = await engine.awaits()
        run = engine.attach(asked.run_id)
        await run.answer(asked.id, "Lyon.")
        await run.result()
    assert traces.tree()["execute_tool ask_user"] == "turn 0"
    root = traces.spans["invoke_agent forecast"]
    assert root.parent is not None and f"{root.parent.trace_id:032x}" == parent.split("-")[1]
    assert of(traces.spans["execute_tool ask_user"])["weftline.how"] == "answered"


@pytest.mark.requirement("run.trace.conventions")
@pytest.mark.parametrize("content", [False, True])
async def test_spans_follow_conventions_and_hide_content_by_default(content: bool) -> None:
    traces = Traces()
    model = ScriptedModel([calls("weather", city="Lyon"), "Take no umbrella."])
    agent = Agent(model, name="forecast", tools=[weather], instructions="Be brief.")
    trace(agent, tracer_provider=traces.provider, content=content)
    result = await agent.run("An umbrella in Lyon?")
    spans = traces.spans
    assert spans.keys() == {"invoke_agent forecast", "turn 0", "turn 1", "chat script", "execute_tool weather"}
    run, chat, call = of(spans["invoke_agent forecast"]), of(spans["chat script"]), of(spans["execute_tool weather"])
    assert (run["gen_ai.operation.name"], run["gen_ai.agent.name"]) == ("invoke_agent", "forecast")
    assert run["gen_ai.usage.output_tokens"] == result.usage.output
    assert (chat["gen_ai.operation.name"], chat["gen_ai.request.model"]) == ("chat", "script")
    assert chat["gen_ai.usage.input_tokens"] > 0 and chat["gen_ai.usage.output_tokens"] > 0
    assert (call["gen_ai.operation.name"], call["gen_ai.tool.name"]) == ("execute_tool", "weather")
    everything = repr([run, chat, call])
    if not content:
        assert not any(word in everything for word in ("Lyon", "umbrella", "Be brief", "sunny"))
        return
    assert json.loads(run["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "An umbrella in Lyon?"}]}
    ]
    assert json.loads(run["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
    said = [{"role": "assistant", "parts": [{"type": "text", "content": "Take no umbrella."}]}]
    assert json.loads(run["gen_ai.output.messages"]) == json.loads(chat["gen_ai.output.messages"]) == said
    assert json.loads(call["gen_ai.tool.call.arguments"]) == {"city": "Lyon"}
    assert call["gen_ai.tool.call.result"] == "Lyon: sunny"


@pytest.mark.requirement("run.trace.conventions")
async def test_a_plain_cancellation_is_not_marked_as_failed() -> None:
    traces, begun = Traces(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel([calls("wait")]), name="patient", tools=[wait])
    trace(agent, tracer_provider=traces.provider)
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        await begun.wait()
        await run.cancel()
        await run.result()
    spans = traces.spans
    assert of(spans["invoke_agent patient"])["weftline.status"] == "cancelled"
    assert {span.status.status_code for span in spans.values()} == {StatusCode.UNSET}
