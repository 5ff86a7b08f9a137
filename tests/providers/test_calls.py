"""Failures below HTTP, as a provider tells them, and what it tells about attachments that it does not send."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import get_args

import pytest
from msgspec import Struct

from weftline.messages import Assistant, File, Image, Text, ToolCall, ToolResult, ToolResults, User
from weftline.net.errors import Reason, RequestFailed, TimeLimits
from weftline.net.transport import Response
from weftline.providers.anthropic.bedrock import Bedrock
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.assemble import collect
from weftline.providers.base import ErrorClass, ModelInfo, ModelRequest, Provider, ProviderError
from weftline.providers.calls import Call, provider_error
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.responses import OpenAIResponses
from weftline.testing.recordings import RecordedTransport, replay
from weftline.trace_context import current_run

CLASSES: dict[Reason, tuple[ErrorClass, bool]] = {
    "invalid": ("invalid_request", False),
    "refused": ("invalid_request", False),
    "redirected": ("invalid_request", False),
    "certificate": ("server", False),
    "connect": ("server", True),
    "proxy": ("server", False),
    "timeout": ("timeout", True),
    "broken": ("server", True),
    "too_large": ("server", False),
    "closed": ("server", False),
    "busy": ("server", True),
    "unknown": ("unknown", False),
}


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize("reason", get_args(Reason))
def test_each_reason_has_its_class(reason: Reason) -> None:
    error = provider_error(RequestFailed(reason, "why", sent=True))
    assert (error.cls, error.retryable, error.message) == (*CLASSES[reason], "why")


@pytest.mark.parametrize("when", ["before", "in the middle", "at the end"])
async def test_a_call_fails_as_the_providers_call_whenever_it_does(when: str) -> None:
    failed = RequestFailed("broken", "It broke.", sent=True)

    @asynccontextmanager
    async def request() -> AsyncGenerator[Response]:
        if when == "before":
            raise failed
        async with RecordedTransport(replay((200, "text/plain", b""))).get(
            "", headers={}, limits=TimeLimits()
        ) as response:
            yield response
        raise failed

    async def call() -> None:
        async with Call(request(), "http://stand-in/v1"):
            if when == "in the middle":
                raise failed

    with pytest.raises(ProviderError) as raised:
        await call()
    assert (raised.value.cls, raised.value.message) == ("server", "It broke.")


class Work(Struct):
    run_id: str
    workspace_slug: str = "acme"


ZIP = File("application/zip", data="UEsDBA==", name="parts.zip")
PICTURE = Image("image/png", data="UEsDBA==")
BLIND = [ModelInfo("m", vision=False)]


UNREAD: list[tuple[Callable[[RecordedTransport], Provider], File | Image, str]] = [
    (lambda to: OpenAIChat(profile="groq", transport=to, api_key="k"), ZIP, "parts.zip (application/zip)"),
    (lambda to: OpenAIChat(transport=to, api_key="k", models=BLIND), PICTURE, "an attachment (image/png)"),
    (
        lambda to: OpenAIResponses(transport=to, api_key="k"),
        File("audio/wav", data="UEsDBA==", name="a.wav"),
        "a.wav (audio/wav)",
    ),
    (lambda to: OpenAIResponses(transport=to, api_key="k", models=BLIND), PICTURE, "an attachment (image/png)"),
    (lambda to: Anthropic(transport=to, api_key="k"), ZIP, "parts.zip (application/zip)"),
    (
        lambda to: Bedrock(transport=to, api_key="k", region="eu-west-1"),
        Image("image/png", url="https://files.test/a.png?sig=secret"),
        "an attachment (image/png)",
    ),
]


@pytest.mark.parametrize(("build", "part", "named"), UNREAD)
async def test_developer_is_told_once_what_a_model_cannot_read(
    build: Callable[[RecordedTransport], Provider], part: File | Image, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = f"run_{named}_{id(build)}"
    token = current_run.set(Work(run))
    results = ToolResults((ToolResult("c1", "look", (part,)),))
    call = Assistant((ToolCall("c1", "look", "{}"),))
    request = ModelRequest("m", [User((Text("Read this."), part)), call, results])
    try:
        for _ in range(2):
            with pytest.raises(ProviderError):
                await collect(build(RecordedTransport(replay((400, "application/json", b"{}")))), request)
    finally:
        current_run.reset(token)
    assert [record.getMessage() for record in caplog.records] == [
        f"run {run}: {named} is not sent to the model, which cannot read it and is told so"
    ]
