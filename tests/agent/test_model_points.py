"""What hooks see around a model call: credentials, pieces of the answer, and images that the model cannot see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from weftline import Agent, Limits, RunFailed, hook, prompts, tool
from weftline.agent.hooking.calling import Hook
from weftline.hooks import (
    AfterModel,
    BeforeModel,
    OAuthRefreshed,
    Point,
    StreamEnded,
    TextStreamed,
    ThinkingStreamed,
    ToolAfter,
)
from weftline.messages import Image, Text, ToolResults
from weftline.providers.base import (
    Chunk,
    Finish,
    ModelInfo,
    ModelRequest,
    ProviderError,
    TextDelta,
    ThinkingDelta,
    ThinkingDone,
)
from weftline.providers.renewals import renewed
from weftline.testing import ScriptedModel, calls

WATCHED = (BeforeModel, OAuthRefreshed, ThinkingStreamed, TextStreamed, StreamEnded, AfterModel)


def watching(*kinds: type[Point]) -> tuple[list[tuple[str, object]], list[Hook[Any]]]:
    """What was told, and the hooks that write it down."""
    told: list[tuple[str, object]] = []

    def write(point: Point) -> None:
        told.append((point.name, getattr(point, "text", None)))

    return told, [hook(kind)(write) for kind in kinds]


class Chatty:
    """A provider that renews its credentials for every call and answers in pieces."""

    name = "chatty"

    def __init__(self, *answers: Sequence[Chunk] | ProviderError) -> None:
        self._answers = list(answers)

    def models(self) -> Sequence[ModelInfo]:
        return (ModelInfo("chatty-1"),)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        renewed()
        answer = self._answers.pop(0)
        if isinstance(answer, ProviderError):
            raise answer
        yield answer

    async def aclose(self) -> None: ...


THOUGHT = [ThinkingDelta("Hm"), ThinkingDelta("m."), ThinkingDone()]


@pytest.mark.requirement("loop.turn.stream_hooks")
async def test_credentials_come_first_and_the_text_end_once() -> None:
    told, hooks = watching(*WATCHED)
    answer = [*THOUGHT, TextDelta("Hel"), TextDelta("lo."), Finish("end_turn")]
    await Agent(Chatty(answer)).run("Hi.", hooks=hooks)
    assert told == [
        ("before_model", None),
        ("oauth_refreshed", None),
        ("thinking_streamed", "Hm"),
        ("thinking_streamed", "m."),
        ("text_streamed", "Hel"),
        ("text_streamed", "lo."),
        ("stream_ended", "Hello."),
        ("after_model", None),
    ]


@pytest.mark.requirement("loop.turn.stream_hooks")
async def test_turn_without_text_has_no_text_end() -> None:
    @tool(effect="read")
    def look() -> str:
        """Looks."""
        return "Nothing."

    model = ScriptedModel([calls("look"), "Done."])
    told, hooks = watching(StreamEnded, TextStreamed)
    await Agent(model, tools=[look]).run("Hi.", hooks=hooks)
    assert told == [("text_streamed", "Done."), ("stream_ended", "Done.")]
    told, hooks = watching(*WATCHED)
    with pytest.raises(RunFailed):
        await Agent(Chatty(ProviderError("invalid_request", "No."))).run("Hi.", hooks=hooks)
    assert [name for name, _ in told] == ["before_model", "oauth_refreshed", "after_model"]


class Blind(ScriptedModel):
    def models(self) -> Sequence[ModelInfo]:
        return (ModelInfo(super().models()[0].vendor_id, vision=False),)


PNG = Image("image/png", data="iVBORw0KGgo=")
IN_WORDS = Text(prompts.models.unseen_image("image/png"))


@pytest.mark.requirement("loop.image.non_vision")
async def test_hooks_and_blind_models_get_a_text_for_images() -> None:
    seen: list[object] = []

    @hook(ToolAfter)
    def watch(point: ToolAfter) -> None:
        seen.append((point.result, point.output_bytes))

    @tool(effect="read")
    def camera() -> Image:
        """Takes a picture."""
        return PNG

    def shown(request: ModelRequest) -> list[object]:
        found = [one for message in request.messages if isinstance(message, ToolResults) for one in message.results]
        return [part for one in found for part in one.parts]

    blind = Blind([calls("camera"), "I cannot see it."])
    agent = Agent(blind, tools=[camera], hooks=[watch])
    first = await agent.run("What is there?")
    assert seen == [((IN_WORDS,), len(IN_WORDS.text))]
    assert shown(blind.requests[1]) == [IN_WORDS]
    still = Blind(["Still not."])
    await agent.run("And now?", messages=first.messages, model=still)
    assert shown(still.requests[0]) == [IN_WORDS]
    sighted = ScriptedModel(["A cat."])
    await agent.run("And now?", messages=first.messages, model=sighted)
    [part] = shown(sighted.requests[0])
    assert isinstance(part, Image)
    assert part.data == PNG.data


class Impatient(ScriptedModel):
    """Gives up by itself, long before its time is over."""

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        raise TimeoutError("read timed out")


class Classifying(Impatient):
    def classify_error(self, error: BaseException) -> ProviderError:
        return ProviderError("overloaded", f"It is busy: {error}.", retryable=False)


@pytest.mark.parametrize(
    ("model", "code", "text"),
    [
        (Impatient(["Never."]), "timeout", "The model's provider did not answer in time."),
        (Classifying(["Never."]), "overloaded", "It is busy: read timed out."),
    ],
)
async def test_timeout_of_providers_own_is_not_taken_for_runs(model: ScriptedModel, code: str, text: str) -> None:
    with pytest.raises(RunFailed) as failed:
        await Agent(model, limits=Limits(max_retries=0)).run("Go.")
    assert (failed.value.result.code, failed.value.result.error) == (code, text)
