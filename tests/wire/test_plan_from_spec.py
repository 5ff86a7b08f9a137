"""What a client sent as a plan: limits with their defaults, messages, tools."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from weftline.messages import Assistant, OutputSchema, System, Text, User
from weftline.plan import A2ALocalRef, A2ARef, LocalRef, McpLocalEntry, McpLocalRef, McpRef, ServerRef, StoredRef
from weftline.spec.door import parse_run
from weftline.spec.plan import plan_from_spec
from weftline.wire.limits import DEFAULT_TOOL_BUDGETS

STORED = {"kind": "mantyx", "id": "tool_1"}
"""What a stored tool is called is not known until the run begins, so it keeps every default budget."""


def stored(**fields: Any) -> bytes:
    return parse_run(msgspec.json.encode({"prompt": "hi", **fields})).spec


@pytest.mark.requirement("wire.spec.system_prompt")
def test_a_bare_prompt_becomes_a_plan_of_defaults() -> None:
    plan = plan_from_spec(stored())
    assert plan.messages == (User.of("hi"),)
    assert (plan.name, plan.system, plan.model, plan.agent_id, plan.reasoning) == ("ephemeral", None, None, None, None)
    assert (plan.tools, plan.output_schema, plan.metadata) == ((), None, {})
    limits = plan.limits
    assert (limits.max_tool_turns, limits.on_max_tool_turns) == (100, "error")
    assert (limits.loop_soft, limits.loop_hard) == (3, 6)
    assert (limits.local_timeout_us, limits.on_local_timeout) == (300_000_000, "end")


@pytest.mark.requirement("wire.spec.system_prompt")
@pytest.mark.parametrize("prompt", [None, ""])
def test_an_empty_system_prompt_is_none(prompt: str | None) -> None:
    assert plan_from_spec(stored(systemPrompt=prompt)).system is None
    assert plan_from_spec(stored(systemPrompt="Be brief.")).system == "Be brief."


@pytest.mark.requirement("wire.spec.prompt_or_messages")
def test_messages_keep_their_order_and_roles() -> None:
    roles = ("system", "user", "assistant", "user")
    spec = stored(prompt=None, messages=[{"role": role, "content": role.upper()} for role in roles])
    assert plan_from_spec(spec).messages == (
        System("SYSTEM"),
        User.of("USER"),
        Assistant((Text("ASSISTANT"),)),
        User.of("USER"),
    )


@pytest.mark.requirement("wire.spec.reasoning_level")
@pytest.mark.parametrize(
    ("sent", "level"),
    [
        ("off", 0),
        ("minimal", 15),
        ("low", 30),
        ("medium", 50),
        ("high", 80),
        (0, 0),
        (37, 37),
        (50.0, 50),
        (None, None),
    ],
)
def test_reasoning_is_one_scale(sent: Any, level: int | None) -> None:
    assert plan_from_spec(stored(reasoningLevel=sent)).reasoning == level


@pytest.mark.parametrize(
    ("sent", "soft", "hard"),
    [
        (None, 3, 6),
        ({}, 3, 6),
        ({"consecutiveThreshold": 5}, 5, 6),
        ({"consecutiveThreshold": 6}, 6, 7),
        ({"consecutiveThreshold": 100}, 100, 101),
        ({"hardCutoffThreshold": 3}, 2, 3),
        ({"hardCutoffThreshold": 4}, 3, 4),
        ({"hardCutoffThreshold": 90}, 3, 90),
        ({"consecutiveThreshold": None, "hardCutoffThreshold": None}, 3, 6),
        ({"consecutiveThreshold": 10, "hardCutoffThreshold": 20}, 10, 20),
    ],
)
def test_an_implicit_loop_threshold_makes_way(sent: Any, soft: int, hard: int) -> None:
    limits = plan_from_spec(stored(loopDetection=sent)).limits
    assert (limits.loop_soft, limits.loop_hard) == (soft, hard)


def test_loop_detection_can_be_switched_off() -> None:
    limits = plan_from_spec(stored(loopDetection=False)).limits
    assert (limits.loop_soft, limits.max_tool_turns) == (0, 100)


@pytest.mark.requirement("wire.spec.tool_budgets_defaults")
def test_tool_budgets_lie_over_the_default_table() -> None:
    assert plan_from_spec(stored(tools=[STORED])).limits.tool_budgets == {
        "recall": 4,
        "traverse": 3,
        **{f"{word}_consult_ontology": 4 for word in ("hive", "knowledge")},
        **{
            f"{word}_search_{what}": 5
            for word in ("hive", "knowledge")
            for what in (
                "deals",
                "meetings",
                "companies",
                "people",
                "tickets",
                "conversations",
                "accounts",
                "releases",
                "issues",
            )
        },
    }
    assert plan_from_spec(stored(tools=[STORED], toolBudgets={})).limits.tool_budgets == {}
    sent = {"recall": {"maxCalls": 0}, "mine": {"maxCalls": 9}}
    over = plan_from_spec(stored(tools=[STORED], toolBudgets=sent)).limits
    assert over.tool_budgets == {**DEFAULT_TOOL_BUDGETS, "recall": 0, "mine": 9}
    assert plan_from_spec(stored(toolBudgets=sent)).limits.tool_budgets == {"recall": 0, "mine": 9}


def test_table_of_defaults_applies_when_only_other_limits_are_given() -> None:
    limits = plan_from_spec(stored(tools=[STORED], loopDetection=False)).limits
    assert limits.tool_budgets == DEFAULT_TOOL_BUDGETS


@pytest.mark.parametrize(
    ("tool", "budgets"),
    [
        (None, {}),
        ({"kind": "local", "name": "other"}, {}),
        ({"kind": "local", "name": "recall"}, {"recall": 4}),
        ({"kind": "mantyx_plugin", "name": "traverse"}, {"traverse": 3}),
        ({"kind": "mantyx_plugin", "name": "@graph/traverse"}, {"traverse": 3}),
        ({"kind": "mantyx_plugin", "name": "@hive/hive-search-deals"}, {"hive_search_deals": 5}),
        ({"kind": "mcp_local", "name": "s", "tools": [{"name": "recall"}, {"name": "x"}]}, {"recall": 4}),
        ({"kind": "mantyx", "id": "tool_1"}, DEFAULT_TOOL_BUDGETS),
        ({"kind": "mcp", "name": "m", "url": "https://m"}, DEFAULT_TOOL_BUDGETS),
    ],
)
def test_run_carries_default_budgets_of_tools_that_it_may_have(tool: Any, budgets: dict[str, int]) -> None:
    assert plan_from_spec(stored(tools=[tool] if tool else [])).limits.tool_budgets == budgets


@pytest.mark.parametrize(("sent", "turns"), [(0, 0), (32, 32), (100, 100), (101, 100), (10**30, 100), (None, 100)])
def test_more_than_a_hundred_tool_turns_act_as_a_hundred(sent: int | None, turns: int) -> None:
    assert plan_from_spec(stored(budgets={"maxToolTurns": sent})).limits.max_tool_turns == turns


def test_the_other_budgets_are_read() -> None:
    budgets = {"maxToolTurnsExceeded": "finalize", "localToolTimeoutMs": 1500, "onLocalToolTimeout": "report"}
    limits = plan_from_spec(stored(budgets=budgets)).limits
    assert limits.on_max_tool_turns == "finalize"
    assert (limits.local_timeout_us, limits.on_local_timeout) == (1_500_000, "report")


@pytest.mark.requirement("wire.spec.output_schema")
def test_an_output_schema_is_kept_verbatim_under_its_name() -> None:
    raw = b'{"prompt":"hi","outputSchema":{"schema":{ "minimum":1.0,"type":"nonsense" }}}'
    assert plan_from_spec(parse_run(raw).spec).output_schema == OutputSchema(
        "output", Raw(b'{ "minimum":1.0,"type":"nonsense" }')
    )
    named = plan_from_spec(stored(outputSchema={"name": "report", "schema": {}})).output_schema
    assert named == OutputSchema("report", Raw(b"{}"))


def test_each_kind_of_ref_becomes_its_own() -> None:
    spec = stored(
        tools=[
            {"kind": "mantyx", "id": "tool_1"},
            {"kind": "mantyx_plugin", "name": "@p/t"},
            {"kind": "local", "name": "l", "description": "d", "longRunning": True},
            {"kind": "a2a", "name": "a", "agentCardUrl": "https://a", "contextId": "c", "headers": {"K": "v"}},
            {"kind": "a2a_local", "name": "al", "agentCard": {"name": "n"}},
            {"kind": "mcp", "name": "m", "url": "https://m", "toolFilter": ["x-y"], "headers": {"K": "v"}},
            {"kind": "mcp_local", "name": "s", "tools": [{"name": "t"}], "serverInfo": None},
        ]
    )
    assert plan_from_spec(spec).tools == (
        StoredRef("tool_1"),
        ServerRef("@p/t"),
        LocalRef("l", "d", UNSET, UNSET, True),
        A2ARef("a", "https://a", None, "c"),
        A2ALocalRef("al", Raw(b'{"name":"n"}')),
        McpRef("m", "https://m", ("x-y",)),
        McpLocalRef("s", (McpLocalEntry("t", Raw(b'{"name":"t"}')),), UNSET),
    )


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}}, True),
        ({"type": "object", "properties": {}}, True),
        ({"type": "object"}, False),
        ({"type": "object", "properties": []}, False),
        ({"type": "array", "properties": {}}, False),
        ({"properties": {}}, False),
        ([], False),
        ("x", False),
        (True, False),
        (None, False),
    ],
)
def test_parameters_that_are_no_object_schema_count_as_not_given(schema: Any, kept: bool) -> None:
    (tool,) = plan_from_spec(stored(tools=[{"kind": "local", "name": "t", "parameters": schema}])).tools
    assert isinstance(tool, LocalRef)
    assert tool.parameters == (Raw(msgspec.json.encode(schema)) if kept else UNSET)


@pytest.mark.parametrize(("schema", "kept"), [({"type": "object"}, True), ({"type": "array"}, False), (5, False)])
def test_an_output_schema_of_another_root_is_dropped(schema: Any, kept: bool) -> None:
    (tool,) = plan_from_spec(stored(tools=[{"kind": "local", "name": "t", "outputSchema": schema}])).tools
    assert isinstance(tool, LocalRef)
    assert (tool.output_schema is not UNSET) is kept
