"""The answers: every key in its place, whatever the run's state."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.errors import (
    TABLE,
    Forbidden,
    InvalidRequest,
    NotFound,
    RateLimited,
    Unauthorized,
    WeftlineError,
)
from weftline.kernel.entries import ModelRef
from weftline.messages import Assistant, Message, System, Text, ToolCall, ToolResults, Usage, User
from weftline.server.routes.models import CatalogModel, Pricing, models_list
from weftline.wire.errors import error_body, wire_code
from weftline.wire.responses import iso
from weftline.wire.run_responses import RunView, Status, created_run, run_url, snapshot, usage_triple
from weftline.wire.session_responses import SessionView, created_session, session_info

AT = 1_763_184_000_123_456


def read(raw: bytes) -> dict[str, Any]:
    return msgspec.json.decode(raw)


def test_a_time_is_utc_with_six_digits() -> None:
    assert iso(AT) == "2025-11-15T05:20:00.123456Z"
    assert iso(0) == "1970-01-01T00:00:00.000000Z"


@pytest.mark.parametrize("code", TABLE)
def test_every_error_has_the_fields_that_clients_read(code: str) -> None:
    body = read(error_body(WeftlineError("What happened.", code=code), "req_1"))
    assert body["code"] == wire_code(code)
    assert body["message"] == "What happened."
    assert body["error"] in {wire_code(code), "What happened."}
    assert body["hint"].endswith(TABLE[code].remedy)
    assert "What happened." in (body["error"], body["hint"].removesuffix(f" {TABLE[code].remedy}"))
    assert body["requestId"] == "req_1"


@pytest.mark.parametrize(("ours", "theirs"), [("unknown_call", "unknown_tool_use"), ("thread_ended", "session_ended")])
def test_two_codes_have_another_name_on_the_wire(ours: str, theirs: str) -> None:
    body = read(error_body(WeftlineError("", code=ours, hint=""), ""))
    assert (body["error"], body["code"]) == (theirs, theirs)


def test_an_error_without_words_still_has_a_message() -> None:
    body = read(error_body(NotFound(""), ""))
    assert body["message"]
    assert "requestId" not in body


def test_errors_of_credentials_keep_their_sentence_in_error() -> None:
    missing = read(error_body(Unauthorized("API key or OAuth access token required.", error="Unauthorized"), "r"))
    assert (missing["error"], missing["code"]) == ("Unauthorized", "unauthorized")
    assert missing["message"] == "API key or OAuth access token required."
    wrong = read(error_body(Unauthorized("Invalid API key or OAuth access token"), "r"))
    assert (wrong["error"], wrong["code"]) == ("Invalid API key or OAuth access token", "unauthorized")
    slug = read(error_body(NotFound("Workspace path does not match this credential", correctSlug="acme"), "r"))
    assert slug["error"] == "Workspace path does not match this credential"
    assert (slug["code"], slug["correctSlug"]) == ("not_found", "acme")
    plan = read(error_body(Forbidden("Not on this plan.", code="api_keys_plan"), "r"))
    assert (plan["error"], plan["code"]) == ("Not on this plan.", "api_keys_plan")


def test_a_scope_error_says_insufficient_scope_in_error_and_code() -> None:
    for required in ("runs:write", ["a2a:invoke", "agents:invoke"]):
        body = read(error_body(Forbidden("Scope missing.", code="insufficient_scope", required=required), "r"))
        assert (body["error"], body["code"], body["required"]) == ("insufficient_scope", "insufficient_scope", required)


def test_details_are_camel_case_and_hide_no_fixed_fields() -> None:
    body = read(error_body(RateLimited("Slow down.", retry_after_s=2.5, requestId="forged"), "req_1"))
    assert (body["retryAfterS"], body["requestId"], body["code"]) == (2.5, "req_1", "rate_limited")
    issues = [{"path": "tools[0].name", "message": "no"}]
    assert read(error_body(InvalidRequest("x", issues=issues), "r"))["issues"] == issues


def test_created_answers() -> None:
    assert read(created_run("run_1", run_url("run_1", "acme"))) == {
        "runId": "run_1",
        "streamUrl": "/api/v1/workspaces/acme/agent-runs/run_1/stream",
    }
    assert read(created_session("ses_1", name="n", created_us=AT)) == {
        "sessionId": "ses_1",
        "name": "n",
        "createdAt": "2025-11-15T05:20:00.123456Z",
    }


KEYS = {
    *("id", "runId", "sessionId", "status", "finalText", "error", "failureReason", "spec", "agentSpec", "metadata"),
    *("name", "createdAt", "startedAt", "finishedAt", "tokens", "turns", "attempts", "model"),
}
SPEC = b'{"prompt":"hi","x":1.0}'


def view(status: Status, **fields: Any) -> RunView:
    return RunView("run_1", status, AT, SPEC, **fields)


@pytest.mark.requirement("wire.run.snapshot")
@pytest.mark.parametrize("status", ["queued", "running", "paused", "succeeded", "failed", "cancelled"])
def test_a_snapshot_always_has_every_key(status: Status) -> None:
    raw = snapshot(view(status))
    body = read(raw)
    assert body.keys() == KEYS | {
        "paused",
        "reason",
        "costUsd",
        "usageEstimated",
        "errorCode",
        "inDoubt",
        "parentRunId",
        "cancelReceipt",
        "awaits",
        "finishReason",
        "forkedFrom",
        "labels",
    }
    assert raw.count(SPEC) == 2
    assert body["id"] == body["runId"] == "run_1"
    assert body["status"] == ("running" if status == "paused" else status)
    assert body["paused"] is (status == "paused")
    ended = status in {"succeeded", "failed", "cancelled"}
    assert [body[key] is not None for key in ("tokens", "turns", "attempts", "model")] == [ended] * 4


FULL: dict[str, Any] = {
    "final_text": "partial",
    "error": "why",
    "error_class": "truncation",
    "finish_reason": "max_tokens",
}


@pytest.mark.requirement("wire.run.snapshot_terminal")
def test_terminal_snapshot_tells_text_error_and_reason_where_they_belong() -> None:
    def told(status: Status, **fields: Any) -> tuple[Any, Any, Any]:
        body = read(snapshot(view(status, **{**FULL, **fields})))
        return body["finalText"], body["error"], body["failureReason"]

    assert told("succeeded") == ("partial", None, None)
    assert told("succeeded", final_text=None) == ("", None, None)
    assert told("failed") == ("partial", "why", {"errorClass": "truncation", "finishReason": "max_tokens"})
    assert told("failed", error_class="server", finish_reason=None) == (
        None,
        "why",
        {"errorClass": "server", "finishReason": None},
    )
    assert told("failed", error_class=None) == (None, "why", None)
    assert told("cancelled") == (None, None, None)
    assert told("running") == (None, None, None)


def test_a_snapshot_shows_what_the_run_is() -> None:
    body = read(
        snapshot(
            view(
                "succeeded",
                session_id="ses_1",
                name="n",
                metadata={"a": "b"},
                started_us=AT + 1,
                finished_us=AT + 2,
                usage=Usage(10, 4, 2, 5),
                turns=2,
                attempts=5,
                model=ModelRef("platform:x", "openai", "gpt-5.5", 50),
            )
        )
    )
    assert (body["sessionId"], body["name"], body["metadata"]) == ("ses_1", "n", {"a": "b"})
    assert (body["startedAt"], body["finishedAt"]) == (iso(AT + 1), iso(AT + 2))
    assert body["tokens"] == {"inputTokens": 10, "cachedTokens": 4, "reasoningTokens": 2, "outputTokens": 5}
    assert (body["turns"], body["attempts"]) == (2, 5)
    assert body["model"] == {
        "id": "platform:x",
        "provider": "openai",
        "vendorModelId": "gpt-5.5",
        "reasoningEffort": "medium",
    }


@pytest.mark.parametrize(
    ("level", "word"),
    [(0, "off"), (1, "low"), (35, "low"), (36, "medium"), (65, "medium"), (66, "high"), (100, "high")],
)
def test_the_reasoning_effort_is_a_word(level: int, word: str) -> None:
    assert usage_triple(Usage(), 1, ModelRef(reasoning=level), attempts=1).model.reasoning_effort == word


def test_no_effort_is_told_when_none_was_asked_for() -> None:
    model = read(msgspec.json.encode(usage_triple(Usage(), 1, ModelRef(vendor_id="m"), attempts=1).model))
    assert model == {"id": "", "provider": "", "vendorModelId": "m"}


@given(st.builds(Usage, st.integers(), st.integers(), st.integers(), st.integers()))
def test_tokens_are_never_negative_and_parts_never_more_than_whole(usage: Usage) -> None:
    tokens = usage_triple(usage, 1, ModelRef(), attempts=1).tokens
    assert 0 <= tokens.cached_tokens <= tokens.input_tokens
    assert 0 <= tokens.reasoning_tokens <= tokens.output_tokens


def test_a_count_that_is_no_number_is_nought() -> None:
    used: Any = Usage(float("nan"), 0, 0, 0)  # pyright: ignore[reportArgumentType] a provider's answer is not typed
    assert usage_triple(used, 1, ModelRef(), attempts=1).tokens.input_tokens == 0


@pytest.mark.requirement("wire.session.info")
def test_session_info_shows_the_conversation_as_strings() -> None:
    messages: list[Message] = [
        System("s"),
        User.of("hi"),
        Assistant((Text("a"), ToolCall("t", "n"), Text("b"))),
        ToolResults(()),
        User.of("nudge", injected=True),
    ]
    session = SessionView("ses_1", AT, AT + 1, SPEC, name="n", metadata={"a": "b"})
    assert read(session_info(session, [(message, None) for message in messages])) == {
        "id": "ses_1",
        "name": "n",
        "status": "active",
        "createdAt": iso(AT),
        "lastUsedAt": iso(AT + 1),
        "endedAt": None,
        "agentSpec": read(SPEC),
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "ab"},
        ],
        "metadata": {"a": "b"},
        "usage": {
            "runs": 0,
            "turns": 0,
            "attempts": 0,
            "tokens": {"inputTokens": 0, "cachedTokens": 0, "reasoningTokens": 0, "outputTokens": 0},
            "costUsd": 0,
            "usageEstimated": False,
        },
    }
    ended = read(session_info(SessionView("ses_1", AT, AT, SPEC, ended_us=AT + 2), []))
    assert (ended["status"], ended["endedAt"], ended["messages"]) == ("ended", iso(AT + 2), [])


def test_the_catalog_shows_prices_of_platform_offerings_alone() -> None:
    price = Pricing(1.25, 10)
    raw = models_list(
        [
            CatalogModel("platform:a", "A", "openai", "gpt-5.5", "platform_offering", 200_000, price),
            CatalogModel("provider:b", "B", "anthropic", "claude", pricing=price),
        ],
        default_model_id=None,
    )
    assert b'"contextWindowTokens":200000,' in raw
    first, second = read(raw)["models"]
    assert first["pricing"] == {"inputPer1MUsd": 1.25, "outputPer1MUsd": 10, "cacheReadPer1MUsd": None}
    assert second == {
        "id": "provider:b",
        "label": "B",
        "provider": "anthropic",
        "vendorModelId": "claude",
        "source": "workspace_provider",
        "contextWindowTokens": None,
        "pricing": None,
    }
    assert read(models_list([], default_model_id="platform:a")) == {"models": [], "defaultModelId": "platform:a"}
