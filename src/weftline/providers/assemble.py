"""Builds the assistant message of one model call from the chunks that a provider streams.

    assembler = Assembler(provider.name)
    async for chunks in provider.stream(request):
        assembler.feed(chunks)
    if assembler.complete:
        message = assembler.message()

`collect` does this for callers that do not need the deltas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeAlias, final

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple, replace

from weftline.messages import Assistant, AssistantPart, Text, Thinking, ToolCall, Usage
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Chunk,
    Finish,
    ModelRequest,
    Provider,
    ProviderError,
    TextDelta,
    ThinkingDelta,
    ThinkingDone,
    UsageUpdate,
    Whole,
)
from weftline.text.characters import whole

MAX_CALLS: Final = 1_024
"""Tool calls. Handling this many takes about 50 ms."""
MAX_PARTS: Final = 4_096
"""All parts: calls, blocks of text and of thinking, images, tools that the provider ran, opaque blocks."""
MAX_NAME_CHARS: Final = 1_024
"""The length of a tool's name, which some APIs send in pieces."""


def too_many(what: str, limit: int) -> ProviderError:
    """Returns the error for an answer that exceeds a limit.

    It is not retryable, as the same request would get the same answer and be billed again.
    """
    message = f"The model's answer has more than {limit:,} {what}."
    return ProviderError("server", message, code="answer_too_large", retryable=False, unanswered=True)


def too_many_calls() -> ProviderError:
    return too_many("tool calls", MAX_CALLS)


def too_many_parts() -> ProviderError:
    return too_many("parts", MAX_PARTS)


def bounded(parts: Sized) -> None:
    """Raises `ProviderError` if the answer so far has too many parts."""
    if len(parts) > MAX_PARTS:
        raise too_many_parts()


MAX_COUNT = 10**12
"""The largest token count that every JSON reader keeps exact; a larger one is nonsense and is capped."""

TextRun: TypeAlias = tuple[type[TextDelta] | type[ThinkingDelta], list[str]]
"""The texts of some deltas of one kind that follow each other."""
_text = attrgetter("text")
_BLOCK = 1024
"""How many pieces of text are joined into one."""


@final
class _Call(Struct):
    name: str
    id: str
    extra: Raw | UnsetType
    pieces: list[str]
    args: str | None = None
    done: bool = False


