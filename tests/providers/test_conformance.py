from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import pytest

from weftline.messages import Usage, User
from weftline.providers.base import Chunk, Finish, ModelInfo, ModelRequest, ProviderError, TextDelta, UsageUpdate
from weftline.testing import Aborted, Answered, Failed, ScriptedModel, ScriptedProvider, check_provider, parse_scripts
from weftline.testing.providers import Case


def ask(model: str = "script", *, reasoning: int | None = None) -> ModelRequest:
    return ModelRequest(model, (User.of("hi"),), reasoning=reasoning)


async def test_the_scripted_family_conforms() -> None:
    waiting, released = asyncio.Event(), asyncio.Event()

    async def hang(seconds: float) -> None:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            released.set()

    scripts = parse_scripts(
        json.dumps(
            {
                "talk": {"turns": [{"deltas": ["Hel", "lo"], "thinking": ["hm"]}]},
                "call": {"turns": [{"text": "a", "tool_calls": [{"name": "look", "args": {"n": 1}}, {"name": "go"}]}]},
                "busy": {"turns": [{"error": {"class": "overloaded", "message": "busy"}}]},
                "cut": {"turns": [{"text": "Hel", "error": {"class": "server", "message": "cut"}}]},
                "hung": {"turns": [{"deltas": ["a", "b"], "delay_ms": 1}]},
            }
        ).encode()
    )
    cases: list[Case] = [
        Answered("talk", ask("talk", reasoning=80), text="Hello", thinking="hm", finish_reason="end_turn"),
        Answered("call", ask("call"), calls=[("look", {"n": 1}), ("go", {})], finish_reason="tool_use"),
        Failed("busy", ask("busy"), cls="overloaded", retryable=True),
        Failed("cut", ask("cut"), cls="server", text="Hel"),
        Failed("unknown", ask("unknown"), cls="invalid_request", retryable=False),
        Aborted("hung", ask("hung"), reached=waiting.wait, closed=released.is_set),
    ]
    await check_provider(lambda case: ScriptedProvider(scripts, sleep=hang), cases)


class Broken:
    """A provider that yields what it is given, then raises what it is given."""

    name = "broken"

    def __init__(self, *chunks: Chunk, error: Exception | None = None) -> None:
        self.chunks = chunks
        self.error = error

    def models(self) -> Sequence[ModelInfo]:
        return ()

    async def aclose(self) -> None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        for chunk in self.chunks:
            yield [chunk]
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("provider", "case"),
    [
        (Broken(), Answered("case", ask())),
        (Broken(TextDelta("a")), Answered("case", ask())),
        (Broken(TextDelta("b"), Finish("end_turn")), Answered("case", ask(), text="a")),
        (Broken(Finish("end_turn"), TextDelta("a")), Answered("case", ask())),
        (Broken(Finish("end_turn"), Finish("end_turn")), Answered("case", ask())),
        (Broken(Finish("STOP")), Answered("case", ask())),
        (Broken(UsageUpdate(Usage(1, 2)), Finish("end_turn")), Answered("case", ask())),
        (Broken(error=ProviderError("server", "x")), Answered("case", ask())),
        (Broken(error=ValueError("x")), Answered("case", ask())),
        (Broken(TextDelta("a")), Failed("case", ask(), cls="server", text="a")),
        (Broken(error=ProviderError("auth", "x")), Failed("case", ask(), cls="server")),
        (Broken(error=ConnectionResetError("x")), Failed("case", ask(), cls="server")),
        (Broken(Finish("end_turn"), TextDelta("a")), Failed("case", ask(), cls="server")),
        (Broken(Finish("end_turn"), error=ProviderError("server", "x")), Failed("case", ask(), cls="server")),
    ],
)
async def test_the_suite_finds_a_provider_that_breaks_a_promise(provider: Broken, case: Case) -> None:
    with pytest.raises(AssertionError, match=r"^case: "):
        await check_provider(lambda _: provider, [case])


async def test_the_suite_finds_a_provider_that_does_not_let_go() -> None:
    waiting = asyncio.Event()

    async def hang(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    model = ScriptedModel([{"deltas": ["a", "b"], "delay_ms": 1}], sleep=hang)
    with pytest.raises(AssertionError, match="not let go"):
        await check_provider(lambda _: model, [Aborted("hung", ask(), reached=waiting.wait, closed=lambda: False)])
