"""What each family's API says, written as its documentation and recorded traffic have it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from ..kit import Json
from .upstream import JSON, Reply


class Call(NamedTuple):
    name: str
    args: str = "{}"
    id: str = "toolu_1"


def sse(*events: Any, named: bool = False) -> bytes:
    lines: list[str] = []
    for event in events:
        if named:
            lines.append(f"event: {event['type']}")
        lines.append(f"data: {event if isinstance(event, str) else json.dumps(event)}")
        lines.append("")
    return "\n".join([*lines, ""]).encode()


class Dialect(ABC):
    """One family at the stand-in. `opaque` is a piece of provider data that must come back with a tool round."""

    family: str
    model: str
    path = ""
    opaque = ""
    options: ClassVar[Json] = {}

    def settings(self, url: str) -> Json:
        return {"family": self.family, "baseUrl": url + self.path, "models": [self.model], "options": self.options}

    @abstractmethod
    def answer(self, *text: str, thinking: Sequence[str] = (), calls: Sequence[Call] = (), stop: str = "") -> bytes:
        """A streamed answer; thinking carries `opaque`. `stop` is the canonical finish reason."""

    @abstractmethod
    def begun(self, *text: str) -> bytes:
        """The beginning of an answer that does not end."""

    @abstractmethod
    def failure(self, status: int, code: str, message: str) -> bytes: ...

    def fails(self, status: int, code: str, message: str = "no", **headers: str) -> Reply:
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        return Reply(self.failure(status, code, message), status, JSON, shown)

    @abstractmethod
    def tool_names(self, body: Any) -> list[str]: ...


class Anthropic(Dialect):
    family = "anthropic"
    model = "claude-sonnet-4-5"
    opaque = "c2lnbmF0dXJl+OF/thinking=="
    redacted = "cmVkYWN0ZWQ+dGhpbmtpbmc="

    def answer(self, *text: str, thinking: Sequence[str] = (), calls: Sequence[Call] = (), stop: str = "") -> bytes:
        events = [self._start()]
        index = 0
        if thinking:
            events.append(_block(index, {"type": "thinking", "thinking": "", "signature": ""}))
            events += [_delta(index, {"type": "thinking_delta", "thinking": one}) for one in thinking]
            events.append(_delta(index, {"type": "signature_delta", "signature": self.opaque}))
            events.append({"type": "content_block_stop", "index": index})
            events.append(_block(index + 1, {"type": "redacted_thinking", "data": self.redacted}))
            events.append({"type": "content_block_stop", "index": index + 1})
            index += 2
        if text:
            events += self._text(index, text)
            events.append({"type": "content_block_stop", "index": index})
            index += 1
        for call in calls:
            events.append(_block(index, {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}))
            events += [
                _delta(index, {"type": "input_json_delta", "partial_json": piece}) for piece in halves(call.args)
            ]
            events.append({"type": "content_block_stop", "index": index})
            index += 1
        reason = stop or ("tool_use" if calls else "end_turn")
        events.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}})
        return sse(*events, {"type": "message_stop"}, named=True)

    def begun(self, *text: str) -> bytes:
        return sse(self._start(), *self._text(0, text), named=True)

    def failure(self, status: int, code: str, message: str) -> bytes:
        return json.dumps({"type": "error", "error": {"type": code, "message": message}}).encode()

    def tool_names(self, body: Any) -> list[str]:
        return [tool["name"] for tool in body.get("tools", [])]

    def _start(self) -> Json:
        message: Json = {
            "id": "msg_1",
            "role": "assistant",
            "content": [],
            "usage": {"input_tokens": 12, "output_tokens": 1},
        }
        return {"type": "message_start", "message": {"type": "message", "model": self.model, **message}}

    def _text(self, index: int, text: Sequence[str]) -> list[Json]:
        return [
            _block(index, {"type": "text", "text": ""}),
            *(_delta(index, {"type": "text_delta", "text": one}) for one in text),
        ]


class OldAnthropic(Anthropic):
    """Before 4.5: structured output goes through a tool of its own."""

    model = "claude-sonnet-4-0"


class Google(Dialect):
    family = "google"
    model = "gemini-3.8-flash"
    opaque = "dGhvdWdodCtzaWduYXR1cmU="

    def answer(self, *text: str, thinking: Sequence[str] = (), calls: Sequence[Call] = (), stop: str = "") -> bytes:
        parts: list[Json] = [{"text": one, "thought": True} for one in thinking]
        parts += [{"text": one} for one in text]
        for number, call in enumerate(calls):
            signed = {"thoughtSignature": self.opaque} if thinking and number == 0 else {}
            parts.append({"functionCall": {"name": call.name, "args": json.loads(call.args)}, **signed})
        reason = {"max_tokens": "MAX_TOKENS", "malformed_function_call": "MALFORMED_FUNCTION_CALL"}.get(stop, "STOP")
        usage = {"promptTokenCount": 12, "candidatesTokenCount": 7, "totalTokenCount": 19}
        events = [{"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in parts]
        return sse(*events, {"candidates": [{"finishReason": reason}], "usageMetadata": usage})

    def begun(self, *text: str) -> bytes:
        return sse(*({"candidates": [{"content": {"role": "model", "parts": [{"text": one}]}}]} for one in text))

    def failure(self, status: int, code: str, message: str) -> bytes:
        return json.dumps({"error": {"code": status, "status": code.upper(), "message": message}}).encode()

    def tool_names(self, body: Any) -> list[str]:
        return [one["name"] for tool in body.get("tools", []) for one in tool.get("functionDeclarations", [])]


class OldGoogle(Google):
    """Gemini 2.5: structured output beside tools goes through a tool of its own."""

    model = "gemini-2.5-flash"


class Chat(Dialect):
    family = "openai_chat"
    model = "gpt-5.5"
    path = "/v1"
    options: ClassVar[Json] = {"profile": "openai"}
    opaque = ""

    def answer(self, *text: str, thinking: Sequence[str] = (), calls: Sequence[Call] = (), stop: str = "") -> bytes:
        deltas: list[Json] = [{"reasoning_content": one} for one in thinking]
        deltas += [{"content": one} for one in text]
        for index, call in enumerate(calls):
            head = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
            deltas.append({"tool_calls": [head]})
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in halves(call.args)
            ]
        reason = {"max_tokens": "length"}.get(stop, stop) or ("tool_calls" if calls else "stop")
        usage = {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}
        events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        end: Json = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
        return sse(*events, end, {"choices": [], "usage": usage}, "[DONE]")

    def begun(self, *text: str) -> bytes:
        return sse(*({"choices": [{"index": 0, "delta": {"content": one}}]} for one in text))

    def failure(self, status: int, code: str, message: str) -> bytes:
        return json.dumps({"error": {"type": code, "code": code, "message": message}}).encode()

    def tool_names(self, body: Any) -> list[str]:
        return [tool["function"]["name"] for tool in body.get("tools", [])]


class Responses(Dialect):
    family = "openai_responses"
    model = "gpt-5.5"
    path = "/v1"
    opaque = "Z0FBQUFB+encrypted/reasoning=="

    def answer(self, *text: str, thinking: Sequence[str] = (), calls: Sequence[Call] = (), stop: str = "") -> bytes:
        events: list[Json] = []
        output: list[Json] = []
        if thinking:
            item: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": ""}
            events.append(_item("added", 0, item))
            events += [
                {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": one}
                for one in thinking
            ]
            summary = [{"type": "summary_text", "text": "".join(thinking)}]
            output.append({**item, "summary": summary, "encrypted_content": self.opaque})
            events.append(_item("done", 0, output[0]))
        if text:
            index = len(output)
            events.append(_item("added", index, {"type": "message", "id": "msg_1", "role": "assistant", "content": []}))
            events += self._text(index, text)
            content: list[Json] = [{"type": "output_text", "text": "".join(text), "annotations": []}]
            output.append({"type": "message", "id": "msg_1", "role": "assistant", "content": content})
            events.append(_item("done", index, output[-1]))
        for call in calls:
            index = len(output)
            item = {"type": "function_call", "id": f"fc_{index}", "call_id": call.id, "name": call.name}
            events.append(_item("added", index, {**item, "arguments": ""}))
            events += [
                {"type": "response.function_call_arguments.delta", "output_index": index, "delta": piece}
                for piece in halves(call.args)
            ]
            output.append({**item, "arguments": call.args, "status": "completed"})
            events.append(_item("done", index, output[-1]))
        usage = {"input_tokens": 12, "output_tokens": 7, "total_tokens": 19}
        cut = stop == "max_tokens"
        details = {"incomplete_details": {"reason": "max_output_tokens"}} if cut else {}
        status = "incomplete" if cut else "completed"
        response = {"id": "resp_1", "status": status, "output": output, "usage": usage, **details}
        return sse(*events, {"type": f"response.{status}", "response": response}, named=True)

    def begun(self, *text: str) -> bytes:
        return sse(*self._text(0, text), named=True)

    def failure(self, status: int, code: str, message: str) -> bytes:
        return json.dumps({"error": {"type": code, "code": code, "message": message}}).encode()

    def tool_names(self, body: Any) -> list[str]:
        return [tool["name"] for tool in body.get("tools", [])]

    def _text(self, index: int, text: Sequence[str]) -> list[Json]:
        return [{"type": "response.output_text.delta", "output_index": index, "delta": one} for one in text]


FAMILIES: dict[str, Dialect] = {
    "anthropic": Anthropic(),
    "google": Google(),
    "openai_chat": Chat(),
    "openai_responses": Responses(),
}


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _block(index: int, block: Json) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta(index: int, delta: Json) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _item(what: str, index: int, item: Json) -> Json:
    return {"type": f"response.output_item.{what}", "output_index": index, "item": item}
