"""Reads answers of the Anthropic Messages API, streamed or whole, as chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from weftline.messages import Opaque, ProviderCall, Usage
from weftline.net.sse import SseEvent
from weftline.providers.anthropic.blocks import PROVIDER, encode
from weftline.providers.anthropic.schema import WRAPPED, Report
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

_RESULT: Final = "_tool_result"


class _Delta(Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    signature: str = ""
    stop_reason: str | None = None


class _Event(Struct):
    type: str
    index: int = 0
    delta: _Delta | None = None
    content_block: Raw | UnsetType = UNSET
    message: Raw | UnsetType = UNSET
    usage: Any = None


class _Head(Struct):
    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str = ""
    name: str = ""
    tool_use_id: str = ""
    is_error: bool | None = None
    input: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET


class _Message(Struct):
    type: str = "message"
    content: list[Raw] = []
    stop_reason: str | None = None
    usage: Any = None


class _Pieces(list[str]):
    """The pieces of a text, joined once, since appending to a string copies it."""


class _Open(Struct):
    """A block that has begun. `kind` is its type, except for the report tool, which is not passed on as a call."""

    kind: str
    head: _Head
    raw: bytes
    pieces: list[str] = field(default_factory=lambda: list[str]())
    signature: list[str] = field(default_factory=lambda: list[str]())
    more: dict[str, Any] = field(default_factory=lambda: dict[str, Any]())
    """The fields of a block of an unknown kind; strings are in pieces."""


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_raws = msgspec.json.Decoder(dict[str, Raw]).decode


class Reader:
    """Turns events into chunks. `finished` and `error_body` say how the answer ended, once it has.

    With an output schema, text is held back until it is clear that no report follows, since then the report alone is
    the text of the answer.
    """

    def __init__(self, names: NameMap, report: Report | None, *, provider: str = PROVIDER) -> None:
        self._provider = provider
        self._names = names
        self._report = report
        self._reported = False
        self._held: list[Chunk] = []
        self._out: list[Chunk] = []
        self._open: dict[int, _Open] = {}
        self._usage: dict[str, Any] = {}
        self._stop_reason: str | None = None
        self._called = False
        self._server_calls: dict[str, _Open] = {}
        self.finished = False
        self.error_body: bytes | None = None

    def feed(self, events: Iterable[SseEvent]) -> list[Chunk]:
        """Returns the chunks of these events, up to the end of the answer or an error inside it."""
        try:
            for event in events:
                if self.finished or self.error_body is not None:
                    break
                self._take(event.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if not self._has_stop_reason():
                raise ProviderError("server", "Anthropic's answer could not be read.", unanswered=True) from None
            self._finish()
        return self._taken()

    def whole(self, body: bytes) -> list[Chunk]:
        """Returns the chunks of an answer that was not streamed."""
        try:
            message = _decode_message(body)
            if message.type == "error":
                self.error_body = body
                return []
            self._count(message.usage)
            bounded(message.content)
            for index, block in enumerate(message.content):
                self._start(index, bytes(block))
                self._stop(index)
            self._stop_reason = message.stop_reason
            self._finish()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ProviderError("server", "Anthropic's answer could not be read.", unanswered=True) from None
        return self._taken()

    def end(self) -> list[Chunk]:
        """Returns the end of an answer whose last event is missing, if it includes the reason why the model stopped.

        Repeating the request would cost twice.
        """
        if self.finished or self.error_body is not None or not self._has_stop_reason():
            return []
        self._finish()
        return self._taken()

    def _has_stop_reason(self) -> bool:
        """Returns True if the answer is complete except for its last event. Later failures do not invalidate it."""
        return self._stop_reason is not None and not self._open

    def release(self) -> list[Chunk]:
        """Returns what was held back, for an answer that broke off."""
        held, self._held = self._held, []
        return held

    def _taken(self) -> list[Chunk]:
        out, self._out = self._out, []
        return out

    def _take(self, data: bytes) -> None:
        event = _decode_event(data)
        match event.type:
            case "content_block_delta":
                if event.delta is not None:
                    self._delta(event.index, event.delta, data)
            case "content_block_start":
                if event.content_block is not UNSET:
                    self._start(event.index, bytes(event.content_block))
            case "content_block_stop":
                self._stop(event.index)
            case "message_start":
                if event.message is not UNSET:
                    self._count(_decode_message(event.message).usage)
            case "message_delta":
                if event.delta is not None:
                    self._stop_reason = event.delta.stop_reason or self._stop_reason
                self._count(event.usage)
            case "message_stop":
                self._finish()
            case "error":
                if self._has_stop_reason():
                    self._finish()
                else:
                    self.error_body = data
            case _:
                pass

    def _emit(self, chunk: Chunk) -> None:
        if self._report is not None and type(chunk) is TextDelta and self._reported:
            return
        if self._held or (self._report is not None and type(chunk) is TextDelta):
            self._held.append(chunk)
        else:
            self._out.append(chunk)

    def _start(self, index: int, raw: bytes) -> None:
        head = _decode_head(raw)
        block = self._open[index] = _Open(head.type, head, raw)
        bounded(self._open)
        match head.type:
            case "text":
                if head.text:
                    self._emit(TextDelta(head.text))
            case "thinking":
                if head.thinking:
                    self._emit(ThinkingDelta(head.thinking))
                block.signature = [head.signature or ""]
            case "redacted_thinking":
                self._emit(ThinkingDone(opaque=Raw(raw)))
            case "tool_use":
                if self._report is not None and head.name == self._report.name:
                    block.kind = "second report" if self._reported else "report"
                    self._begin_report()
                else:
                    self._begin_call(index, head, raw)
            case _:
                pass

    def _begin_report(self) -> None:
        self._reported = True
        self._out += [chunk for chunk in self.release() if type(chunk) is not TextDelta]

    def _begin_call(self, index: int, head: _Head, raw: bytes) -> None:
        self._called = True
        self._out += self.release()
        known = ("type", "id", "name", "input")
        extra = {name: value for name, value in _decode_raws(raw).items() if name not in known}
        self._out.append(
            CallStart(index, self._names.back(head.name), head.id or None, Raw(encode(extra)) if extra else UNSET)
        )

    def _delta(self, index: int, delta: _Delta, data: bytes) -> None:
        match delta.type:
            case "text_delta":
                self._emit(TextDelta(delta.text))
            case "thinking_delta":
                self._emit(ThinkingDelta(delta.thinking))
            case "input_json_delta":
                self._input(index, delta.partial_json)
            case "signature_delta":
                self._block(index).signature.append(delta.signature)
            case "citations_delta":
                pass
            case _:
                self._unknown_delta(index, data)

    def _input(self, index: int, piece: str) -> None:
        if not piece:
            return
        block = self._block(index)
        block.pieces.append(piece)
        if block.kind == "tool_use":
            self._out.append(CallArgs(index, piece))
        elif block.kind == "report" and self._report and not self._report.wrapped:
            self._out.append(TextDelta(piece))

    def _unknown_delta(self, index: int, data: bytes) -> None:
        """Adds to a block of an unknown kind, to send it back: strings are appended, other values replaced."""
        more = self._block(index).more
        delta = cast("dict[str, Any]", msgspec.json.decode(data)["delta"])
        for name, value in delta.items():
            if name == "type":
                continue
            if not isinstance(value, str):
                more[name] = value
            elif isinstance(more.get(name), _Pieces):
                more[name].append(value)
            else:
                more[name] = _Pieces([value])

    def _block(self, index: int) -> _Open:
        block = self._open.get(index)
        if block is None:
            raise ProviderError(
                "server", "Anthropic's answer has a piece of a block that never started.", unanswered=True
            )
        return block

    def _stop(self, index: int) -> None:
        block = self._open.pop(index, None)
        if block is None:
            return
        match block.kind:
            case "text" | "redacted_thinking" | "second report":
                pass
            case "thinking":
                self._emit(ThinkingDone("".join(block.signature) or None))
            case "tool_use":
                self._out.append(CallDone(index, None if block.pieces else _given(block)))
            case "report":
                self._end_report(block)
            case "server_tool_use" | "mcp_tool_use":
                self._server_calls[block.head.id] = block
                self._emit(Whole(Opaque(self._provider, Raw(_with_input(block)))))
            case kind if kind.endswith(_RESULT):
                self._emit(Whole(self._provider_call(block)))
            case _:
                self._emit(Whole(Opaque(self._provider, Raw(_with_more(block)))))

    def _end_report(self, block: _Open) -> None:
        text = "".join(block.pieces) or _given(block)
        if self._report and self._report.wrapped:
            self._out.append(TextDelta(_unwrapped(text)))
        elif not block.pieces:
            self._out.append(TextDelta(text))

    def _provider_call(self, block: _Open) -> ProviderCall:
        head = block.head
        call = self._server_calls.pop(head.tool_use_id, None)
        return ProviderCall(
            id=head.tool_use_id,
            # If the call was in an earlier answer, only the result's type names its tool.
            name=call.head.name if call else head.type.removesuffix(_RESULT),
            provider=self._provider,
            status="failed" if head.is_error or _is_error(head.content) else "completed",
            input=Raw(_arguments(call)) if call else UNSET,
            result=UNSET if head.content is UNSET else Raw(bytes(head.content)),
            opaque=Raw(block.raw),
        )

    def _count(self, usage: Any) -> None:
        """Updates the usage. Counts are cumulative, and later ones may be incomplete."""
        if not isinstance(usage, dict):
            return
        self._usage.update({name: value for name, value in cast("dict[str, Any]", usage).items() if value is not None})
        self._out.append(UsageUpdate(usage_of(self._usage)))

    def _finish(self) -> None:
        self._out += self.release()
        for id, call in self._server_calls.items():
            self._out.append(
                Whole(ProviderCall(id, call.head.name, self._provider, "in_progress", input=Raw(_arguments(call))))
            )
        reason = self._stop_reason.lower() if self._stop_reason else None
        if reason == "model_context_window_exceeded":
            reason = "max_tokens"  # cut off as well, by another limit
        if reason == "tool_use" and self._reported and not self._called:
            reason = "end_turn"
        elif reason == "end_turn" and self._called:
            reason = "tool_use"
        self._out.append(Finish(reason))
        self.finished = True


def usage_of(counts: dict[str, Any]) -> Usage:
    """Returns our usage, in which input includes what the cache read or wrote; Anthropic counts these separately."""
    cached = _count(counts.get("cache_read_input_tokens"))
    written = _count(counts.get("cache_creation_input_tokens"))
    output = _count(counts.get("output_tokens"))
    details = counts.get("output_tokens_details")
    thought = cast("dict[str, Any]", details).get("thinking_tokens") if isinstance(details, dict) else None
    return Usage(
        input=_count(counts.get("input_tokens")) + cached + written,
        cached=cached,
        reasoning=min(_count(thought), output),
        output=output,
        cache_write=written,
    )


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    # Also false for NaN and for both infinities.
    return int(value) if 0 <= value < 2**53 else 0


def _given(block: _Open) -> str:
    """Returns the input that came with the start of a block, as in an answer that was not streamed."""
    return "{}" if block.head.input is UNSET else bytes(block.head.input).decode()


def _arguments(block: _Open) -> bytes:
    text = "".join(block.pieces) or _given(block)
    try:
        msgspec.json.decode(text, type=Raw)
    except (msgspec.DecodeError, RecursionError):
        return encode(text)
    return text.encode()


def _with_input(block: _Open) -> bytes:
    return encode({**_decode_raws(block.raw), "input": Raw(_arguments(block))}) if block.pieces else block.raw


def _with_more(block: _Open) -> bytes:
    if not block.more:
        return block.raw
    more = {name: "".join(value) if isinstance(value, _Pieces) else value for name, value in block.more.items()}
    return encode({**msgspec.json.decode(block.raw), **more})


def _unwrapped(text: str) -> str:
    try:
        inner = _decode_raws(text).get(WRAPPED)
    except (msgspec.DecodeError, RecursionError):
        return text
    return text if inner is None else bytes(inner).decode()


def _is_error(content: Raw | UnsetType) -> bool:
    if content is UNSET:
        return False
    value = msgspec.json.decode(content)
    return isinstance(value, dict) and str(cast("dict[str, Any]", value).get("type", "")).endswith("_error")
