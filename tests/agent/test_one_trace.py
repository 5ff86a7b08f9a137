"""All spans of a run, and of the runs below it, are in one trace, whatever happens to the run in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from weftline import Agent, Engine, ask_user, tool
from weftline.agent.run import Run
from weftline.events import AwaitOpened
from weftline.runs import trace
from weftline.testing import ScriptedModel, calls
from weftline.trace_context import Trace, below, fallback_trace, parsed, span_id, trace_for

from .kit import scripted

PATIENCE_S = 60


class Seen(SpanProcessor):
    """What was begun and what was ended."""

    def __init__(self) -> None:
        self.begun: list[Span] = []
        self.ended: list[ReadableSpan] = []
        self.provider = TracerProvider()
        self.provider.add_span_processor(self)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.begun.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    @property
    def names(self) -> Counter[str]:
        return Counter([span.name for span in self.ended])

    @property
    def traces(self) -> set[str]:
        return {f"{span.context.trace_id:032x}" for span in self.ended if span.context is not None}


@tool(effect="read")
def look() -> str:
    """Looks."""
    return "seen"


def family(seen: Seen) -> Agent[Any, Any]:
    helper = Agent(
        ScriptedModel([calls("look"), calls("ask_user", question="Where?"), "There."]),
        name="helper",
        tools=[look, ask_user],
    )
    boss = Agent(
        ScriptedModel([calls("look"), calls("helper", task="Find it."), "Found."]),
        name="boss",
        tools=[look, helper.as_tool("Helps.")],
    )
    trace(boss, tracer_provider=seen.provider)
    return boss


async def trace_of(run: Run[Any]) -> Any:
    return (await run.entries(limit=1)).entries[0].body["plan"]["trace"]


async def asked_below(run: Run[Any]) -> None:
    async for event in run.events(children=True):
        if isinstance(event, AwaitOpened):
            return


@pytest.mark.requirement("run.trace.one")
async def test_run_that_waited_paused_and_moved_is_one_trace(tmp_path: Path) -> None:
    seen = Seen()
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, agents=[agent := family(seen)]) as engine:
            run = await engine.start(agent, "Go.")
            await asked_below(run)
            await run.pause()
            stored = await trace_of(run)
        assert seen.begun == [], "no span is open while a run waits, nor between two processes"
        async with Engine(tmp_path, agents=[family(seen)]) as engine:
            run = engine.attach(run.id)
            await run.resume()
            (question,) = await engine.awaits()
            await run.below(question.run_id).answer(question.id, "Here.")
            assert (await run.result()).text == "Found."
            below = await trace_of(engine.attach(question.run_id))
            # Neither a replay nor whoever opens the store again has anything to add.
            count = len(seen.ended)
            assert (await engine.replay(run.id)).divergence is None
        async with Engine(tmp_path, agents=[family(seen)]) as engine:
            await engine.attach(run.id).result()
            assert await trace_of(engine.attach(run.id)) == stored
    assert len(seen.begun) == len(seen.ended) == count
    assert seen.names == {
        **dict.fromkeys(("invoke_agent boss", "invoke_agent helper"), 1),
        **dict.fromkeys(("turn 0", "turn 1", "turn 2"), 2),
        "chat script": 6,
        "execute_tool look": 2,
        **dict.fromkeys(("execute_tool helper", "execute_tool ask_user"), 1),
    }
    assert seen.traces == {stored["id"]} == {below["id"]}
    ids = [span.context.span_id for span in seen.ended if span.context is not None]
    assert len(set(ids)) == len(ids)
    (call,) = [span for span in seen.ended if span.name == "execute_tool helper"]
    assert call.context is not None and below["parent"] == f"{call.context.span_id:016x}"
    (child,) = [span for span in seen.ended if span.name == "invoke_agent helper"]
    assert child.parent is not None and child.parent.span_id == call.context.span_id


@pytest.mark.requirement("run.trace.one")
async def test_run_cancelled_in_another_process_has_its_spans(tmp_path: Path) -> None:
    seen = Seen()
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, agents=[agent := family(seen)]) as engine:
            run = await engine.start(agent, "Go.")
            await asked_below(run)
        async with Engine(tmp_path, agents=[family(seen)]) as engine:
            run = engine.attach(run.id)
            await run.cancel()
            await run.result()
            stored = await trace_of(run)
    assert seen.traces == {stored["id"]} and seen.names["execute_tool ask_user"] == 1
    assert seen.names["invoke_agent boss"] == seen.names["invoke_agent helper"] == 1


async def test_untraced_run_has_no_trace_until_one_is_begun(tmp_path: Path) -> None:
    seen = Seen()
    agent, _ = scripted(calls("ask_user", question="Where?"), tools=[ask_user], name="lone")
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, agents=[agent]) as engine:
            run = await engine.start(agent, "Go.")
            await asked_below(run)
            assert await trace_of(run) is None
        trace(agent, tracer_provider=seen.provider)
        async with Engine(tmp_path, agents=[agent]) as engine:
            (question,) = await engine.awaits()
            run = engine.attach(run.id)
            await run.answer(question.id, "Here.")
            await run.result()
    assert seen.traces == {fallback_trace(run.id).id}


@pytest.mark.parametrize(
    ("sent", "trace"),
    [
        (f"00-{'a' * 32}-{'b' * 16}-01", Trace("a" * 32, "b" * 16, True, False)),
        (f"00-{'a' * 32}-{'b' * 16}-00", Trace("a" * 32, "b" * 16, False, False)),
        (f" 00-{'a' * 32}-{'b' * 16}-03 ", Trace("a" * 32, "b" * 16, True, False)),
        (f"cc-{'a' * 32}-{'b' * 16}-01-what-the-future-will-be-like", Trace("a" * 32, "b" * 16, True, False)),
        (f"00-{'a' * 32}-{'b' * 16}-01-more", None),
        (f"ff-{'a' * 32}-{'b' * 16}-01", None),
        (f"00-{'0' * 32}-{'b' * 16}-01", None),
        (f"00-{'a' * 32}-{'0' * 16}-01", None),
        (f"00-{'A' * 32}-{'b' * 16}-01", None),
        (f"cc-{'a' * 32}-{'b' * 16}-01-{'x' * 600}", None),
        ("", None),
        (None, None),
        (5, None),
    ],
)
def test_caller_traceparent_is_read_as_w3c_says(sent: object, trace: Trace | None) -> None:
    assert parsed(sent) == trace


def test_new_run_joins_the_trace_of_its_caller() -> None:
    caller, own = f"00-{'a' * 32}-{'b' * 16}-00", Trace("c" * 32)
    assert trace_for(None) is None and trace_for(own) == own
    assert trace_for(None, metadata=caller) == Trace("a" * 32, "b" * 16, False, spans=False)
    assert trace_for(own, metadata=caller) == Trace("a" * 32, "b" * 16, False, spans=True)
    called = span_id("run_1", "call.0.1")
    assert own.of_call("run_1", 0, 1) == f"00-{'c' * 32}-{called}-01"
    place: Any = {"run_id": "run_1", "turn": 0, "index": 1}
    assert below(None, None, **place) is None and below(None, own, **place) == own
    assert below(own, None, **place) == Trace("c" * 32, called)
    passed = Trace("a" * 32, "b" * 16, spans=False)
    assert below(passed, None, **place) == passed and below(passed, own, **place) == Trace("a" * 32, "b" * 16)
