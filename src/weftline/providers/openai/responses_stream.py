"""Answers of the Responses API as chunks, streamed or whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from weftline.messages import Image, Opaque, ProviderCall
from weftline.providers.assemble import bounded
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
from weftline.providers.openai.family import UNREADABLE, decode, loose_object, present, usage_of
from weftline.providers.openai.responses_request import IMAGE_CALL, Phase

_READ = ("message", "reasoning", "function_call")
_REASONING_DELTAS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_UNFINISHED = ("queued", "in_progress")
_INCOMPLETE = {"max_output_tokens": "max_tokens", "max_tokens": "max_tokens", "content_filter": "refusal"}
_STATUS = {None: "completed", "completed": "completed", "failed": "failed", "incomplete": "failed"}
_INPUTS = ("action", "queries", "code", "arguments", "input")
_RESULTS = ("results", "outputs", "output")


class _Event(Struct):
    type: str = ""
    output_index: int = 0
    summary_index: int = 0
    delta: Any = None
    item: Raw | UnsetType = UNSET
    response: Raw | UnsetType = UNSET


class _Content(Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(Struct):
    type: str = ""
    id: str | None = None
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    """Text for a function, an object for a tool search."""
    content: list[_Content] | None = None
    summary: list[_Content] | None = None
    encrypted_content: str | None = None
    phase: str | None = None


class _Kind(Struct):
    type: str = ""


class _Incomplete(Struct):
    reason: str | None = None


class _Response(Struct):
    status: str | None = None
    output: list[Raw] | None = None
    error: Raw | UnsetType = UNSET
    incomplete_details: _Incomplete | None = None
    usage: Raw | UnsetType = UNSET


_events = msgspec.json.Decoder(_Event)
_items = msgspec.json.Decoder(_Item)
_kinds = msgspec.json.Decoder(_Kind)
_responses = msgspec.json.Decoder(_Response)


class _OpenReasoning(Struct):
    index: int
    id: str | None
    written: bool = False
    chain: list[str] = []
    """Unencrypted reasoning, which some models expect back."""


class ResponsesReader:
    """Reads one answer. `error` creates the exception for an error object inside a stream."""

    def __init__(self, provider: str, names: NameMap, error: Callable[[int | None, bytes], ProviderError]) -> None:
        self.failure: ProviderError | None = None
        self.finished = False
        self._provider = provider
        self._names = names
        self._error = error
        self._reasoning: _OpenReasoning | None = None
        self._parted: set[int] = set()
        """Reasoning that was ended because the answer continued before its item was complete."""
        self._written: set[int] = set()
        self._started: set[int] = set()
        self._done: set[int] = set()
        self._refused = False

    def feed(self, data: bytes) -> list[Chunk]:
        if self.finished or self.failure is not None or data == b"[DONE]":
            return []
        event = decode(data, _Event, _events)
        index = event.output_index
        match event.type:
            case "response.output_text.delta":
                self._written.add(index)
                return [*self._part_reasoning(), TextDelta(_text(event.delta))]
            case "response.function_call_arguments.delta":
                return [CallArgs(index, _text(event.delta))] if index in self._started else []
            case kind if kind in _REASONING_DELTAS:
                return self._think(event)
            case "response.reasoning_summary_part.added":
                # The parts of a summary are paragraphs.
                return [ThinkingDelta("\n\n")] if event.summary_index and self._is_open(index) else []
            case "response.refusal.delta":
                self._written.add(index)
                self._refused = True
                return [*self._part_reasoning(), TextDelta(_text(event.delta))]
            case "response.output_item.added":
                return self._begin(index, event.item)
            case "response.output_item.done":
                return self._take(index, event.item)
            case kind if kind in _ENDS:
                return self._finish(event.response)
            case "error":
                self.failure = self._failure(data)
                return []
            case _:
                return []

    def whole(self, body: bytes) -> list[Chunk]:
        return self._finish(Raw(body))

    def end(self) -> list[Chunk]:
        return []

    def recover(self, body: bytes) -> list[Chunk]:
        return []

    def _begin(self, index: int, raw: Raw | UnsetType) -> list[Chunk]:
        item = _item(raw)
        match item.type:
            case "reasoning":
                self._reasoning = _OpenReasoning(index, item.id, chain=[])
                return []
            case "function_call":
                return [*self._part_reasoning(), *self._start_call(index, item)]
            case _:
                return []

    def _start_call(self, index: int, item: _Item) -> list[Chunk]:
        self._started.add(index)
        extra = Raw(msgspec.json.encode({"namespace": item.namespace})) if item.namespace else UNSET
        return [CallStart(index, self._names.back(item.name or ""), item.call_id or item.id or None, extra)]

    def _is_open(self, index: int) -> bool:
        return self._reasoning is not None and self._reasoning.index == index and self._reasoning.written

    def _think(self, event: _Event) -> list[Chunk]:
        if self._reasoning is None or self._reasoning.index != event.output_index:
            if event.output_index in self._parted:
                return []
            self._reasoning = _OpenReasoning(event.output_index, None, chain=[])
        text = _text(event.delta)
        self._reasoning.written = True
        if event.type == "response.reasoning_text.delta":
            self._reasoning.chain.append(text)
        return [ThinkingDelta(text)]

    def _part_reasoning(self) -> list[Chunk]:
        """Ends reasoning whose item the server completes later, after subsequent items."""
        reasoning, self._reasoning = self._reasoning, None
        if reasoning is None or not reasoning.written:
            return []
        self._parted.add(reasoning.index)
        if not reasoning.chain:
            return [ThinkingDone()]
        item = {
            "type": "reasoning",
            "id": reasoning.id,
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "".join(reasoning.chain)}],
        }
        return [ThinkingDone(opaque=Raw(msgspec.json.encode(item)))]

    def _take(self, index: int, raw: Raw | UnsetType) -> list[Chunk]:
        if raw is UNSET or index in self._done:
            return []
        self._done.add(index)
        item = _item(raw)
        match item.type:
            case "reasoning":
                return self._take_reasoning(index, item, raw)
            case "function_call":
                started = [] if index in self._started else self._start_call(index, item)
                return [*self._part_reasoning(), *started, CallDone(index, _arguments(item.arguments))]
            case "message":
                return [*self._part_reasoning(), *self._take_message(index, item)]
            case kind if kind.endswith("_call"):
                return [*self._part_reasoning(), *self._take_provider_call(item, raw)]
            case _:
                return [*self._part_reasoning(), Whole(Opaque(self._provider, _kept(raw)))]

    def _take_reasoning(self, index: int, item: _Item, raw: Raw) -> list[Chunk]:
        if index in self._parted:
            return [ThinkingDone(opaque=_kept(raw))] if item.encrypted_content else []
        chunks: list[Chunk] = []
        written = self._is_open(index)
        self._reasoning = None
        if not written:
            texts = [part.text for part in (item.summary or item.content or ()) if part.text]
            if texts:
                chunks.append(ThinkingDelta("\n\n".join(texts)))
        # Without either, a server that stores nothing could not read it again.
        opaque = _kept(raw) if item.encrypted_content or item.content else UNSET
        if written or chunks or opaque is not UNSET:
            chunks.append(ThinkingDone(opaque=opaque))
        return chunks

    def _take_message(self, index: int, item: _Item) -> list[Chunk]:
        chunks: list[Chunk] = []
        bounded(item.content or ())
        for part in item.content or ():
            if part.refusal:
                self._refused = True
            text = part.text or part.refusal
            if text and index not in self._written:
                chunks.append(TextDelta(text))
        if item.phase:
            chunks.append(Whole(Opaque(self._provider, Raw(msgspec.json.encode(Phase(item.phase))))))
        return chunks

    def _take_provider_call(self, item: _Item, raw: Raw) -> list[Chunk]:
        fields = loose_object(raw)
        image = fields.pop("result", None) if item.type == IMAGE_CALL else None
        call = ProviderCall(
            id=item.id or item.call_id or item.type,
            name=item.type.removesuffix("_call"),
            provider=self._provider,
            status=_STATUS.get(item.status, "in_progress"),
            input=_field(raw, _INPUTS),
            result=_field(raw, _RESULTS),
            opaque=Raw(msgspec.json.encode(fields)) if item.type == IMAGE_CALL else _kept(raw),
        )
        chunks: list[Chunk] = [Whole(call)]
        if isinstance(image, str) and image:
            chunks.append(Whole(Image(f"image/{fields.get('output_format') or 'png'}", data=image)))
        return chunks

    def _finish(self, raw: Raw | UnsetType) -> list[Chunk]:
        response = _Response() if raw is UNSET else decode(bytes(raw), _Response, _responses)
        chunks: list[Chunk] = []
        usage = usage_of(response.usage)
        if usage is not None:
            chunks.append(UsageUpdate(usage))
        if present(response.error) or response.status in ("failed", "cancelled"):
            self.failure = self._failure(b"" if raw is UNSET else bytes(raw))
            return chunks
        if response.output is None and response.status is None:
            self.failure = ProviderError("server", UNREADABLE, unanswered=True)
            return chunks
        if response.status in _UNFINISHED:
            # Some gateways work in the background; a retry would only queue another answer.
            state = response.status.replace("_", " ")
            why = f"The model API returned before its answer was finished: it is {state}."
            self.failure = ProviderError("server", why, retryable=False, unanswered=True)
            return chunks
        bounded(response.output or ())
        for index, item in enumerate(response.output or ()):
            chunks += self._take(index, item)
        chunks += self._part_reasoning()
        self.finished = True
        chunks.append(Finish(self._reason(response)))
        return chunks

    def _reason(self, response: _Response) -> str | None:
        if response.status == "incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details else None
            return _INCOMPLETE.get(reason, reason.lower()) if reason else None
        if self._refused:
            return "refusal"
        return "tool_use" if self._started else "end_turn"

    def _failure(self, data: bytes) -> ProviderError:
        fields = loose_object(Raw(data))
        error: object = fields.get("error")
        if not isinstance(error, dict):
            error = {name: fields.get(name) for name in ("code", "message")}
        return self._error(None, msgspec.json.encode({"error": error}))


def _text(delta: object) -> str:
    return delta if isinstance(delta, str) else ""


def _arguments(value: object) -> str | None:
    return value if isinstance(value, str) or value is None else msgspec.json.encode(value).decode()


def _item(raw: Raw | UnsetType) -> _Item:
    if raw is UNSET:
        return _Item()
    try:
        return decode(bytes(raw), _Item, _items)
    except ProviderError:
        kind = decode(bytes(raw), _Kind, _kinds).type
        if kind in _READ:
            raise
        # An item that is only passed back may have any fields.
        return _Item(kind)


def _kept(raw: Raw) -> Raw:
    """Returns a separate copy, as the original is a view of the whole event."""
    return raw.copy()


def _field(raw: Raw, names: tuple[str, ...]) -> Raw | UnsetType:
    fields = msgspec.json.decode(raw, type=dict[str, Raw])
    return next((_kept(fields[name]) for name in names if name in fields and present(fields[name])), UNSET)
