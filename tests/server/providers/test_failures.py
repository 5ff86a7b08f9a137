"""What a run makes of a provider that fails: retries, fallbacks, deadlines, aborts, and typed ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import pytest

from weftline.testing import ServerProcess

from ..kit import TIMEOUT_S, Frame, of_type, types
from .conftest import Team, server_tool, team_of
from .dialects import FAMILIES, Anthropic, Call, Chat, Dialect, Responses
from .upstream import Reply, Upstream

REFUSALS = {
    "anthropic": (429, "rate_limit_error"),
    "google": (429, "resource_exhausted"),
    "openai_chat": (429, "rate_limit_exceeded"),
    "openai_responses": (429, "rate_limit_exceeded"),
}


def text_of(frames: list[Frame], attempt: int) -> str:
    return "".join(frame["text"] for frame in of_type(frames, "assistant_delta") if frame["attempt"] == attempt)


@pytest.mark.requirement("provider.error.retry", "provider.error.classes")
async def test_refused_call_is_retried_after_its_retry_after(team: Team, dialect: Dialect) -> None:
    model = await team.bring(dialect)
    team.upstream.answers(dialect.fails(*REFUSALS[dialect.family], Retry_After="1"), dialect.answer("Hello"))
    frames = await team.run(model)
    assert types(frames) == ["started", "turn_restarted", "assistant_message", "result"]
    assert of_type(frames, "turn_restarted")[0].payload == {"turn": 0, "attempt": 2, "reason": "rate_limit"}
    assert frames[-1]["text"] == "Hello" == text_of(frames, 2)
    first, second = team.upstream.asked
    assert second.at - first.at >= 1.0
    assert first.raw == second.raw, "the same request, byte for byte"


@pytest.mark.requirement("provider.error.retry")
async def test_failures_that_no_retry_cures_end_run_at_first_attempt(team: Team, dialect: Dialect) -> None:
    model = await team.bring(dialect)
    google = dialect.family == "google"
    cases = {
        "auth": dialect.fails(401, "unauthenticated" if google else "authentication_error"),
        "context_window": dialect.fails(
            400, "invalid_argument" if google else "invalid_request_error", "The prompt is too long: 300000 tokens."
        ),
        "invalid_request": dialect.fails(400, "invalid_argument" if google else "invalid_request_error"),
    }
    for cls, reply in cases.items():
        team.upstream.asked.clear()
        team.upstream.answers(reply)
        frames = await team.run(model)
        assert frames[-1].type == "error" and frames[-1]["errorClass"] == cls, frames[-1].body
        assert frames[-1]["retryable"] is False and frames[-1]["code"] == cls
        assert types(frames) == ["started", "error"] and len(team.upstream.asked) == 1


@pytest.mark.requirement("provider.error.retry")
async def test_overloaded_provider_is_given_up_after_bounded_number_of_attempts(team: Team) -> None:
    dialect = Anthropic()
    model = await team.bring(dialect)
    team.upstream.answers(*(dialect.fails(529, "overloaded_error") for _ in range(9)))
    frames = await team.run(model)
    assert frames[-1].type == "error" and frames[-1]["errorClass"] == "overloaded" and frames[-1]["retryable"] is True
    assert [frame["attempt"] for frame in of_type(frames, "turn_restarted")] == [2, 3, 4]
    assert len(team.upstream.asked) == 4 == frames[-1]["attempts"] and frames[-1]["turns"] == 1
    # The waits double, and each is at least half of its step.
    waits = [later.at - one.at for one, later in zip(team.upstream.asked, team.upstream.asked[1:], strict=False)]
    assert all(wait >= least for wait, least in zip(waits, (0.25, 0.5, 1.0), strict=True))


@pytest.mark.requirement("provider.stream.cut", "provider.error.retry")
async def test_stream_that_dies_restarts_and_counts_only_once(team: Team, dialect: Dialect) -> None:
    model = await team.bring(dialect)
    team.upstream.answers(Reply(dialect.begun("Hel", "lo wor"), then="cut"), dialect.answer("Hello", " again"))
    frames = await team.run(model)
    assert [frame["reason"] for frame in of_type(frames, "turn_restarted")] == ["server"]
    message = of_type(frames, "assistant_message")[0]["text"]
    assert message == frames[-1]["text"] == "Hello again" == text_of(frames, 2)


@pytest.mark.requirement("provider.stream.cut")
async def test_calls_of_stream_that_was_cut_are_not_run(team: Team) -> None:
    dialect = Chat()
    model = await team.bring(dialect)
    whole = dialect.answer(calls=[Call("weather", '{"city":"Oslo"}')])
    cut = whole[: whole.index(b'"finish_reason"')].rpartition(b"data: ")[0]
    team.upstream.answers(Reply(cut), dialect.answer("I do not know."))
    frames = await team.run(model, tools=[server_tool("weather")])
    assert types(frames) == ["started", "turn_restarted", "assistant_message", "result"]
    assert "weather" not in [frame.body.get("name") for frame in frames]


@pytest.mark.requirement("provider.error.fallback", "provider.extra.other_provider", "wire.usage.counted")
async def test_fallback_of_another_family_goes_on_in_its_own_form(team: Team) -> None:
    first, second = Anthropic(), Responses()
    model = await team.bring(first)
    other = await team.bring(second, "spare")
    team.upstream.answers(
        first.answer("Let me see.", thinking=["hm"], calls=[Call("weather", '{"city":"Oslo"}')]),
        first.fails(401, "authentication_error"),
        second.answer("Sunny."),
    )
    frames = await team.run(model, modelFallbacks=[other], tools=[server_tool("weather")], reasoningLevel="high")
    assert frames[-1]["text"] == "Sunny." and frames[-1]["model"]["id"] == other
    assert frames[-1]["model"]["provider"] == "openai" and frames[-1]["tokens"]["inputTokens"] == 24
    paths = [asked.path for asked in team.upstream.asked]
    assert paths == ["/v1/messages", "/v1/messages", "/v1/responses"]
    body = team.upstream.asked[2].body
    assert [item.get("type", "message") for item in body["input"]] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
    ]
    assert second.tool_names(body) == ["weather"] and first.opaque.encode() not in team.upstream.asked[2].raw
    assert first.opaque.encode() in team.upstream.asked[1].raw


@pytest.mark.requirement("provider.error.fallback")
async def test_when_every_model_fails_the_last_failure_ends_the_run(team: Team) -> None:
    first, second = Anthropic(), Chat()
    model = await team.bring(first)
    other = await team.bring(second, "spare")
    team.upstream.answers(first.fails(401, "authentication_error"), second.fails(400, "invalid_request_error", "bad"))
    frames = await team.run(model, modelFallbacks=[other])
    assert frames[-1]["errorClass"] == "invalid_request" and frames[-1]["error"] == "bad"
    assert frames[-1]["model"]["id"] == other and frames[-1]["attempts"] == 2


@pytest.mark.requirement("provider.stream.abort")
@pytest.mark.parametrize("begun", [False, True])
async def test_a_cancel_closes_the_connection_to_the_provider(team: Team, dialect: Dialect, begun: bool) -> None:
    model = await team.bring(dialect)
    team.upstream.answers(Reply(dialect.begun("Hel") if begun else b"", then="silence"))
    run = await team.start(model)
    async with asyncio.timeout(TIMEOUT_S):
        await team.upstream.silent.wait()
        assert (await team.api.cancel(run)).status == 200
        await team.upstream.let_go.wait()
    frames = await team.api.events(run)
    assert frames[-1].type == "cancelled" and not of_type(frames, "error")
    assert len(team.upstream.asked) == 1


async def test_provider_deleted_under_a_run_ends_it_with_an_error(team: Team) -> None:
    dialect = Anthropic()
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer(calls=[Call("ask")]))
    run = await team.start(model, tools=[{"kind": "local", "name": "ask", "description": "Asks."}])
    async with team.api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        assert (await team.api.call("DELETE", "providers/mine")).status == 200
        await team.api.answer(run, call["toolUseId"], result="yes")
        frames = await stream.rest()
    assert frames[-1].type == "error" and frames[-1]["errorClass"] == "invalid_request"
    assert model in frames[-1]["error"]


@pytest.fixture
async def hasty(
    tmp_path: Path, http: aiohttp.ClientSession, upstream: Upstream
) -> AsyncGenerator[tuple[ServerProcess, Team]]:
    """A server that gives a model call little time, but enough for an answer on a busy machine."""
    config = "[server]\nmodel_timeout_s = 4\n"
    with ServerProcess(tmp_path, config=config) as server:
        yield server, team_of(server, http, upstream)


@pytest.mark.requirement("provider.error.deadline", "provider.error.classes")
async def test_call_still_answering_at_its_deadline_is_cut(
    hasty: tuple[ServerProcess, Team],
) -> None:
    _, team = hasty

    async def silenced(model: str, begun: bytes) -> str:
        team.upstream.silent.clear()
        team.upstream.answers(Reply(begun, then="silence"))
        run = await team.start(model)
        await team.upstream.silent.wait()
        return run

    models = [await team.bring(dialect, name.replace("_", "-")) for name, dialect in FAMILIES.items()]
    async with asyncio.timeout(TIMEOUT_S):
        cut = [
            await silenced(model, dialect.begun("Hel", "lo"))
            for model, dialect in zip(models, FAMILIES.values(), strict=True)
        ]
        # One that said nothing at all is asked again.
        mute = await silenced(f"anthropic:{Anthropic.model}", b"")
        team.upstream.answers(Anthropic().answer("Hello"))
        for run in cut:
            frames = await team.api.events(run)
            assert frames[-1].type == "error" and frames[-1]["errorClass"] == "upstream_deadline"
            assert frames[-1]["partialText"] == "Hello" and frames[-1]["retryable"] is True
        frames = await team.api.events(mute)
        assert [frame["reason"] for frame in of_type(frames, "turn_restarted")] == ["timeout"]
        assert frames[-1]["text"] == "Hello"
        await team.upstream.all_let_go.wait()