class Assembler(Struct, eq=False):
    """The message so far. `message()`, `text` and `usage` may be read at any time, even after a failure.

    A stream that breaks the protocol (a chunk after `Finish`, pieces of a call that never began) raises
    `ProviderError` of class `server`, and so does one with more calls or parts than `answer_limits` allow.
    """

    provider: str
    complete: bool = False
    """Whether the stream reached its `Finish`. Otherwise the message is only what arrived before the cut."""
    usage: Usage = Usage()
    """The last usage reported, sanitized; all zero if there was none."""
    _finish: str | None = None
    _parts: list[AssistantPart | _Call] = []
    _calls: dict[str | int, _Call] = {}
    call_count: int = 0
    """How many calls have begun."""
    _pieces: list[str] = []
    """The open block of text or thinking, not yet in `_parts`; empty if there is none."""
    _blocks: int = 0
    """How many of the first pieces are joined blocks."""
    _thinking: bool = False
    """Whether the open block is thinking."""

    def feed(self, chunks: Sequence[Chunk]) -> list[TextRun]:
        """Takes the next chunks in upstream order. Returns the texts among them."""
        streamed: list[TextRun] = []
        # Nearly all of a stream is text, and the deltas of one read are taken together.
        for kind, run in groupby(chunks, type):
            if self.complete:
                raise self._continued()
            if kind is TextDelta or kind is ThinkingDelta:
                texts = [*map(_text, run)]
                self._take_texts(texts, thinking=kind is ThinkingDelta)
                streamed.append((kind, texts))
            else:
                take = self.takes[kind]
                for chunk in run:
                    take(self, chunk)
        if len(self._pieces) - self._blocks >= _BLOCK:
            # A string takes fifty bytes besides its characters, of which a delta has ten or twenty.
            self._pieces[self._blocks :] = ["".join(self._pieces[self._blocks :])]
            self._blocks += 1
        return streamed

    def _continued(self) -> ProviderError:
        return ProviderError("server", f"{self.provider}: the stream continued after its end")

    def _start_call(self, chunk: CallStart) -> None:
        open_call = self._calls.get(chunk.key)
        if open_call is not None and not open_call.done:
            raise ProviderError("server", f"{self.provider}: call {chunk.key!r} began twice")
        self._close_run()
        call = self._calls[chunk.key] = _Call(chunk.name, chunk.id or "", chunk.extra, [])
        self._add_call(call)

    def _take_args(self, chunk: CallArgs) -> None:
        self._open_call(chunk.key).pieces.append(chunk.json)

    def _end_call(self, chunk: CallDone) -> None:
        call = self._open_call(chunk.key)
        call.done = True
        call.args = chunk.args
        if chunk.extra is not UNSET:
            call.extra = chunk.extra

    def _take_usage(self, chunk: UsageUpdate) -> None:
        self.usage = clean_usage(chunk.usage)

    def _end(self, chunk: Finish) -> None:
        if self.complete:
            raise self._continued()
        self._close_run()
        self._finish = chunk.reason
        self.complete = True

    def _take_texts(self, texts: list[str], *, thinking: bool = False) -> None:
        if self._thinking is not thinking or not self._pieces:
            # An empty delta (many APIs begin with one) opens no part and ends no other one.
            if not any(texts):
                return
            self._close_run()
            self._thinking = thinking
        self._pieces += texts

    def _take_whole(self, chunk: Whole) -> None:
        part = chunk.part
        if isinstance(part, Text):
            self._take_texts([part.text])
            return
        if isinstance(part, Thinking | ToolCall) and not part.provider:
            part = replace(part, provider=self.provider)
        self._close_run()
        if isinstance(part, ToolCall):
            self._add_call(part)
        else:
            self._add(part)

    def _end_thinking(self, chunk: ThinkingDone) -> None:
        signature, opaque = chunk.signature, chunk.opaque
        text = ""
        if self._thinking:
            text = whole("".join(self._pieces))
            self._pieces, self._blocks, self._thinking = [], 0, False
        else:
            self._close_run()
        if text or signature is not None or opaque is not UNSET:
            self._add(Thinking(text, self.provider, signature, opaque))

    def _add(self, part: AssistantPart | _Call) -> None:
        if len(self._parts) >= MAX_PARTS:
            raise too_many_parts()
        self._parts.append(part)

    def _add_call(self, call: ToolCall | _Call) -> None:
        if self.call_count >= MAX_CALLS:
            raise too_many_calls()
        self._add(call)
        self.call_count += 1

    def _open_call(self, key: str | int) -> _Call:
        call = self._calls.get(key)
        if call is None or call.done:
            raise ProviderError("server", f"{self.provider}: a piece of call {key!r}, which is not open")
        return call

    def _open_run(self) -> AssistantPart:
        text = whole("".join(self._pieces))
        return Thinking(text, self.provider) if self._thinking else Text(text)

    def _close_run(self) -> None:
        if self._pieces:
            self._add(self._open_run())
            self._pieces, self._blocks, self._thinking = [], 0, False

    def message(self) -> Assistant:
        """Returns the message so far. A call without an id from the API has the id `""`, which the runtime replaces."""
        parts = [self._tool_call(part) if type(part) is _Call else part for part in self._parts]
        if self._pieces:
            parts.append(self._open_run())
        return Assistant(tuple(parts))

    def _tool_call(self, call: _Call) -> ToolCall:
        args = whole("".join(call.pieces) if call.args is None else call.args)
        # A call to a tool without parameters may come with no argument text at all.
        return ToolCall(whole(call.id), whole(call.name), args or "{}", self.provider, call.extra)

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped; `tool_use` whenever it ended its turn with calls. None before the end."""
        if self._finish == "end_turn" and self.call_count:
            return "tool_use"
        return self._finish

    @property
    def text(self) -> str:
        """All text so far, without thinking."""
        return self.message().text

    takes: ClassVar[dict[type[Chunk], Callable[[Assembler, Any], None]]] = {
        ThinkingDone: _end_thinking,
        CallStart: _start_call,
        CallArgs: _take_args,
        CallDone: _end_call,
        Whole: _take_whole,
        UsageUpdate: _take_usage,
        Finish: _end,
    }
    """The handler of each other kind of chunk. A table is much cheaper than patterns that do not match."""


def clean_usage(usage: Usage) -> Usage:
    """Sanitizes counts so that they can be added up.

    They become integers that are not negative, with `cached` and `cache_write` within input and `reasoning` within
    output. Missing, null or absurd values become 0.
    """
    counts = astuple(usage)
    plain = {*map(type, counts)} == {int} and min(counts) >= 0 and max(counts) <= MAX_COUNT
    if plain and usage.cached + usage.cache_write <= usage.input and usage.reasoning <= usage.output:
        return usage
    tokens_in = clean_count(usage.input)
    tokens_out = clean_count(usage.output)
    cached = min(clean_count(usage.cached), tokens_in)
    return Usage(
        input=tokens_in,
        cached=cached,
        reasoning=min(clean_count(usage.reasoning), tokens_out),
        output=tokens_out,
        cache_write=min(clean_count(usage.cache_write), tokens_in - cached),
    )


def clean_count(value: object) -> int:
    """Sanitizes one count. Structs do not check their fields, so it may be whatever the API sent."""
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return 0
    return min(value, MAX_COUNT)


async def collect(provider: Provider, request: ModelRequest) -> Assembler:
    """Makes one model call and reads it to its end. Raises `ProviderError`, even if the stream was cut."""
    assembler = Assembler(provider.name)
    stream = provider.stream(request)
    try:
        async for chunks in stream:
            assembler.feed(chunks)
    finally:
        aclose = getattr(stream, "aclose", None)
        if aclose is not None:
            await aclose()
    if not assembler.complete:
        raise ProviderError("server", f"{provider.name}: the stream ended without a finish reason")
    return assembler
