"""Answers of Chat Completions as chunks, streamed or whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from weftline.messages import Image, Opaque, ProviderCall
from weftline.providers.assemble import (
    MAX_CALLS,
    MAX_NAME_CHARS,
    MAX_PARTS,
    bounded,
    too_many,
    too_many_calls,
    too_many_parts,
)
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Chunk,
    Finish,
    ProviderError,
    TextDelta,
    ThinkingDelta,
    ThinkingDone,
    UsageUpdate,
    Whole,
)
from weftline.providers.names import NameMap
from weftline.providers.openai.family import MALFORMED, decode_loosely, present, usage_of
from weftline.providers.openai.profiles import Profile
from weftline.providers.openai.thinking import ReasoningDetails, ThinkTags

_REASONS: dict[str, str] = {
    "stop": "end_turn",
    "eos": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "model_length": "max_tokens",
    "content_filter": "refusal",
}
_MALFORMED = "malformed_function_call"
_TRIED_CHARS = 4 * 1024 * 1024
"""How much of an answer's arguments is parsed, repeatedly as it grows, to see whether a call is complete."""


class _Function(Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Raw | UnsetType = UNSET


class _Url(Struct):
    url: str = ""


class _Image(Struct):
    image_url: _Url | None = None
    index: int | None = None


class _ThinkingPiece(Struct):
    text: str | None = None


class _ContentPart(Struct):
    text: str | None = None
    thinking: str | list[_ThinkingPiece] | None = None
    signature: str | None = None


class _Delta(Struct):
    content: str | list[_ContentPart] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[_Call] | None = None
    images: list[_Image] | None = None
    annotations: list[Raw] | None = None
    executed_tools: list[Raw] | None = None
    extra_content: Raw | UnsetType = UNSET


class _Choice(Struct):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None


class _Groq(Struct):
    """Where Groq puts the usage of a stream."""

    usage: Raw | UnsetType = UNSET


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    x_groq: _Groq | None = None


class _ExecutedTool(Struct):
    type: str = "tool"
    arguments: Raw | UnsetType = UNSET
    output: Raw | UnsetType = UNSET


class _FailedCall(Struct):
    name: str
    arguments: Raw


class _Failure(Struct):
    code: str | int | None = None
    failed_generation: str | None = None


class _FailureBody(Struct):
    error: _Failure


_answers = msgspec.json.Decoder(_Chunk)


class _OpenCall(Struct):
    """A call in progress. It begins once its name is complete, as some servers send that in pieces."""

    key: int
    id: str | None
    name: str
    extra: Raw | UnsetType = UNSET
    begun: bool = False
    written: list[str] = []
    chars: int = 0
    late_extra: Raw | UnsetType = UNSET


class ChatReader:
    """Reads one answer. `error` creates the exception for an error object inside a stream."""

    def __init__(
        self,
        provider: str,
        profile: Profile,
        names: NameMap,
        error: Callable[[int | None, bytes], ProviderError],
    ) -> None:
        self.failure: ProviderError | None = None
        self.finished = False
        self._provider = provider
        self._profile = profile
        self._names = names
        self._error = error
        self._tags = ThinkTags() if profile.think_tags else None
        self._thinking = False
        self._details: ReasoningDetails | None = None
        self._signature: str | None = None
        self._calls: list[_OpenCall] = []
        self._at: dict[int, _OpenCall] = {}
        self._by_id: dict[str, _OpenCall] = {}
        self._begun = 0
        """How many calls have begun; they begin in order."""
        self._tried_chars = 0
        self._images: dict[int, Image] = {}
        self._annotations: list[Raw] = []
        self._executed: list[Raw] = []
        self._extra: Raw | UnsetType = UNSET
        self._reason: str | None = None
        self._answered = False
        self._refused = False

    def feed(self, data: bytes) -> list[Chunk]:
        if self.finished or self.failure is not None:
            return []
        if data == b"[DONE]":
            return self._finish() if self._answered else []
        # A failure after the finish reason does not invalidate the answer. If it was cut off, the error is more useful.
        reason = self._reason
        if reason is not None and _REASONS.get(reason) == "max_tokens":
            reason = None
        try:
            answer = _answers.decode(data)
        except MALFORMED:
            try:
                answer = decode_loosely(data, _Chunk)
            except ProviderError:
                if reason is None:
                    raise
                return self._finish()
        chunks: list[Chunk] = []
        for choice in answer.choices or ():
            if choice.index:
                continue
            self._answered = True
            delta = choice.message if choice.delta is None else choice.delta
            if delta is not None:
                self._take_delta(delta, chunks)
                if len(chunks) > MAX_PARTS:
                    raise too_many_parts()
            if choice.finish_reason:
                native = (choice.native_finish_reason or "").lower()
                self._reason = _MALFORMED if native == _MALFORMED else choice.finish_reason
        reported = answer.usage
        if answer.x_groq is not None and not present(reported):
            reported = answer.x_groq.usage
        if reported is not UNSET and present(reported):
            usage = usage_of(reported, reasoning_outside_output=self._profile.reasoning_outside_output)
            if usage is not None:
                chunks.append(UsageUpdate(usage))
        if answer.error is UNSET and self._reason is None:
            return chunks
        failed = answer.error is not UNSET and present(answer.error)
        if reason is not None and (failed or self._reason == "error"):
            self._reason = reason
            return chunks + self._finish()
        if failed:
            recovered = self.recover(data)
            if recovered:
                return chunks + recovered
            self.failure = self._error(None, data)
        elif self._reason == "error":
            self.failure = ProviderError(
                "server", f"{self._provider}: the model API cut off its answer.", unanswered=True
            )
        return chunks

    def whole(self, body: bytes) -> list[Chunk]:
        return self.feed(body) + ([] if self.failure is not None else self.end())

    def end(self) -> list[Chunk]:
        # The finish reason is in an event before the last; a stream without one was cut off.
        return self._finish() if self._reason is not None and not self.finished else []

    def recover(self, body: bytes) -> list[Chunk]:
        """Returns a call that the server found malformed, so that the model reads what was wrong and tries again."""
        if self._profile.failed_call_code is None:
            return []
        try:
            failure = msgspec.json.decode(body, type=_FailureBody).error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []
        if failure.code != self._profile.failed_call_code or failure.failed_generation is None:
            return []
        chunks: list[Chunk] = self._end_thinking()
        try:
            call = msgspec.json.decode(failure.failed_generation, type=_FailedCall)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            chunks.append(TextDelta(failure.failed_generation))
        else:
            key = len(self._calls)
            chunks += (
                CallStart(key, self._names.back(call.name)),
                CallDone(key, bytes(call.arguments).decode()),
            )
        self._reason = _MALFORMED
        return chunks + self._finish()

    def _take_delta(self, delta: _Delta, chunks: list[Chunk]) -> None:
        if isinstance(delta.content, str) and delta == _Delta(delta.content):  # nearly all of them
            if delta.content:
                self._take_text(delta.content, chunks)
            return
        thought = delta.reasoning or delta.reasoning_content
        if delta.reasoning_details:
            if self._details is None:
                self._details = ReasoningDetails()
            self._details.take(delta.reasoning_details)
        if thought:
            self._thinking = True
            chunks.append(ThinkingDelta(thought))
        if isinstance(delta.content, list):
            bounded(delta.content)
            for part in delta.content:
                self._take_part(part, chunks)
        elif delta.content:
            self._take_text(delta.content, chunks)
        if delta.refusal:
            self._refused = True
            chunks += self._end_thinking()
            chunks.append(TextDelta(delta.refusal))
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._take_call(call, chunks)
        if delta.images:
            for image in delta.images:
                self._take_image(image)
            bounded(self._images)
        if delta.annotations:
            self._annotations += delta.annotations
            bounded(self._annotations)
        if delta.executed_tools:
            self._executed += delta.executed_tools
            bounded(self._executed)
        if delta.extra_content is not UNSET and present(delta.extra_content):
            self._extra = delta.extra_content

    def _take_text(self, text: str, chunks: list[Chunk]) -> None:
        if self._thinking or self._details is not None:
            chunks += self._end_thinking()
        if self._tags is None:
            chunks.append(TextDelta(text))
        else:
            chunks += self._tags.feed(text)
            if self._tags.is_over:
                self._tags = None

    def _take_part(self, part: _ContentPart, chunks: list[Chunk]) -> None:
        thought = part.thinking
        if isinstance(thought, list):
            thought = "".join(piece.text or "" for piece in thought)
        if thought:
            self._thinking = True
            chunks.append(ThinkingDelta(thought))
        self._signature = part.signature or self._signature
        if part.text:
            self._take_text(part.text, chunks)

    def _end_thinking(self) -> list[Chunk]:
        """Ends the open block of reasoning, with what the server wants back."""
        if not self._thinking and self._details is None:
            return []
        opaque: Raw | UnsetType = UNSET
        if self._details is not None and self._profile.thinking_back == "reasoning_details":
            opaque = Raw(msgspec.json.encode(self._details.whole()))
        ended = self._thinking or opaque is not UNSET
        signature, self._signature = self._signature, None
        self._thinking = False
        self._details = None
        return [ThinkingDone(signature, opaque)] if ended else []

    def _take_call(self, piece: _Call, chunks: list[Chunk]) -> None:
        function = piece.function or _Function()
        call = self._call_of(piece, function)
        extra: Raw | UnsetType = UNSET
        if present(piece.extra_content):
            extra = Raw(msgspec.json.encode({"extra_content": piece.extra_content}))
        if call is None:
            if self._tags is not None:
                chunks += self._tags.end()
            chunks += self._end_thinking()
            if len(self._calls) >= MAX_CALLS:
                raise too_many_calls()
            call = _OpenCall(len(self._calls), piece.id or None, function.name or "", extra)
            self._calls.append(call)
            if call.id:
                self._by_id.setdefault(call.id, call)
            self._at[call.key if piece.index is None else piece.index] = call
        else:
            if not call.begun and function.name and not self._repeats(call, function.name):
                call.name += function.name
                if len(call.name) > MAX_NAME_CHARS:
                    raise too_many("characters in the name of a tool", MAX_NAME_CHARS)
            if extra is not UNSET:
                call.late_extra = extra
        args = function.arguments
        if isinstance(args, dict):
            args = msgspec.json.encode(args).decode()
        if args:
            chunks += self._begin_calls(call.key)
            call.written.append(args)
            call.chars += len(args)
            chunks.append(CallArgs(call.key, args))

    def _begin_calls(self, last: int) -> list[Chunk]:
        """Begins the calls up to this one that have not begun, in order, whichever gets arguments first."""
        chunks: list[Chunk] = []
        for call in self._calls[self._begun : last + 1]:
            call.begun = True
            chunks.append(CallStart(call.key, self._names.back(call.name), call.id, call.extra))
        self._begun = max(self._begun, min(last + 1, len(self._calls)))
        return chunks

    def _repeats(self, call: _OpenCall, name: str) -> bool:
        """Returns True if a name in a later piece repeats the call's name, rather than continuing it."""
        return name == call.name and self._names.knows(name)

    def _call_of(self, piece: _Call, function: _Function) -> _OpenCall | None:
        """Returns the call that a piece continues, if any. Some servers number every call 0, some repeat its name."""
        if piece.index is None:
            if function.name:
                return None
            return self._by_id.get(piece.id) if piece.id else self._last()
        call = self._at.get(piece.index)
        if call is None or not function.name:
            return call
        if piece.id:
            return call if call.id == piece.id else None
        both_whole = self._names.knows(call.name) and self._names.knows(function.name)
        if not call.begun and both_whole and call.name != function.name:
            return None  # two calls without arguments
        return None if self._is_complete(call) else call

    def _is_complete(self, call: _OpenCall) -> bool:
        # Many servers repeat the tool's name in every piece. Most pieces are obviously not the last.
        if not call.written or not call.written[-1].endswith(("}", " ", "\n")):
            return False
        self._tried_chars += call.chars
        return self._tried_chars <= _TRIED_CHARS and _is_json("".join(call.written))

    def _last(self) -> _OpenCall | None:
        return self._calls[-1] if self._calls else None

    def _take_image(self, image: _Image) -> None:
        url = image.image_url.url if image.image_url else ""
        index = len(self._images) if image.index is None else image.index
        head, comma, data = url.partition(",")
        if head.startswith("data:") and comma:
            self._images[index] = Image(head[5:].split(";")[0] or "image/png", data=data)
        elif url:
            self._images[index] = Image("image/png", url=url)

    def _finish(self) -> list[Chunk]:
        chunks: list[Chunk] = self._tags.end() if self._tags is not None else []
        chunks += self._end_thinking()
        chunks += [Whole(self._images[index]) for index in sorted(self._images)]
        chunks += self._provider_calls()
        if self._extra is not UNSET:
            data = Raw(msgspec.json.encode({"extra_content": self._extra}))
            chunks.append(Whole(Opaque(self._provider, data)))
        chunks += self._begin_calls(len(self._calls))
        chunks += [CallDone(call.key, None if call.written else "{}", call.late_extra) for call in self._calls]
        self.finished = True
        chunks.append(Finish(self._canonical()))
        return chunks

    def _provider_calls(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        for index, raw in enumerate(self._executed):
            tool = msgspec.json.decode(raw, type=_ExecutedTool)
            chunks.append(
                Whole(
                    ProviderCall(
                        f"executed_{index}", tool.type, self._provider, input=tool.arguments, result=tool.output
                    )
                )
            )
        if self._annotations:
            # The sources of a search that the server made before it answered.
            sources = Raw(msgspec.json.encode(self._annotations))
            chunks.append(Whole(ProviderCall("web_search_0", "web_search", self._provider, result=sources)))
        return chunks

    def _canonical(self) -> str | None:
        reason = (self._reason or "").lower()
        if self._refused:
            return "refusal"
        if _MALFORMED in reason:
            return _MALFORMED
        known = _REASONS.get(reason, reason) or None
        return "tool_use" if self._calls and known in ("end_turn", None) else known


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
