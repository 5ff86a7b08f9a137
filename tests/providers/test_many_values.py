"""A model API may be anybody's: an answer that would become millions of objects is a failure of that call alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weftline.messages import User
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.assemble import collect
from weftline.providers.base import ModelRequest, Provider, ProviderError
from weftline.providers.google.provider import Google
from weftline.providers.http_errors import classify
from weftline.providers.listing import fetch
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.responses import OpenAIResponses
from weftline.testing.recordings import RecordedTransport, replay

MANY = b'{"choices":[' + b"{}," * 300_000 + b"{}]}"
LONG = b'{"choices":[' + b",".join([b"9" * 4_290] * 20) + b"]}"
EDGE = b'{"choices":[' + b"1e300," * 6_000 + b"1]}"
FAMILIES: dict[str, Callable[[RecordedTransport], Provider]] = {
    "chat": lambda to: OpenAIChat(profile="openai", transport=to, base_url="http://x/v1", api_key="k"),
    "responses": lambda to: OpenAIResponses(transport=to, base_url="http://x/v1", api_key="k"),
    "anthropic": lambda to: Anthropic(transport=to, api_key="k"),
    "google": lambda to: Google(transport=to, api_key="k"),
}


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("bomb", "told"),
    [(MANY, "more than 200,000 JSON values"), (LONG, "too many numbers"), (EDGE, "more than 1,000 numbers")],
)
async def test_an_answer_that_costs_too_much_fails_for_good(family: str, kind: str, bomb: bytes, told: str) -> None:
    body = b"data: " + bomb + b"\n\n" if kind == "text/event-stream" else bomb
    provider = FAMILIES[family](RecordedTransport(replay((200, kind, body))))
    with pytest.raises(ProviderError, match=told) as caught:
        await collect(provider, ModelRequest("m", [User.of("hi")]))
    assert (caught.value.cls, caught.value.retryable) == ("server", False)


def test_an_error_of_a_million_values_is_still_an_error() -> None:
    error = classify(400, MANY)
    assert error.cls == "invalid_request" and error.message


@pytest.mark.parametrize(("bomb", "told"), [(MANY, "JSON values"), (b'{"a":' + b"[" * 5_000, "could not be read")])
async def test_list_of_million_models_or_levels_is_not_read(bomb: bytes, told: str) -> None:
    with pytest.raises(ProviderError, match=told):
        await fetch(RecordedTransport(replay((200, "application/json", bomb))), "http://x", {}, headers={}, secrets=())
