"""Every limit of a run's body: what stands at the limit is taken, what goes beyond is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from refusals import paths, refused

from weftline.errors import InvalidRequest
from weftline.spec.door import parse_message, parse_run, parse_session
from weftline.spec.plan import plan_from_spec

Json = dict[str, Any]


def body(**fields: Any) -> bytes:
    return msgspec.json.encode({"prompt": "hi", **fields})


def metadata_of(size: int) -> dict[str, str]:
    """A map of 16 entries whose compact JSON has exactly `size` bytes."""
    filled = {f"k{index:02}": "é" * 508 for index in range(15)} | {"k15": ""}
    left = size - len(msgspec.json.encode(filled))
    filled["k15"] = "é" * (left // 2) + "v" * (left % 2)
    assert len(msgspec.json.encode(filled)) == size
    return filled


def schema_of(size: int) -> Json:
    schema: Json = {"schema": {"description": ""}}
    schema["schema"]["description"] = "é" + "x" * (size - len(msgspec.json.encode(schema)) - 2)
    assert len(msgspec.json.encode(schema)) == size
    return schema


ACCEPTED: list[tuple[str | None, Json]] = [
    ("wire.spec.system_prompt", {"systemPrompt": ""}),
    ("wire.spec.system_prompt", {"systemPrompt": None}),
    ("wire.spec.reasoning_level", {"reasoningLevel": "off"}),
    ("wire.spec.reasoning_level", {"reasoningLevel": "minimal"}),
    ("wire.spec.reasoning_level", {"reasoningLevel": 0}),
    ("wire.spec.reasoning_level", {"reasoningLevel": 100}),
    ("wire.spec.reasoning_level", {"reasoningLevel": 37.0}),
    ("wire.spec.output_schema", {"outputSchema": {"schema": {}}}),
    ("wire.spec.output_schema", {"outputSchema": {"name": "a-Z_0" + "x" * 59, "schema": {"type": 7}}}),
    ("wire.spec.output_schema", {"outputSchema": {"name": None, "schema": {}}}),
    ("wire.spec.output_schema", {"outputSchema": schema_of(32 * 1024)}),
    ("wire.spec.loop_detection_limits", {"loopDetection": False}),
    ("wire.spec.loop_detection_limits", {"loopDetection": {}}),
    ("wire.spec.loop_detection_limits", {"loopDetection": {"consecutiveThreshold": 2, "hardCutoffThreshold": 3}}),
    ("wire.spec.loop_detection_limits", {"loopDetection": {"consecutiveThreshold": 99, "hardCutoffThreshold": 100}}),
    ("wire.spec.loop_detection_defaults", {"loopDetection": {"consecutiveThreshold": 100}}),
    ("wire.spec.loop_detection_defaults", {"loopDetection": {"hardCutoffThreshold": 3}}),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": {}}),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": {"x" * 120: {"maxCalls": 0}, "y": {"maxCalls": 1000}}}),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": {f"t{n}": {"maxCalls": 1} for n in range(32)}}),
    (None, {"budgets": {"maxToolTurns": 0}}),
    (None, {"budgets": {"maxToolTurns": 10**30}}),
    (None, {"budgets": {"maxToolTurnsExceeded": "finalize"}}),
    (None, {"budgets": {"maxToolTurnsExceeded": "error"}}),
    (None, {"budgets": {"localToolTimeoutMs": 1, "onLocalToolTimeout": "report"}}),
    (None, {"budgets": {"localToolTimeoutMs": 604_800_000, "onLocalToolTimeout": "end"}}),
    ("wire.spec.metadata_limits", {"metadata": {}}),
    ("wire.spec.metadata_limits", {"metadata": {"aZ0._-" + "k" * 58: "é" * 512}}),
    ("wire.spec.metadata_limits", {"metadata": metadata_of(16_384)}),
    (None, {"name": "n" * 256}),
    (None, {"agentId": "agt_Az09-" + "x" * 119}),
]

REFUSED: list[tuple[str | None, Json, str]] = [
    ("wire.spec.prompt_or_messages", {"prompt": 5}, "prompt"),
    ("wire.spec.prompt_or_messages", {"prompt": None}, "prompt"),
    ("wire.spec.prompt_or_messages", {"messages": [{"role": "user", "content": "x"}]}, "messages"),
    ("wire.spec.prompt_or_messages", {"prompt": None, "messages": []}, "messages"),
    ("wire.spec.prompt_or_messages", {"prompt": None, "messages": {}}, "messages"),
    (
        "wire.spec.prompt_or_messages",
        {"prompt": None, "messages": [{"role": "tool", "content": "x"}]},
        "messages[0].role",
    ),
    ("wire.spec.prompt_or_messages", {"prompt": None, "messages": [{"role": "user"}]}, "messages[0].content"),
    (
        "wire.spec.prompt_or_messages",
        {"prompt": None, "messages": [{"role": "user", "content": "x"}, {"role": "user", "content": []}]},
        "messages[1].content",
    ),
    ("wire.spec.system_prompt", {"systemPrompt": 1}, "systemPrompt"),
    ("wire.spec.system_prompt", {"name": 1}, "name"),
    ("wire.spec.system_prompt", {"name": "n" * 257}, "name"),
    (None, {"agentId": ""}, "agentId"),
    (None, {"agentId": "a/b"}, "agentId"),
    (None, {"agentId": "agt_1\n"}, "agentId"),
    (None, {"agentId": "x" * 129}, "agentId"),
    (None, {"modelId": 3}, "modelId"),
    (None, {"modelId": ""}, "modelId"),
    ("wire.spec.reasoning_level", {"reasoningLevel": True}, "reasoningLevel"),
    ("wire.spec.reasoning_level", {"reasoningLevel": False}, "reasoningLevel"),
    ("wire.spec.reasoning_level", {"reasoningLevel": 0.5}, "reasoningLevel"),
    ("wire.spec.reasoning_level", {"reasoningLevel": -1}, "reasoningLevel"),
    ("wire.spec.reasoning_level", {"reasoningLevel": 101}, "reasoningLevel"),
    ("wire.spec.reasoning_level", {"reasoningLevel": 10**40}, "reasoningLevel"),
    ("wire.spec.reasoning_level", {"reasoningLevel": "High"}, "reasoningLevel"),
    ("wire.spec.reasoning_level", {"reasoningLevel": "30"}, "reasoningLevel"),
    ("wire.spec.reasoning_level", {"reasoningLevel": []}, "reasoningLevel"),
    ("wire.spec.output_schema", {"outputSchema": "x"}, "outputSchema"),
    ("wire.spec.output_schema", {"outputSchema": {}}, "outputSchema.schema"),
    ("wire.spec.output_schema", {"outputSchema": {"schema": None}}, "outputSchema.schema"),
    ("wire.spec.output_schema", {"outputSchema": {"schema": []}}, "outputSchema.schema"),
    ("wire.spec.output_schema", {"outputSchema": {"schema": 1}}, "outputSchema.schema"),
    ("wire.spec.output_schema", {"outputSchema": {"schema": {}, "name": ""}}, "outputSchema.name"),
    ("wire.spec.output_schema", {"outputSchema": {"schema": {}, "name": "a b"}}, "outputSchema.name"),
    ("wire.spec.output_schema", {"outputSchema": {"schema": {}, "name": "x" * 65}}, "outputSchema.name"),
    ("wire.spec.output_schema", {"outputSchema": {"schema": {}, "name": "x\n"}}, "outputSchema.name"),
    ("wire.spec.output_schema", {"outputSchema": schema_of(32 * 1024 + 1)}, "outputSchema"),
    ("wire.spec.loop_detection_limits", {"loopDetection": True}, "loopDetection"),
    ("wire.spec.loop_detection_limits", {"loopDetection": 3}, "loopDetection"),
    (
        "wire.spec.loop_detection_limits",
        {"loopDetection": {"consecutiveThreshold": 1}},
        "loopDetection.consecutiveThreshold",
    ),
    (
        "wire.spec.loop_detection_limits",
        {"loopDetection": {"consecutiveThreshold": 101}},
        "loopDetection.consecutiveThreshold",
    ),
    (
        "wire.spec.loop_detection_limits",
        {"loopDetection": {"consecutiveThreshold": True}},
        "loopDetection.consecutiveThreshold",
    ),
    (
        "wire.spec.loop_detection_limits",
        {"loopDetection": {"hardCutoffThreshold": 2}},
        "loopDetection.hardCutoffThreshold",
    ),
    (
        "wire.spec.loop_detection_limits",
        {"loopDetection": {"hardCutoffThreshold": 101}},
        "loopDetection.hardCutoffThreshold",
    ),
    (
        "wire.spec.loop_detection_limits",
        {"loopDetection": {"hardCutoffThreshold": 4.5}},
        "loopDetection.hardCutoffThreshold",
    ),
    (
        "wire.spec.loop_detection_limits",
        {"loopDetection": {"consecutiveThreshold": 5, "hardCutoffThreshold": 5}},
        "loopDetection",
    ),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": []}, "toolBudgets"),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": {"": {"maxCalls": 1}}}, "toolBudgets.''"),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": {"x": 5}}, "toolBudgets.x"),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": {"x": {}}}, "toolBudgets.x.maxCalls"),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": {"x": {"maxCalls": -1}}}, "toolBudgets.x.maxCalls"),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": {"x": {"maxCalls": 1001}}}, "toolBudgets.x.maxCalls"),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": {"x": {"maxCalls": "3"}}}, "toolBudgets.x.maxCalls"),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": {"x": {"maxCalls": None}}}, "toolBudgets.x.maxCalls"),
    ("wire.spec.tool_budgets_limits", {"toolBudgets": {f"t{n}": {"maxCalls": 1} for n in range(33)}}, "toolBudgets"),
    (None, {"budgets": 3}, "budgets"),
    (None, {"budgets": {"maxToolTurns": -1}}, "budgets.maxToolTurns"),
    (None, {"budgets": {"maxToolTurns": 1.5}}, "budgets.maxToolTurns"),
    (None, {"budgets": {"maxToolTurns": "5"}}, "budgets.maxToolTurns"),
    (None, {"budgets": {"maxToolTurns": True}}, "budgets.maxToolTurns"),
    (
        None,
        {"budgets": {"maxToolTurnsExceeded": "stop"}},
        "budgets.maxToolTurnsExceeded",
    ),
    (None, {"budgets": {"localToolTimeoutMs": 0}}, "budgets.localToolTimeoutMs"),
    (None, {"budgets": {"localToolTimeoutMs": 604_800_001}}, "budgets.localToolTimeoutMs"),
    (None, {"budgets": {"onLocalToolTimeout": "fail"}}, "budgets.onLocalToolTimeout"),
    ("wire.spec.metadata_limits", {"metadata": "x"}, "metadata"),
    ("wire.spec.metadata_limits", {"metadata": {"foo": 1}}, "metadata.foo"),
    ("wire.spec.metadata_limits", {"metadata": {"foo": None}}, "metadata.foo"),
    ("wire.spec.metadata_limits", {"metadata": {"foo": {"bar": "x"}}}, "metadata.foo"),
    ("wire.spec.metadata_limits", {"metadata": {"foo bar": "x"}}, "metadata.foo bar"),
    ("wire.spec.metadata_limits", {"metadata": {"a:b": "x"}}, "metadata.a:b"),
    ("wire.spec.metadata_limits", {"metadata": {"k" * 65: "x"}}, "metadata." + "k" * 65),
    ("wire.spec.metadata_limits", {"metadata": {"foo": "v" * 513}}, "metadata.foo"),
    ("wire.spec.metadata_limits", {"metadata": {f"k{n}": "" for n in range(17)}}, "metadata"),
    ("wire.spec.metadata_limits", {"metadata": metadata_of(16_385)}, "metadata"),
]


def shows(requirement: str | None) -> list[pytest.MarkDecorator]:
    return [pytest.mark.requirement(requirement)] if requirement else []


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(fields, id=f"{next(iter(fields))}-{n}", marks=shows(row))
        for n, (row, fields) in enumerate(ACCEPTED)
    ],
)
def test_body_at_its_limits_is_accepted_by_all_three_routes(fields: Json) -> None:
    assert parse_run(body(**fields)).spec
    assert parse_session(body(**fields, prompt=None)).spec
    assert parse_message(body(**fields)).spec


@pytest.mark.parametrize(
    ("fields", "path"),
    [pytest.param(fields, path, id=f"{path}-{n}", marks=shows(row)) for n, (row, fields, path) in enumerate(REFUSED)],
)
def test_a_body_beyond_a_limit_is_refused_with_the_path(fields: Json, path: str) -> None:
    error = refused(body(**fields))
    assert error.code == "invalid_request"
    assert error.status == 400
    assert path in paths(error)
    assert error.message.startswith(f"{paths(error)[0]}: ")


@pytest.mark.requirement("wire.spec.prompt_or_messages", "wire.session.create")
def test_a_session_is_created_without_input() -> None:
    assert parse_session(b"{}").name == "ephemeral"
    for fields in ({"prompt": "x"}, {"messages": [{"role": "user", "content": "x"}]}):
        with pytest.raises(InvalidRequest) as caught:
            parse_session(msgspec.json.encode(fields))
        assert paths(caught.value) == list(fields)


@pytest.mark.requirement("wire.spec.prompt_or_messages")
def test_a_message_needs_exactly_one_input() -> None:
    for raw in (b"{}", b'{"prompt":"x","messages":[{"role":"user","content":"y"}]}'):
        with pytest.raises(InvalidRequest, match="exactly one of"):
            parse_message(raw)


@pytest.mark.requirement("wire.http.optional_fields")
def test_null_is_same_as_absent_and_unknown_fields_are_kept() -> None:
    optional = [
        "name",
        "agentId",
        "systemPrompt",
        "modelId",
        "reasoningLevel",
        "tools",
        "budgets",
        "outputSchema",
        "loopDetection",
        "toolBudgets",
        "metadata",
        "messages",
    ]
    sent = parse_run(body(**dict.fromkeys(optional), x_mine={"n": 1}, other=None))
    plain = parse_run(body())
    assert plan_from_spec(sent.spec) == plan_from_spec(plain.spec)
    assert (sent.name, sent.agent_id, sent.metadata) == (
        plain.name,
        plain.agent_id,
        plain.metadata,
    )
    stored = msgspec.json.decode(sent.spec)
    assert stored["x_mine"] == {"n": 1}
    assert stored["other"] is None


def test_the_body_tells_what_the_row_needs() -> None:
    run = parse_run(body(name="n", agentId="agt_1", modelId="openai:gpt-5.5", metadata={"a": "b"}))
    assert (run.name, run.agent_id, run.metadata, run.secrets) == (
        "n",
        "agt_1",
        {"a": "b"},
        {},
    )


def test_an_error_lists_every_problem_and_tells_the_first_few() -> None:
    error = refused(body(name=1, modelId=2, systemPrompt=3, metadata=4, toolBudgets=5))
    assert sorted(paths(error)) == ["metadata", "modelId", "name", "systemPrompt", "toolBudgets"]
    assert error.message.endswith("(and 2 more)")
