"""Every family keeps the promises of the provider protocol: the conformance suite, over real connections."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from msgspec import Raw

from weftline.config import provider_settings
from weftline.messages import User
from weftline.net.errors import TimeLimits
from weftline.net.transport import AiohttpTransport, Response
from weftline.providers.base import ModelRequest, Provider, ToolSpec
from weftline.providers.families import build_provider
from weftline.testing import Aborted, Answered, Failed, check_provider
from weftline.testing.providers import Case

from .dialects import Call, Dialect
from .upstream import Reply, Upstream


class Watched(AiohttpTransport):
    """Tells how many connections are in use."""

    def __init__(self) -> None:
        super().__init__()
        self.in_use = 0
        self.closed = False

    @asynccontextmanager
    async def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, limits: TimeLimits
    ) -> AsyncGenerator[Response]:
        self.in_use += 1
        try:
            async with super().post(url, headers=headers, body=body, limits=limits) as response:
                yield response
        finally:
            self.in_use -= 1

    async def aclose(self) -> None:
        self.closed = True
        await super().aclose()


async def test_a_family_conforms(dialect: Dialect, upstream: Upstream) -> None:
    transport = Watched()
    settings = dialect.settings(upstream.url)
    table = {"family": dialect.family, "base_url": settings["baseUrl"], "models": [dialect.model], **dialect.options}

    def ask(**fields: object) -> ModelRequest:
        return ModelRequest(dialect.model, [User.of("hi")], **fields)  # pyright: ignore[reportArgumentType]

    look = ToolSpec("look", "Looks.", Raw(b'{"type":"object","properties":{"n":{"type":"integer"}}}'))
    calls = [Call("look", '{"n":1}', "c1"), Call("look", '{"n":2}', "c2")]
    replies = {
        "text": Reply(dialect.answer("Hel", "lo"), pieces=9),
        "thinking": Reply(dialect.answer("Hello", thinking=["h", "m"])),
        "calls": Reply(dialect.answer("a", calls=calls), pieces=13),
        "empty": Reply(dialect.answer()),
        "limit": Reply(dialect.answer("Hel", stop="max_tokens")),
        "busy": dialect.fails(503, "unavailable"),
        "refused": dialect.fails(429, "rate_limit_exceeded", Retry_After="2"),
        "wrong": dialect.fails(400, "invalid_argument"),
        "broken": Reply(b"<html>", 500, "text/html"),
        "cut": Reply(dialect.begun("Hel"), then="cut"),
        "ended": Reply(dialect.begun("Hel")),
        "hung": Reply(dialect.begun("Hel"), then="silence"),
    }
    cases: list[Case] = [
        Answered("text", ask(), text="Hello", thinking="", calls=[], finish_reason="end_turn"),
        Answered("thinking", ask(reasoning=80), text="Hello", thinking="hm", finish_reason="end_turn"),
        Answered(
            "calls",
            ask(tools=[look]),
            text="a",
            calls=[("look", {"n": 1}), ("look", {"n": 2})],
            finish_reason="tool_use",
        ),
        Answered("empty", ask(), text="", calls=[], finish_reason="end_turn"),
        Answered("limit", ask(), text="Hel", finish_reason="max_tokens"),
        Failed("busy", ask(), cls="overloaded", retryable=True),
        Failed("refused", ask(), cls="rate_limit", retryable=True),
        Failed("wrong", ask(), cls="invalid_request", retryable=False),
        Failed("broken", ask(), cls="server", retryable=True),
        Failed("cut", ask(), cls="server", text="Hel", retryable=True),
        Failed("ended", ask(), cls="server", text="Hel", retryable=True),
        Aborted("hung", ask(), reached=upstream.silent.wait, closed=lambda: transport.in_use == 0),
    ]

    def build(case: Case) -> Provider:
        upstream.answers(replies[case.name])
        return build_provider(provider_settings("mine", table), transport=transport, environ={})

    await check_provider(build, cases)
    assert upstream.spent and len(upstream.asked) == len(cases), "one request per call, whatever its outcome"
    assert not transport.closed, "a transport that was handed in is its owner's to close"
    await transport.aclose()
