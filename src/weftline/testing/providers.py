"""A conformance suite for model families: checks that a provider keeps the promises of `providers/base.py`.

The suite talks to a real provider whose upstream is a stand-in, so it needs a factory that builds one for each case:

    async def test_my_family_behaves():
        await check_provider(
            lambda case: MyFamily(transport=stand_in_for(case.name)),
            [
                Answered("hello", request, text="Hello", finish_reason="end_turn"),
                Failed("busy", request, cls="overloaded"),
                Failed("cut", request, cls="server", text="Hel"),
                Aborted("hung", request, reached=upstream.reached, closed=upstream.is_closed),
            ],
        )

Every broken promise is an `AssertionError` that names the case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from weftline.messages import Thinking, ToolCall
from weftline.providers.assemble import Assembler, clean_usage
from weftline.providers.base import (
    Chunk,
    ErrorClass,
    Finish,
    ModelRequest,
    Provider,
    ProviderError,
    TextDelta,
    UsageUpdate,
)


class Answered(Struct, frozen=True):
    """The upstream gives a good answer. Fields that are None are not compared; `calls` are (name, JSON arguments)."""

    name: str
    request: ModelRequest
    text: str | None = None
    thinking: str | None = None
    calls: Sequence[tuple[str, object]] | None = None
    finish_reason: str | None = None


class Failed(Struct, frozen=True):
    """The upstream fails, or is cut off (class `server`), after sending `text`."""

    name: str
    request: ModelRequest
    cls: ErrorClass
    text: str = ""
    retryable: bool | None = None


class Aborted(Struct, frozen=True):
    """The upstream stops responding. `reached` returns once it does; `closed` returns whether the connection was
    closed.
    """

    name: str
    request: ModelRequest
    reached: Callable[[], Awaitable[object]]
    closed: Callable[[], bool]


Case: TypeAlias = Answered | Failed | Aborted


async def check_provider(
    factory: Callable[[Case], Provider], cases: Sequence[Case], *, timeout_s: float = 10.0
) -> None:
    """Runs the cases, each on a provider of its own. `timeout_s` bounds each case: a provider that hangs fails it."""
    for case in cases:
        provider = factory(case)
        try:
            async with asyncio.timeout(timeout_s):
                await _check(provider, case)
        except TimeoutError:
            raise AssertionError(f"{case.name}: not done after {timeout_s} s") from None
        finally:
            await provider.aclose()


async def _check(provider: Provider, case: Case) -> None:
    check = _Check(case.name)
    check.that(provider.name == provider.name.lower() != "", f"the family's name is {provider.name!r}, not lowercase")
    check.that(all(model.vendor_id for model in provider.models()), "models() lists one without an id")
    before = msgspec.json.encode(case.request.messages)
    match case:
        case Answered():
            await _check_answer(provider, case, check)
        case Failed():
            await _check_failure(provider, case, check)
        case Aborted():
            await _check_abort(provider, case, check)
    check.that(msgspec.json.encode(case.request.messages) == before, "the request's messages were changed")


async def _check_answer(provider: Provider, case: Answered, check: _Check) -> None:
    seen = _Seen(provider, check)
    try:
        await seen.read(case.request)
    except ProviderError as error:
        check.that(False, f"failed as {error.cls}: {error.message}")
    answer = seen.assembler
    finishes = [chunk for chunk in seen.chunks if isinstance(chunk, Finish)]
    check.that(len(finishes) == 1, f"{len(finishes)} finishes, not one")
    check.that(isinstance(seen.chunks[-1], Finish), "the finish is not the last chunk")
    reason = finishes[0].reason
    check.that(reason is None or reason == reason.lower() != "", f"finish reason {reason!r} is not a lowercase token")
    for chunk in seen.chunks:
        if isinstance(chunk, UsageUpdate):
            check.that(chunk.usage == clean_usage(chunk.usage), f"usage does not make sense: {chunk.usage}")
    message = answer.message()
    streamed = "".join(chunk.text for chunk in seen.chunks if isinstance(chunk, TextDelta))
    check.equal(streamed, message.text, "the deltas and the text of the message")
    for part in message.parts:
        if isinstance(part, Thinking | ToolCall):
            check.equal(part.provider, provider.name, "the provider of a part")
    ids = [call.id for call in message.calls if call.id]
    check.that(len(ids) == len(set(ids)), f"two calls have one id: {ids}")
    if case.text is not None:
        check.equal(message.text, case.text, "text")
    if case.thinking is not None:
        check.equal("".join(p.text for p in message.parts if isinstance(p, Thinking)), case.thinking, "thinking")
    if case.calls is not None:
        found = [(call.name, msgspec.json.decode(call.args)) for call in message.calls]
        check.equal(found, list(case.calls), "calls")
    if case.finish_reason is not None:
        check.equal(answer.finish_reason, case.finish_reason, "finish reason")


async def _check_failure(provider: Provider, case: Failed, check: _Check) -> None:
    seen = _Seen(provider, check)
    try:
        await seen.read(case.request)
    except ProviderError as error:
        check.equal(error.cls, case.cls, "error class")
        check.that(error.message != "", "the error has no message")
        if case.retryable is not None:
            check.equal(error.retryable, case.retryable, "retryable")
    else:
        check.that(False, "the failure was not raised")
    check.that(not seen.assembler.complete, "a finish came before the failure")
    check.equal(seen.assembler.text, case.text, "text before the failure")


async def _check_abort(provider: Provider, case: Aborted, check: _Check) -> None:
    seen = _Seen(provider, check)
    reading = asyncio.create_task(seen.read(case.request))
    reached = asyncio.ensure_future(case.reached())
    try:
        await asyncio.wait([reading, reached], return_when=asyncio.FIRST_COMPLETED)
        check.that(not reading.done(), "the stream ended by itself")
        reading.cancel()
        # Whatever the provider raises because of it, the outcome is an abort; it only has to end.
        await asyncio.wait([reading])
    finally:
        for task in (reading, reached):
            task.cancel()
        await asyncio.gather(reading, reached, return_exceptions=True)
    check.that(not seen.assembler.complete, "an aborted stream has a finish")
    check.that(case.closed(), "the upstream was not let go")


class _Seen:
    """All chunks of one stream, and the message they make."""

    def __init__(self, provider: Provider, check: _Check) -> None:
        self.chunks: list[Chunk] = []
        self.assembler = Assembler(provider.name)
        self._provider = provider
        self._check = check

    async def read(self, request: ModelRequest) -> None:
        try:
            async for chunks in self._provider.stream(request):
                self.chunks.extend(chunks)
                self._feed(chunks)
        except (ProviderError, AssertionError):
            raise
        except Exception as error:
            raise AssertionError(f"{self._check.case}: raised {error!r} and not a ProviderError") from error

    def _feed(self, chunks: Sequence[Chunk]) -> None:
        try:
            self.assembler.feed(chunks)
        except ProviderError as error:
            # Not the upstream's failure, which the case may expect, but one of the provider itself.
            raise AssertionError(f"{self._check.case}: chunks out of order: {error.message}") from error


class _Check:
    def __init__(self, case: str) -> None:
        self.case = case

    def that(self, holds: bool, fault: str) -> None:
        if not holds:
            raise AssertionError(f"{self.case}: {fault}")

    def equal(self, found: object, wanted: object, what: str) -> None:
        self.that(found == wanted, f"{what}: {found!r} is not {wanted!r}")
