"""What a message run and an agent's run are made of: two specs laid over each other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from weftline.errors import InvalidRequest
from weftline.spec.door import parse_message, parse_run, parse_session
from weftline.spec.merge import forked, with_agent, with_session
from weftline.spec.plan import plan_from_spec

LOCAL: dict[str, Any] = {"kind": "local", "name": "send"}
OTHER: dict[str, Any] = {"kind": "local", "name": "other"}
SESSION: dict[str, Any] = {
    "name": "support",
    "systemPrompt": "Be kind.",
    "modelId": "openai:gpt-5.5",
    "reasoningLevel": "low",
    "outputSchema": {"name": "mine", "schema": {"a": 1.0}},
    "loopDetection": {"consecutiveThreshold": 4},
    "toolBudgets": {"recall": {"maxCalls": 1}},
    "budgets": {"maxToolTurns": 7},
    "tools": [LOCAL],
    "metadata": {"a": "session", "b": "session"},
    "unknown": [1],
}


def merged(session: dict[str, Any], **message: Any) -> dict[str, Any]:
    spec = parse_session(msgspec.json.encode(session)).spec
    return msgspec.json.decode(with_session(spec, parse_message(msgspec.json.encode({"prompt": "hi", **message})).spec))


@pytest.mark.requirement("wire.session.overrides")
def test_a_message_alone_runs_with_the_sessions_spec() -> None:
    assert merged(SESSION) == {**SESSION, "prompt": "hi"}


def test_labels_of_a_message_are_laid_over_the_sessions() -> None:
    session = {**SESSION, "labels": {"a": "session", "b": "session"}}
    assert merged(session)["labels"] == {"a": "session", "b": "session"}
    assert merged(session, labels={"a": "message"})["labels"] == {"a": "message", "b": "session"}
    assert merged(SESSION, labels={"a": "message"})["labels"] == {"a": "message"}
    with pytest.raises(InvalidRequest, match="labels: has 17 entries together"):
        merged(session, labels={f"x{n}": "message" for n in range(15)})


OVERRIDES: dict[str, Any] = {
    "reasoningLevel": 80,
    "outputSchema": {"schema": {}},
    "loopDetection": False,
    "toolBudgets": {},
    "budgets": {"maxToolTurns": 3},
    "tools": [OTHER],
}


@pytest.mark.requirement("wire.session.overrides")
@pytest.mark.parametrize("field", OVERRIDES)
def test_an_override_replaces_the_sessions_value_whole(field: str) -> None:
    session = parse_session(msgspec.json.encode(SESSION)).spec
    assert merged(SESSION, **{field: OVERRIDES[field]}) == {**SESSION, "prompt": "hi", field: OVERRIDES[field]}
    assert msgspec.json.decode(session) == SESSION


@pytest.mark.requirement("wire.session.overrides")
def test_null_and_an_empty_tool_list_mean_the_sessions_value() -> None:
    nothing = {**dict.fromkeys(OVERRIDES), "metadata": None, "messages": None}
    assert merged(SESSION, **nothing) == merged(SESSION, tools=[]) == {**SESSION, "prompt": "hi"}


@pytest.mark.parametrize("field", ["name", "systemPrompt", "modelId", "agentId", "modelFallbacks", "fallbackModelId"])
@pytest.mark.parametrize("value", ["x", 5, ["a:b"]])
def test_a_message_cannot_change_what_the_session_is(field: str, value: Any) -> None:
    assert merged(SESSION, **{field: value}) == {**SESSION, "prompt": "hi"}


def test_null_in_changes_of_fork_keeps_origins_value() -> None:
    origin = b'{"modelId":"m","budgets":{"maxToolTurns":3}}'
    assert forked(origin, b'{"modelId":null,"budgets":null,"onDeploy":null}', in_session=False) == origin


def test_unknown_fields_of_both_are_kept_unless_they_are_null() -> None:
    assert merged({**SESSION, "streamArguments": True}, unknown=None, streamArguments=None) == {
        **SESSION,
        "streamArguments": True,
        "prompt": "hi",
    }
    assert merged(SESSION, mine={"x": None})["mine"] == {"x": None}
    assert merged(SESSION, mine=1)["unknown"] == [1]


@pytest.mark.requirement("wire.session.metadata")
def test_the_messages_metadata_lies_over_the_sessions() -> None:
    assert merged(SESSION, metadata={"b": "message", "c": "message"})["metadata"] == {
        "a": "session",
        "b": "message",
        "c": "message",
    }
    assert merged({}, metadata={"b": "message"})["metadata"] == {"b": "message"}
    assert merged({"metadata": None}, metadata={"b": "message"})["metadata"] == {"b": "message"}


@pytest.mark.parametrize(
    ("session", "message"),
    [
        ({f"s{n}": "" for n in range(10)}, {f"m{n}": "" for n in range(7)}),
        ({f"s{n}": "é" * 512 for n in range(8)}, {f"m{n}": "é" * 512 for n in range(8)}),
    ],
)
def test_metadata_of_both_together_keeps_to_the_limits(session: dict[str, str], message: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match=r"^metadata: "):
        merged({"metadata": session}, metadata=message)


def test_message_says_whether_its_tools_and_their_secrets_replace_sessions() -> None:
    remote = {"kind": "mcp", "name": "gh", "url": "https://a", "headers": {"K": "s3cret"}}
    session = parse_session(msgspec.json.encode({"tools": [remote]}))
    inherits = parse_message(b'{"prompt":"x","tools":[]}')
    replaces = parse_message(msgspec.json.encode({"prompt": "x", "tools": [{**remote, "headers": {"K": "other"}}]}))
    assert session.secrets == {"gh": {"K": "s3cret"}} and not inherits.replaces_tools
    assert replaces.replaces_tools and replaces.secrets == {"gh": {"K": "other"}}
    assert b"other" not in with_session(session.spec, replaces.spec)


AGENT: dict[str, Any] = {
    "name": "helper",
    "systemPrompt": "Stored.",
    "modelId": "stored",
    "reasoningLevel": "high",
    "tools": [LOCAL, {"kind": "mcp_local", "name": "fs", "tools": [{"name": "read", "x": 1.0}, {"name": "write"}]}],
    "metadata": {"agent": "x"},
}


def run_with_agent(**run: Any) -> dict[str, Any]:
    spec = parse_run(msgspec.json.encode({"prompt": "hi", "agentId": "agt_1", **run})).spec
    return msgspec.json.decode(with_agent(msgspec.json.encode(AGENT), spec))


def test_run_has_its_agents_model_fallbacks_by_default() -> None:
    agent = b'{"modelId":"a","modelFallbacks":["b","c"]}'
    for own, expected in ((b"{}", ["b", "c"]), (b'{"modelFallbacks":["d"]}', ["d"]), (b'{"modelFallbacks":[]}', [])):
        assert msgspec.json.decode(with_agent(agent, own))["modelFallbacks"] == expected


def test_an_agents_prompt_wins_and_its_settings_are_defaults() -> None:
    spec = run_with_agent(systemPrompt="Inline.")
    assert spec["systemPrompt"] == "Stored."
    assert (spec["agentId"], spec["name"], spec["modelId"], spec["reasoningLevel"]) == (
        "agt_1",
        "helper",
        "stored",
        "high",
    )
    assert spec["tools"] == AGENT["tools"]
    assert "metadata" not in spec
    over = run_with_agent(modelId="mine", reasoningLevel=0, metadata={"a": "b"}, loopDetection=False)
    assert (over["modelId"], over["reasoningLevel"], over["loopDetection"]) == ("mine", 0, False)
    assert over["metadata"] == {"a": "b"}


def test_the_requests_tools_replace_the_agents_of_the_same_name() -> None:
    mine = {"kind": "local", "name": "send", "description": "mine"}
    read = {"kind": "local", "name": "read"}
    spec = run_with_agent(tools=[mine, read])
    files = {"kind": "mcp_local", "name": "fs", "tools": [{"name": "write"}]}
    assert spec["tools"] == [files, mine, read]
    assert len(plan_from_spec(msgspec.json.encode(spec)).tools) == 3
    everything = run_with_agent(tools=[read, {"kind": "local", "name": "write"}])
    assert [tool["name"] for tool in everything["tools"]] == ["send", "read", "write"]
