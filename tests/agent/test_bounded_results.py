"""Results that are a part of something larger, and what calls leave for others than the model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weftline import ToolContext, ToolFailed, tool
from weftline.agent.run import Run
from weftline.events import CallFinished
from weftline.failure import Bounds
from weftline.hooks import ToolAfter
from weftline.testing import calls
from weftline.tools import Bounded, Paging, ServerData, ToolOutput

from .kit import last_words, results_in, scripted


def listing(result: object, *, bounded: bool | Paging = True) -> Any:
    @tool(effect="read", name="list", bounded=bounded)
    def listed(query: str = "", cursor: str = "") -> Any:
        """Lists."""
        if isinstance(result, Exception):
            raise result
        return result

    return listed


@pytest.mark.requirement("run.result.bounds")
@pytest.mark.parametrize(
    ("result", "bounded", "fault"),
    [
        ({"items": []}, True, "says nothing about how much"),
        (Bounded(value={}, returned=1), False, "not declared bounded"),
        (Bounded(value={}, returned=1, truncated=True), True, "neither how to continue"),
        (Bounded(value={}, returned=1, truncated=True, next_cursor="c"), True, "no paging"),
        (Bounded(value={}, returned=-1), True, "counts make no sense"),
        (Bounded(value={}, returned=2, total=1), True, "counts make no sense"),
        (Bounded(value=[1], returned=1), True, "not a JSON object"),
        (ToolFailed("No."), True, ""),
        (Bounded(value=ToolOutput.of("No.", is_error=True), returned=0), True, "although it failed"),
    ],
)
async def test_a_tool_has_to_keep_its_word_about_bounds(result: object, bounded: bool, fault: str) -> None:
    agent, _ = scripted(calls("list"), tools=[listing(result, bounded=bounded)])
    [call] = (await agent.run("Go.")).calls
    assert call.failure is not None and call.bounds is None
    assert call.failure.kind == ("malformed_result" if fault else "domain_rejection")
    assert fault in call.result


async def test_error_of_bounded_tool_is_error_like_any_other() -> None:
    agent, _ = scripted(calls("list"), tools=[listing(ToolFailed("No."))])
    [call] = (await agent.run("Go.")).calls
    assert (call.result, call.how) == ("No.", "failed")


@pytest.mark.requirement("run.result.bounds")
async def test_model_reads_bounds_whatever_tool_wrote_under_their_names() -> None:
    value = {"items": [1], "returned": 99, "total": 99, "truncated": False, "refinement_hint": "x", "next": "x"}
    paging = Paging("cursor", "next")
    cut = Bounded(value=value, returned=1, total=7, truncated=True, next_cursor="c2", refinement_hint="Ask for less.")
    agent, model = scripted(calls("list"), tools=[listing(cut, bounded=paging)])
    result = await agent.run("Go.")
    assert json.loads(results_in(result.messages)[0]) == {
        "items": [1],
        "returned": 1,
        "truncated": True,
        "total": 7,
        "refinement_hint": "Ask for less.",
        "next": "c2",
    }
    assert result.calls[0].bounds == Bounds(1, 7, True, "c2", "Ask for less.")
    whole = Bounded(value=value, returned=1)
    agent, model = scripted(calls("list"), tools=[listing(whole, bounded=paging)])
    result = await agent.run("Go.")
    assert json.loads(results_in(result.messages)[0]) == {"items": [1], "returned": 1, "truncated": False}
    assert not last_words(model.requests[1])


@pytest.mark.requirement("run.reminder.after_results")
async def test_model_reads_all_reminders_in_call_order() -> None:
    cut = listing(Bounded(value={}, returned=1, truncated=True, next_cursor="c2"), bounded=Paging("cursor"))
    price = tool(effect="read", name="price", reminder="Prices are net.")(_price)
    less = tool(effect="read", name="less", bounded=True)(_less)
    turn = calls(("list", {}), ("price", {}), ("less", {}), ("price", {"sku": []}))
    agent, model = scripted(turn, calls("price"), tools=[cut, price, less])
    await agent.run("Go.")
    said = last_words(model.requests[1]).split("</system-reminder>\n")
    assert len(said) == 4
    assert '1 returned, unknown in total.\nFor the rest, call it again with cursor set to "c2".' in said[0]
    assert "About the result of price: Prices are net." in said[1]
    assert "3 returned, 9 in total.\nTo narrow it down: Name a month." in said[2]
    assert "A call to price failed (invalid_arguments)" in said[3] and 'You sent: {"sku":[]}' in said[3]
    assert all("do not mention it" in one for one in said)
    quiet = listing(Bounded(value={}, returned=1))
    agent, model = scripted(calls("list"), tools=[quiet])
    await agent.run("Go.")
    assert not last_words(model.requests[1])


def _price(sku: str = "a") -> str:
    """The price."""
    return "12"


def _less() -> Bounded:
    """Lists."""
    return Bounded(value={}, returned=3, total=9, truncated=True, refinement_hint="Name a month.")


def test_paging_needs_an_argument_for_the_cursor() -> None:
    with pytest.raises(ValueError, match="has no argument 'page' for the cursor"):
        tool(effect="read", name="price", bounded=Paging("page"))(_price)


# What no model reads


@tool(effect="read")
def search(context: ToolContext) -> str:
    """Searches."""
    context.server_data += [
        ServerData("chart", {"points": [1, 2]}, "timeline"),
        ServerData("rows", ["secret-row"]),
        ServerData("source", "secret-source", "evidence"),
        ServerData("broken", {1: object()}, "timeline"),
    ]
    return "found"


@pytest.mark.requirement("run.result.server_data")
async def test_call_leftovers_are_logged_and_hidden_from_models() -> None:
    agent, model = scripted(calls("search"), tools=[search])
    seen: list[tuple[ServerData, ...]] = []

    @agent.on(ToolAfter)
    def look(after: ToolAfter) -> None:
        seen.append(after.server_data)

    async with agent.stream("Go.") as run:
        assert isinstance(run, Run)
        events = [event async for event in run]
        result = await run.result()
    kept = (
        ServerData("chart", {"points": [1, 2]}, "timeline"),
        ServerData("rows", ["secret-row"]),
        ServerData("source", "secret-source", "evidence"),
    )
    assert result.calls[0].server_data == kept and seen == [kept]
    [finished] = [event for event in events if isinstance(event, CallFinished)]
    assert finished.server_data == kept[:1] and finished.preview == "found"
    assert "secret" not in str(events) and "chart" not in str(model.requests[1].messages)
    assert "secret" not in str(result.messages)
