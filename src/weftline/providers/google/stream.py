"""Turns Gemini's answers into chunks: JSON documents, streamed or in one piece."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from weftline.messages import Image, Opaque, ProviderCall, Usage
from weftline.providers.assemble import bounded
from weftline.providers.base import (
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
from weftline.providers.google.request import PROVIDER, Built, Native, Signed

_REFUSALS = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
    }
)
_REASONS: dict[str, str | None] = {
    "STOP": "end_turn",
    "MAX_TOKENS": "max_tokens",
    # The limit of one request, for models whose answers can be continued by another one.
    "CONTINUATION": "max_tokens",
    "FINISH_REASON_UNSPECIFIED": None,
    **dict.fromkeys(_REFUSALS, "refusal"),
}


class _Blob(Struct, rename="camel"):
    mime_type: str = ""
    data: str = ""


class _FunctionCall(Struct):
    name: str = ""
    args: Raw | UnsetType = UNSET
    id: str | None = None


class _Part(Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None
    inline_data: _Blob | None = None
    executable_code: Raw | UnsetType = UNSET
    code_execution_result: Raw | UnsetType = UNSET
    tool_call: Raw | UnsetType = UNSET
    tool_response: Raw | UnsetType = UNSET


class _Content(Struct):
    parts: list[Raw] | None = None


class _Candidate(Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    index: int | None = None
    grounding_metadata: Raw | UnsetType = UNSET
    url_context_metadata: Raw | UnsetType = UNSET


class _Feedback(Struct, rename="camel"):
    block_reason: str | None = None


class _Document(Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: Raw | UnsetType = UNSET
    response_id: str | None = None
    error: Raw | UnsetType = UNSET


class _Begun(Struct):
    """A built-in tool of Gemini that was called and has no result yet."""

    id: str | None
    name: str
    input: Raw
    part: Raw


_documents = msgspec.json.Decoder(_Document)
_parts = msgspec.json.Decoder(_Part)


class Reader:
    """Reads one answer. `failed` makes the exception for an error document."""

    def __init__(self, built: Built, *, failed: Callable[[bytes], ProviderError]) -> None:
        self._names = built.names
        self._answer_function = built.answer_function
        self._failed = failed
        self._usage: Usage | None = None
        self._response_id = ""
        self._finish: str | None = None
        self.finished = False
        """Whether the answer is complete; further events may follow."""
        self._thinking = False
        self._calls = 0
        self._own_calls = 0
        self._begun: dict[int, _Begun] = {}
        """In the order in which they began."""
        self._begun_ids: dict[str, int] = {}
        self._begun_count = 0
        self._grounding: Raw | UnsetType = UNSET
        self._url_context: Raw | UnsetType = UNSET
        # Text beside the function that represents the answer would corrupt the JSON, so it is held back until it is
        # clear whether that function is called.
        self._held: list[str] | None = [] if built.answer_function is not None else None
        self._answered = False

    def feed(self, data: bytes, out: list[Chunk]) -> None:
        """Reads one document. Raises `ProviderError` if it reports an error or is malformed.

        After the finish there may be more, such as the usage; a failure there does not invalidate the answer.
        """
        try:
            document = _documents.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if self.finished or data.strip() in (b"", b"[DONE]"):
                return
            why = "Gemini sent an answer that does not have its documented form."
            raise ProviderError("server", why, unanswered=True) from None
        if document.error is not UNSET:
            if self.finished:
                return
            raise self._failed(data)
        self._response_id = document.response_id or self._response_id
        for candidate in document.candidates or ():
            if not candidate.index:
                bounded(candidate.content.parts if candidate.content and candidate.content.parts else ())
                self._candidate(candidate, out)
        if document.prompt_feedback is not None and document.prompt_feedback.block_reason:
            self._finish, self.finished = "refusal", True
        if document.usage_metadata is not UNSET:
            usage = read_usage(document.usage_metadata)
            if usage != self._usage:
                self._usage = usage
                out.append(UsageUpdate(usage))

    def end(self, out: list[Chunk]) -> None:
        """Ends the answer. Raises `ProviderError` if it was cut off."""
        if not self.finished:
            raise ProviderError("server", "Gemini's answer ended before it was complete.", unanswered=True)
        self._end_thinking(out)
        self._release(out)
        out.extend(Whole(self._own_call(begun, "in_progress", UNSET, [begun.part])) for begun in self._begun.values())
        if self._grounding is not UNSET:
            self._record_grounding(self._grounding, out)
        if self._url_context is not UNSET:
            out.append(
                Whole(ProviderCall(self._own_id(None), "url_context", PROVIDER, result=_kept(self._url_context)))
            )
        reason = self._finish
        out.append(Finish("tool_use" if reason == "end_turn" and self._calls else reason))

    def _candidate(self, candidate: _Candidate, out: list[Chunk]) -> None:
        if candidate.content is not None:
            for raw in candidate.content.parts or ():
                self._part(raw, out)
        if candidate.grounding_metadata is not UNSET:
            self._grounding = candidate.grounding_metadata
        if candidate.url_context_metadata is not UNSET:
            self._url_context = candidate.url_context_metadata
        if candidate.finish_reason:
            reason = candidate.finish_reason
            self._finish, self.finished = self._finish or _REASONS.get(reason, reason.lower()), True

    def _part(self, raw: Raw, out: list[Chunk]) -> None:
        try:
            part = _parts.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            if self.finished:
                return
            why = "Gemini sent a part that does not have its documented form."
            raise ProviderError("server", why, unanswered=True) from None
        if part.thought:
            self._thought(part, out)
            return
        self._end_thinking(out)
        if part.function_call is not None:
            self._call(part.function_call, part.thought_signature, out)
        elif part.text is not None:
            self._text(part.text, part.thought_signature, out)
        elif part.inline_data is not None and part.inline_data.mime_type.startswith("image/"):
            out.append(Whole(Image(part.inline_data.mime_type, data=part.inline_data.data)))
            if part.thought_signature:
                out.append(_opaque(Signed(part.thought_signature)))
        elif part.executable_code is not UNSET:
            self._begin("code_execution", part.executable_code, raw)
        elif part.tool_call is not UNSET:
            self._begin(None, part.tool_call, raw)
        elif part.code_execution_result is not UNSET:
            self._finish_own(part.code_execution_result, raw, out)
        elif part.tool_response is not UNSET:
            self._finish_own(part.tool_response, raw, out)
        else:
            out.append(_opaque(Native(_kept(raw))))

    def _thought(self, part: _Part, out: list[Chunk]) -> None:
        if part.text:
            self._thinking = True
            out.append(ThinkingDelta(part.text))
        if part.thought_signature:
            self._thinking = False
            out.append(ThinkingDone(part.thought_signature))

    def _end_thinking(self, out: list[Chunk]) -> None:
        if self._thinking:
            self._thinking = False
            out.append(ThinkingDone())

    def _text(self, text: str, signature: str | None, out: list[Chunk]) -> None:
        if self._held is not None:
            self._held.append(text)
            return
        if text and not self._answered:
            out.append(TextDelta(text))
        if signature:
            out.append(_opaque(Signed(signature, len(text))))

    def _release(self, out: list[Chunk]) -> None:
        held, self._held = self._held, None
        if held and not self._answered:
            out.extend(TextDelta(text) for text in held if text)

    def _call(self, call: _FunctionCall, signature: str | None, out: list[Chunk]) -> None:
        args = "{}" if call.args is UNSET else _compact(call.args).decode()
        if call.name == self._answer_function:
            if not self._answered:
                self._answered, self._held = True, None
                out.append(TextDelta(args))
            return
        self._release(out)
        extra: Raw | UnsetType = UNSET
        if signature:
            extra = Raw(msgspec.json.encode({"thoughtSignature": signature}))
        key = self._calls
        self._calls += 1
        out.append(CallStart(key, self._names.back(call.name), call.id or None, extra))
        out.append(CallDone(key, args))

    def _begin(self, name: str | None, tool_input: Raw, part: Raw) -> None:
        fields = _object(tool_input)
        kind = name or str(fields.get("toolType") or "provider_tool").lower()
        identity = fields.get("id")
        known = identity if isinstance(identity, str) else None
        at = self._begun_count
        self._begun_count += 1
        self._begun[at] = _Begun(known, kind, _kept(tool_input), _kept(part))
        if known is not None:
            self._begun_ids.setdefault(known, at)
        bounded(self._begun)

    def _finish_own(self, result: Raw, part: Raw, out: list[Chunk]) -> None:
        fields = _object(result)
        identity = fields.get("id")
        at = self._begun_ids.pop(identity, None) if isinstance(identity, str) else None
        if at not in self._begun:
            at = next(iter(self._begun), None)
        if at is None:
            out.append(_opaque(Native(_kept(part))))
            return
        begun = self._begun.pop(at)
        failed = fields.get("outcome", "OUTCOME_OK") != "OUTCOME_OK"
        status = "failed" if failed else "completed"
        out.append(Whole(self._own_call(begun, status, _kept(result), [begun.part, _kept(part)])))

    def _own_call(self, begun: _Begun, status: str, result: Raw | UnsetType, parts: list[Raw]) -> ProviderCall:
        return ProviderCall(
            id=self._own_id(begun.id),
            name=begun.name,
            provider=PROVIDER,
            status=status,
            input=begun.input,
            result=result,
            opaque=Raw(msgspec.json.encode(parts)),
        )

    def _own_id(self, upstream: str | None) -> str:
        self._own_calls += 1
        return upstream or f"{self._response_id or 'google'}-{self._own_calls}"

    def _record_grounding(self, metadata: Raw, out: list[Chunk]) -> None:
        fields = _object(metadata)
        queries: Any = fields.get("webSearchQueries") or fields.get("retrievalQueries") or ()
        sources = cast("list[Any]", fields.get("groundingChunks") or [])
        if not queries and not sources:
            return
        name = "google_search"
        for source in sources:
            if "maps" in source:
                name = "google_maps"
            elif "retrievedContext" in source:
                name = "file_search"
        tool_input = Raw(msgspec.json.encode({"queries": queries}))
        out.append(Whole(ProviderCall(self._own_id(None), name, PROVIDER, input=tool_input, result=_kept(metadata))))


def read_usage(metadata: Raw) -> Usage:
    """Returns the usage. Invalid counts become 0.

    Prompt tokens include cached ones, but not tool results that Gemini itself added; thoughts are not part of the
    candidates' tokens.
    """
    fields = _object(metadata)
    prompt = _count(fields.get("promptTokenCount"))
    tools = _count(fields.get("toolUsePromptTokenCount"))
    thoughts = _count(fields.get("thoughtsTokenCount"))
    answer = _count(fields.get("candidatesTokenCount"))
    if "candidatesTokenCount" not in fields:
        answer = max(0, _count(fields.get("totalTokenCount")) - prompt - tools - thoughts)
    total = prompt + tools
    return Usage(
        input=total,
        cached=min(_count(fields.get("cachedContentTokenCount")), total),
        reasoning=thoughts,
        output=answer + thoughts,
    )


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return max(0, int(value))


def _object(raw: Raw) -> dict[str, Any]:
    try:
        value: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _compact(raw: Raw) -> bytes:
    """Removes whitespace, in which whole and streamed answers differ; digits and escapes stay as they are."""
    text = bytes(raw)
    return b"{}" if text == b"null" else msgspec.json.format(text, indent=-1)


def _kept(raw: Raw) -> Raw:
    """Returns a copy that does not keep the whole answer's buffer alive."""
    return Raw(_compact(raw))


def _opaque(kept: Signed | Native) -> Whole:
    return Whole(Opaque(PROVIDER, Raw(msgspec.json.encode(kept))))
