from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from weftline.client import AsyncClient, InvalidSpec, ToolContext, a2a_agent, mcp_server, plugin_tool, stored_tool, tool

from .stand_in import StandIn, drop, reply, stream, success


class Unit(Enum):
    CELSIUS = "c"
    KELVIN = "k"


class Place(BaseModel):
    city: str
    country: str = "NO"


@tool
def weather(
    place: Place,
    unit: Unit = Unit.CELSIUS,
    days: Annotated[int, Field(ge=1, description="How far ahead.")] = 1,
    *,
    context: ToolContext,
) -> str:
    """The weather of a place.

    It is never quite right.

    Args:
        place: Where.
        unit: Of the temperature,
            which may be omitted.

    Returns:
        A sentence.
    """
    return f"{place.city} {unit.value} {days} {context.name}"


def finishing(stand_in: StandIn) -> StandIn:
    return stand_in.run("run_1", stream(success(1)))


@pytest.mark.requirement("wire.client.passthrough")
async def test_options_are_sent_as_they_are_given(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    finishing(stand_in)
    schema: dict[str, Any] = {"name": "answer", "schema": {"type": "object", "x": [1.5, None]}}
    await to_stand_in.run(
        "hi",
        name="n",
        system_prompt="be brief",
        model_id="m",
        reasoning_level=42,
        output_schema=schema,
        loop_detection=False,
        tool_budgets={},
        budgets={"maxToolTurns": 3},
        metadata={"a": "b"},
    )
    assert stand_in.to("POST", "/agent-runs")[0].json == {
        "prompt": "hi",
        "name": "n",
        "systemPrompt": "be brief",
        "modelId": "m",
        "reasoningLevel": 42,
        "outputSchema": schema,
        "loopDetection": False,
        "toolBudgets": {},
        "budgets": {"maxToolTurns": 3},
        "metadata": {"a": "b"},
        "tools": [],
    }


@pytest.mark.requirement("wire.client.passthrough")
async def test_unset_setting_is_not_sent(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    finishing(stand_in)
    messages = [{"role": "user", "content": "hi"}]
    await to_stand_in.run(messages=messages, reasoning_level=None, loop_detection={"consecutiveThreshold": 4})
    assert stand_in.to("POST", "/agent-runs")[0].json == {
        "messages": messages,
        "loopDetection": {"consecutiveThreshold": 4},
        "tools": [],
    }


@pytest.mark.requirement("wire.client.passthrough")
async def test_typed_parameters_become_a_schema(client: AsyncClient) -> None:
    run = await client.start("hi", model_id="scripted:hello", tools=[weather])
    await run.result()
    ref = (await run.snapshot()).spec["tools"][0]
    assert (ref["kind"], ref["name"]) == ("local", "weather")
    assert ref["description"] == "The weather of a place.\n\nIt is never quite right."
    properties = ref["parameters"]["properties"]
    assert set(properties) == {"place", "unit", "days"}
    assert ref["parameters"]["required"] == ["place"]
    assert properties["place"]["description"] == "Where."
    assert properties["unit"]["description"] == "Of the temperature, which may be omitted."
    assert properties["days"] == {"default": 1, "description": "How far ahead.", "minimum": 1, "type": "integer"}


async def test_tools_of_the_server_are_sent_as_references(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    finishing(stand_in)
    tools = [
        plugin_tool("@web/search"),
        stored_tool("tool_1"),
        mcp_server("docs", "http://mcp", headers={"X": "y"}, only=["find"]),
        a2a_agent("peer", "http://card", description="d", context_id="c"),
        {"kind": "mantyx_plugin", "name": "calculator", "extra": 1},
    ]
    await to_stand_in.run("hi", tools=tools)
    assert stand_in.to("POST", "/agent-runs")[0].json["tools"] == [
        {"kind": "mantyx_plugin", "name": "@web/search"},
        {"kind": "mantyx", "id": "tool_1"},
        {"kind": "mcp", "name": "docs", "url": "http://mcp", "headers": {"X": "y"}, "toolFilter": ["find"]},
        {"kind": "a2a", "name": "peer", "agentCardUrl": "http://card", "description": "d", "contextId": "c"},
        {"kind": "mantyx_plugin", "name": "calculator", "extra": 1},
    ]


async def test_a_run_needs_a_prompt_or_messages(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    with pytest.raises(InvalidSpec):
        await to_stand_in.run()
    with pytest.raises(ValueError):
        await to_stand_in.run("hi", messages=[{"role": "user", "content": "hi"}])
    assert stand_in.asked == []


async def test_create_that_got_no_answer_is_repeated_under_same_key(
    to_stand_in: AsyncClient, stand_in: StandIn
) -> None:
    finishing(stand_in)
    busy = reply({"error": "unavailable"}, status=503, headers={"Retry-After": "0"})
    limited = reply({"error": "rate_limited"}, status=429, headers={"Retry-After": "0.01"})
    stand_in.on("POST", "/agent-runs", drop, busy, limited, reply({"runId": "run_1"}, status=202))
    assert (await to_stand_in.run("hi")).text == "done"
    asked = stand_in.to("POST", "/agent-runs")
    assert len(asked) == 4
    assert len({one.headers["Idempotency-Key"] for one in asked}) == 1


async def test_a_repeated_create_makes_one_run(client: AsyncClient) -> None:
    first = await client.start("hi", model_id="scripted:hello", idempotency_key="the-same-key")
    second = await client.start("hi", model_id="scripted:hello", idempotency_key="the-same-key")
    assert first.id == second.id


async def test_the_catalog_lists_models(client: AsyncClient) -> None:
    catalog = await client.list_models()
    assert "scripted:hello" in {model.id for model in catalog.models}


async def test_lists_ask_with_filters_and_give_pages(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    row = {"id": "run_1", "status": "succeeded", "metadata": {"a": "b"}, "tokens": None}
    stand_in.on("GET", "/agent-runs", reply({"runs": [row], "nextCursor": "c2"}))
    stand_in.on("GET", "/agent-sessions", reply({"sessions": [{"id": "ses_1"}], "nextCursor": None}))
    page = await to_stand_in.list_runs(
        status="succeeded", session_id="ses_1", metadata={"a": "b:c"}, limit=5, cursor="c1"
    )
    assert [run.id for run in page.items] == ["run_1"]
    assert page.next_cursor == "c2"
    assert stand_in.asked[0].query == {
        "status": "succeeded",
        "sessionId": "ses_1",
        "metadata": "a:b:c",
        "limit": "5",
        "cursor": "c1",
    }
    sessions = await to_stand_in.list_sessions(agent_id="x")
    assert ([one.id for one in sessions.items], sessions.next_cursor) == (["ses_1"], None)


async def test_runs_and_sessions_are_listed_page_by_page(client: AsyncClient) -> None:
    made = [(await client.run("hi", model_id="scripted:hello", metadata={"batch": "7"})).run_id for _ in range(3)]
    first = await client.list_runs(metadata={"batch": "7"}, status="succeeded", limit=2)
    rest = await client.list_runs(metadata={"batch": "7"}, status="succeeded", limit=2, cursor=first.next_cursor)
    assert [run.id for run in (*first.items, *rest.items)] == made[::-1]
    assert rest.next_cursor is None
    session = await client.create_session(model_id="scripted:hello", metadata={"batch": "8"})
    assert [one.id for one in (await client.list_sessions(metadata={"batch": "8"})).items] == [session.id]
    await session.end()
