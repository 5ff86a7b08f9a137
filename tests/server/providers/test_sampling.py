"""Sampling settings as each family's API gets them, and those that its models refuse."""

from __future__ import annotations

from typing import Any

import pytest

from ..kit import Json, check_error
from .conftest import Team
from .dialects import FAMILIES

SENT: dict[str, tuple[Json, Json]] = {
    "anthropic": (
        {"temperature": 0.5, "stopSequences": ["END"], "maxOutputTokens": 100},
        {"temperature": 0.5, "stop_sequences": ["END"], "max_tokens": 100},
    ),
    "google": (
        {"temperature": 1.5, "topP": 0.9, "stopSequences": ["END"], "maxOutputTokens": 100},
        {
            "generationConfig": {
                "maxOutputTokens": 100,
                "temperature": 1.5,
                "topP": 0.9,
                "stopSequences": ["END"],
            }
        },
    ),
    "openai_chat": (
        {"temperature": 1.5, "topP": 0.9, "stopSequences": ["END"], "maxOutputTokens": 100, "reasoningLevel": 0},
        {"temperature": 1.5, "top_p": 0.9, "stop": ["END"], "max_completion_tokens": 100},
    ),
    "openai_responses": (
        {"temperature": 1.5, "topP": 0.9, "maxOutputTokens": 100, "reasoningLevel": 0},
        {"temperature": 1.5, "top_p": 0.9, "max_output_tokens": 100},
    ),
}
"""What a run asks for, and what the API gets."""


@pytest.mark.parametrize("family", SENT)
async def test_settings_reach_the_api_of_each_family(team: Team, family: str) -> None:
    dialect = FAMILIES[family]
    model = await team.bring(dialect)
    asked, got = SENT[family]
    team.upstream.answers(dialect.answer("Hello"))
    assert (await team.run(model, **asked))[-1]["text"] == "Hello"
    body = team.upstream.asked[0].body
    assert {name: body[name] for name in got} == got


REFUSED: list[tuple[str, str, Json, list[tuple[str, str]]]] = [
    (
        "anthropic",
        "claude-opus-4-7",
        {"temperature": 0.5, "topP": 0.5},
        [("temperature", "does not accept a temperature"), ("topP", "does not accept top-p")],
    ),
    (
        "anthropic",
        "claude-sonnet-4-5",
        {"temperature": 0.5, "topP": 0.5},
        [("topP", "accepts a temperature or top-p, but not both")],
    ),
    ("anthropic", "claude-sonnet-4-5", {"temperature": 1.5}, [("temperature", "accepts a temperature of at most 1")]),
    (
        "anthropic",
        "claude-sonnet-4-5",
        {"temperature": 0.5, "reasoningLevel": "high"},
        [("temperature", "does not accept a temperature while it reasons")],
    ),
    (
        "anthropic",
        "claude-sonnet-4-5",
        {"stopSequences": [" "]},
        [("stopSequences[0]", "does not accept blank stop sequences")],
    ),
    (
        "google",
        "gemini-3.8-flash",
        {"stopSequences": list("abcdef")},
        [("stopSequences", "accepts at most 5 stop sequences")],
    ),
    (
        "openai_chat",
        "gpt-5.5",
        {"temperature": 0.5, "reasoningLevel": "low"},
        [("temperature", "does not accept a temperature unless its reasoning is off (reasoningLevel 0)")],
    ),
    ("openai_chat", "o3", {"topP": 0.5, "reasoningLevel": 0}, [("topP", "does not accept top-p")]),
    (
        "openai_chat",
        "gpt-4o",
        {"stopSequences": list("abcde")},
        [("stopSequences", "accepts at most 4 stop sequences")],
    ),
    ("openai_responses", "gpt-4o", {"stopSequences": ["a"]}, [("stopSequences", "does not accept stop sequences")]),
    (
        "openai_responses",
        "gpt-4o",
        {"maxOutputTokens": 5},
        [("maxOutputTokens", "accepts a limit of 16 tokens or more")],
    ),
]


async def test_unsupported_setting_is_refused_at_run_creation(team: Team) -> None:
    for family, dialect in FAMILIES.items():
        await team.bring(dialect, family.replace("_", "-"), models=[], anyModel=True)
    for family, vendor_id, asked, issues in REFUSED:
        model = f"{family.replace('_', '-')}:{vendor_id}"
        reply = await team.api.post("agent-runs", {"modelId": model, "prompt": "hi", **asked})
        refused = check_error(reply, 400, "invalid_request")
        assert [(one["path"], one["message"]) for one in refused["issues"]] == [
            (path, f"{model} {fault}") for path, fault in issues
        ]
    assert team.upstream.asked == []


async def test_agents_sessions_and_fallbacks_are_checked_too(team: Team) -> None:
    dialect = FAMILIES["google"]
    models: list[Any] = [{"id": "small", "maxOutputTokens": 100}, "large"]
    await team.bring(dialect, "mine", models=models)
    small: Json = {"modelId": "mine:small", "maxOutputTokens": 101}
    message = "mine:small writes at most 100 tokens"
    for path, body in (
        ("agent-sessions", small),
        ("agents", {"name": "a", "spec": small}),
        ("agent-runs", {**small, "modelId": "mine:large", "modelFallbacks": ["mine:small"], "prompt": "hi"}),
    ):
        refused = check_error(await team.api.post(path, body), 400, "invalid_request")
        assert refused["issues"] == [{"path": "maxOutputTokens", "message": message}]
    session = await team.api.post("agent-sessions", {**small, "maxOutputTokens": 100})
    assert session.status == 201
    changed = await team.api.post(f"agent-sessions/{session.json['sessionId']}/messages", {"prompt": "x", **small})
    assert check_error(changed, 400, "invalid_request")["issues"] == [{"path": "maxOutputTokens", "message": message}]
