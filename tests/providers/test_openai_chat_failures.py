"""Chat Completions that fail: what is said of a failure, and what is made of an answer that makes no sense."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai_chat_kit import DONE, KEY, chat, part
from openai_stand_in import (
    JSON,
    SSE,
    answer,
    answering,
    ask,
    events,
)

from traffic import exchange, recorded
from weftline.messages import (
    Usage,
)
from weftline.providers.base import (
    Chunk,
    Finish,
    ProviderError,
    ThinkingDelta,
    UsageUpdate,
)
from weftline.testing import Failed, check_provider
from weftline.testing.recordings import RecordedTransport, replay


@pytest.mark.parametrize("broken", [False, True])
async def test_answer_with_a_stop_reason_is_complete_without_last_event(broken: bool) -> None:
    cut = answering(events(part({"content": "Hello"}), part({}, "stop")), broken=broken)
    got = await answer(chat(cut))
    assert (got.text, got.finish_reason) == ("Hello", "end_turn")


@pytest.mark.parametrize(
    "after",
    [
        {"error": {"message": "overloaded", "code": 503}},
        {"error": {"message": "overloaded"}, **part({}, "error")},
        b"{",
    ],
    ids=["error", "choice", "unreadable"],
)
async def test_failure_after_a_stop_reason_does_not_invalidate_the_answer(after: Any) -> None:
    got = await answer(chat(answering(events(part({"content": "Hello"}), part({}, "stop"), after))))
    assert (got.text, got.finish_reason, got.complete) == ("Hello", "end_turn", True)


async def test_an_error_that_comes_with_the_reason_is_an_error() -> None:
    both = {**part({}, "stop"), "error": {"message": "overloaded", "code": 503}}
    with pytest.raises(ProviderError):
        await answer(chat(answering(events(part({"content": "Hello"}), both))))


@pytest.mark.requirement("provider.stream.cut")
@pytest.mark.parametrize("stream", [events(part({"content": "Hel"})), b"", events(DONE)])
async def test_a_stream_without_its_finish_is_a_failure(stream: bytes) -> None:
    with pytest.raises(ProviderError) as caught:
        await answer(chat(answering(stream)))
    assert caught.value.cls == "server"


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    ("status", "error", "cls", "retryable"),
    [
        (429, {"message": "slow down", "code": "rate_limit_exceeded"}, "rate_limit", True),
        (429, {"message": "no money", "code": "insufficient_quota"}, "rate_limit", False),
        (503, {"message": "busy"}, "overloaded", True),
        (500, {"message": "oops", "type": "server_error"}, "server", True),
        (400, {"message": "too long", "code": "context_length_exceeded"}, "context_window", False),
        (400, {"message": "bad", "code": None}, "invalid_request", False),
        (401, {"message": f"Incorrect API key provided: {KEY}.", "code": "invalid_api_key"}, "auth", False),
        (418, {"message": "teapot"}, "unknown", False),
    ],
)
async def test_failures_have_a_class_and_say_whether_to_try_again(
    status: int, error: dict[str, Any], cls: str, retryable: bool
) -> None:
    body = msgspec.json.encode({"error": error})
    with pytest.raises(ProviderError) as caught:
        await answer(chat(answering(body, status=status, kind=JSON)))
    assert (caught.value.cls, caught.value.retryable, caught.value.status) == (cls, retryable, status)


@pytest.mark.requirement("provider.request.key_secrecy")
async def test_key_that_server_echoes_is_not_in_error() -> None:
    body = msgspec.json.encode({"error": {"message": f"Incorrect API key provided: {KEY}."}})
    provider = chat(answering(body, status=401, kind=JSON))
    with pytest.raises(ProviderError) as caught:
        await answer(provider)
    assert KEY not in f"{caught.value!r} {caught.value.message} {provider!r}"


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    ("file", "profile", "failure"),
    [
        ("streams/openrouter/rate_limited", "openrouter", ("rate_limit", 429, True)),
        ("streams/openai_chat/refused_option", "openai", ("invalid_request", 400, False)),
        *recorded(
            [
                ("openrouter/openrouter_errors_raised", "openrouter", ("rate_limit", 429, True)),
                ("openai_chat/openai_web_search_tool_model_not_supported", "openai", ("invalid_request", 400, False)),
            ]
        ),
    ],
)
async def test_error_answers_have_their_class(file: str, profile: str, failure: tuple[str, int, bool]) -> None:
    with pytest.raises(ProviderError) as caught:
        await answer(chat(RecordedTransport([exchange(file)]), profile))
    assert (caught.value.cls, caught.value.status, caught.value.retryable) == failure


async def test_retry_after_is_kept() -> None:
    limited = replay((429, JSON, b'{"error":{"message":"slow"}}'))[0]
    waiting = msgspec.structs.replace(limited, headers={**limited.headers, "retry-after": "7"})
    with pytest.raises(ProviderError) as caught:
        await answer(chat(RecordedTransport([waiting])))
    assert caught.value.retry_after_s == 7


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    ("file", "thoughts"),
    [
        ("streams/openrouter/error_in_the_stream", ("A greeting", " needs an answer")),
        *recorded([("openrouter/openrouter_stream_error", ("We need", " to respond to a greeting. The user"))]),
    ],
)
async def test_an_error_inside_a_begun_stream_is_classified_alike(file: str, thoughts: tuple[str, str]) -> None:
    provider = chat(RecordedTransport([exchange(file)]), "openrouter")
    chunks: list[Chunk] = []

    async def read() -> None:
        async for some in provider.stream(ask()):
            chunks.extend(some)

    with pytest.raises(ProviderError) as caught:
        await read()
    assert (caught.value.cls, caught.value.status) == ("invalid_request", 400)
    assert chunks[:2] == [ThinkingDelta(thought) for thought in thoughts]
    assert chunks[-1] == UsageUpdate(Usage(input=43, reasoning=10, output=10))
    assert not any(isinstance(chunk, Finish) for chunk in chunks)


@pytest.mark.requirement("provider.stream.bad_arguments")
@pytest.mark.parametrize(
    ("file", "call"),
    [
        ("streams/groq/malformed_call", ("port_of", {"shore": "Finnmark"})),
        *recorded([("groq/tool_use_failed_error", ("get_something_by_name", {"foo": "bar"}))]),
    ],
)
async def test_call_that_server_found_malformed_comes_back_as_call(file: str, call: tuple[str, Any]) -> None:
    got = await answer(chat(RecordedTransport([exchange(file)]), "groq"))
    assert [(one.name, msgspec.json.decode(one.args)) for one in got.message().calls] == [call]
    assert got.finish_reason == "malformed_function_call"


async def test_malformed_call_that_cannot_be_read_comes_back_as_text() -> None:
    error = {"code": "tool_use_failed", "message": "Failed to call a function.", "failed_generation": "<function=x"}
    streamed = events(part({"reasoning": "hm"}), {"error": error})
    got = await answer(chat(answering(streamed), "groq"))
    assert (got.text, got.finish_reason) == ("<function=x", "malformed_function_call")


@pytest.mark.parametrize(
    "bad",
    [b"{", b'{"choices":1}', b'{"choices":[{"delta":{"executed_tools":[1]},"finish_reason":"stop"}]}'],
)
async def test_nonsensical_event_fails_the_call_after_earlier_ones(bad: bytes) -> None:
    case = Failed("bad", ask(), cls="server", text="Hel")
    await check_provider(lambda _: chat(answering(events(part({"content": "Hel"}), bad, DONE)), "groq"), [case])


@pytest.mark.parametrize("kind", [SSE, JSON])
async def test_an_answer_that_cannot_be_read_may_be_billed(kind: str) -> None:
    with pytest.raises(ProviderError) as raised:
        await answer(chat(answering(events(b"{oops"), kind=kind)))
    assert (raised.value.cls, raised.value.unanswered) == ("server", True)
