from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.client import AsyncClient
from weftline.events import BudgetExceeded, CallFinished, CallOpened, LoopDetected, RunStarted, UnknownEvent
from weftline.net.sse import SseParser

from .stand_in import StandIn, flat, hybrid, nested, stream, success, unnamed


@pytest.mark.requirement("wire.client.events")
@pytest.mark.parametrize("frame", [hybrid, flat, nested, unnamed])
async def test_every_shape_of_body_is_read(
    to_stand_in: AsyncClient, stand_in: StandIn, frame: Callable[..., bytes]
) -> None:
    stand_in.run(
        "run_1",
        stream(
            frame(1, "started", runId="run_1"),
            frame(2, "loop_detected", consecutiveCount=3, hardCutoff=False, tools=["a"]),
            frame(3, "tool_budget_exceeded", tool="a", maxCalls=1, callIndex=2),
            frame(4, "tool_result", toolUseId="u", name="a", ok=False, summary="s"),
            frame(5, "result", subtype="success", text="done"),
        ),
    )
    result = await to_stand_in.run("hi")
    assert [frame.type for frame in result.frames] == [
        "started",
        "loop_detected",
        "tool_budget_exceeded",
        "tool_result",
        "result",
    ]
    _, loop, budget, told, _ = result.events
    assert isinstance(loop, LoopDetected)
    assert (loop.count, loop.hard, loop.tools) == (3, False, ("a",))
    assert isinstance(budget, BudgetExceeded)
    assert (budget.tool, budget.max_calls, budget.call_index) == ("a", 1, 2)
    assert isinstance(told, CallFinished)
    assert (told.call_id, told.ok, told.result, told.how) == ("u", False, "s", "failed")
    assert {event.run_id for event in result.events} == {"run_1"}
    assert result.text == "done"


@pytest.mark.requirement("wire.client.events")
async def test_events_of_unknown_types_pass_through(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    payload = {"deep": {"x": [1, None]}, "n": 2}
    stand_in.run("run_1", stream(hybrid(1, "from_the_future", **payload), hybrid(2, "started", runId=5), success(3)))
    first, second, _ = (await to_stand_in.run("hi")).events
    assert isinstance(first, UnknownEvent)
    assert (first.type, first.seq, first.data) == ("from_the_future", 1, payload)
    assert isinstance(second, RunStarted)


async def test_a_known_type_of_an_unknown_shape_passes_through_too(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    stand_in.run("run_1", stream(hybrid(1, "loop_detected", consecutiveCount={"a": 1}), success(2)))
    first, _ = (await to_stand_in.run("hi")).events
    assert isinstance(first, UnknownEvent)
    assert (first.type, first.data) == ("loop_detected", {"consecutiveCount": {"a": 1}})


async def test_the_arguments_of_a_call_may_be_named_input(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    stand_in.run("run_1", stream(flat(1, "local_tool_call", toolUseId="u", name="x", input={"a": 1}), success(2)))
    first, _ = (await to_stand_in.run("hi")).events
    assert isinstance(first, CallOpened)
    assert (first.args, first.client) == ({"a": 1}, "local")


async def test_lines_may_end_in_any_way(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    frames = hybrid(1, "started") + success(2)
    stand_in.run("run_1", stream(frames.replace(b"\n", b"\r\n")))
    assert (await to_stand_in.run("hi")).text == "done"


@given(st.lists(st.integers(0, 400), max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_frames_do_not_depend_on_how_they_were_cut(cuts: list[int], newline: bytes) -> None:
    whole = (hybrid(1, "started") + b": beat\n\n" + flat(2, "x", text="é") + unnamed(3, "y")).replace(b"\n", newline)
    expected = SseParser().feed(whole + b"data: rest")
    parser = SseParser()
    edges = [0, *sorted(cuts), len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(edges)]
    found = [frame for piece in pieces for frame in parser.feed(piece)]
    assert found == expected[: len(found)]
    # A lone CR at the very end may be half of a CRLF, but it still ends its line.
    assert len(found) == 3
