"""Conversations and tools in the form of the Responses API.

Nothing is stored at OpenAI: every request has the whole conversation, including the encrypted reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from weftline import prompts
from weftline.messages import (
    Assistant,
    AssistantPart,
    File,
    Image,
    Message,
    Opaque,
    ProviderCall,
    System,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResults,
    User,
    UserPart,
    joined_text,
)
from weftline.providers.base import ProviderError, ToolSpec
from weftline.providers.calls import warn_unread
from weftline.providers.names import NameMap
from weftline.providers.openai.family import data_url, is_readable, is_textual, text_file
from weftline.providers.openai.schema import described, tool_schema

BUILTIN_PREFIX = "provider:"
BUILTIN_TOOLS: dict[str, str] = {
    "web_search": "web_search",
    "file_search": "file_search",
    "code_interpreter": "code_interpreter",
    "image_generation": "image_generation",
    "mcp": "mcp",
    "shell": "shell",
    "tool_search": "tool_search",
}
"""The tools that OpenAI runs itself, by the name that selects them (`provider:web_search`)."""
FORCIBLE_TOOLS = frozenset({"file_search", "code_interpreter", "image_generation", "shell"})

IMAGE_CALL = "image_generation_call"
_BUILTIN_DEFAULTS: dict[str, dict[str, Any]] = {
    "code_interpreter": {"container": {"type": "auto"}},
    "shell": {"environment": {"type": "container_auto"}},
}
_encode = msgspec.json.encode


class _Item(Struct):
    type: str = ""


class Phase(Struct, frozen=True, tag_field="type", tag="phase"):
    """The label that newer models put on a message and expect back with it."""

    phase: str


class ResponsesEncoder(Struct, frozen=True):
    """Encodes messages for one server and one model."""

    provider: str
    names: NameMap
    images: bool

    def message(self, message: Message) -> bytes:
        """Returns the message as JSON items joined by commas; empty if there is nothing to send."""
        match message:
            case System(content):
                return _encode({"role": "system", "content": content})
            case User(parts):
                return _encode({"role": "user", "content": self._content(parts)})
            case Assistant(parts):
                return b",".join(self._assistant(parts))
            case ToolResults(results):
                return b",".join(self._result(result) for result in results)

    def tools(self, specs: Sequence[ToolSpec]) -> bytes:
        return b",".join(self._tool(spec) for spec in specs)

    def _tool(self, spec: ToolSpec) -> bytes:
        if spec.name.startswith(BUILTIN_PREFIX):
            return _builtin(spec)
        schema = tool_schema(spec)
        return _encode(
            {
                "type": "function",
                "name": self.names.out(spec.name),
                "description": described(spec),
                "parameters": Raw(schema.parameters if schema.strict is None else schema.strict),
                "strict": schema.strict is not None,
            }
        )

    def _content(self, parts: Sequence[UserPart]) -> str | list[dict[str, Any]]:
        if all(isinstance(part, Text) for part in parts):
            return joined_text(parts)
        return [self._part(part) for part in parts if not (isinstance(part, Text) and not part.text)]

    def _part(self, part: UserPart) -> dict[str, Any]:
        match part:
            case Text(text):
                return {"type": "input_text", "text": text}
            case Image(media_type, data, url):
                url = url if data is None else data_url(media_type, data)
                if not self.images or url is None:
                    warn_unread(media_type)
                    return {"type": "input_text", "text": prompts.models.unseen_image(media_type)}
                return {"type": "input_image", "image_url": url, "detail": "auto"}
            case File(media_type, data, url, name):
                if data is None:
                    return {"type": "input_file", "file_url": url}
                if is_textual(media_type):
                    return {"type": "input_text", "text": text_file(name, data)}
                if not is_readable(media_type):
                    warn_unread(media_type, name)
                    return {"type": "input_text", "text": prompts.models.unreadable_file(name, media_type, None)}
                return {"type": "input_file", "filename": name or "file", "file_data": data_url(media_type, data)}

    def _result(self, result: ToolResult) -> bytes:
        return _encode({"type": "function_call_output", "call_id": result.id, "output": self._content(result.parts)})

    def _assistant(self, parts: Sequence[AssistantPart]) -> list[bytes]:
        items: list[bytes] = []
        waiting: list[bytes] = []
        """Reasoning without a following item yet. The API refuses it without one."""
        for index, part in enumerate(parts):
            match part:
                case Text(text) if text:
                    phase = _phase_after(parts, index, self.provider)
                    item = _encode({"role": "assistant", "content": text} | ({"phase": phase} if phase else {}))
                case ToolCall():
                    item = self._call(part)
                case Thinking(provider=provider, opaque=opaque) if provider == self.provider:
                    if opaque is not UNSET and _type_of(opaque) == "reasoning":
                        waiting.append(bytes(opaque))
                    continue
                case ProviderCall(provider=provider, opaque=opaque) if provider == self.provider:
                    item = _provider_item(opaque, parts[index + 1 : index + 2])
                case Opaque(provider, data) if provider == self.provider and _type_of(data) not in ("", "phase"):
                    item = bytes(data)
                case _:
                    continue
            if item:
                items += waiting
                waiting = []
                items.append(item)
        return items

    def _call(self, call: ToolCall) -> bytes:
        found = call.extra is not UNSET and call.provider == self.provider
        return _encode(
            {
                "type": "function_call",
                "call_id": call.id,
                "name": self.names.out(call.name),
                "arguments": call.args or "{}",
                **(_namespace(call.extra) if found else {}),
            }
        )


def _builtin(spec: ToolSpec) -> bytes:
    name = spec.name.removeprefix(BUILTIN_PREFIX)
    kind = BUILTIN_TOOLS.get(name)
    if kind is None:
        raise ProviderError(
            "invalid_request",
            f"OpenAI has no built-in tool {name!r}; it has {', '.join(BUILTIN_TOOLS)}.",
            code="unknown_provider_tool",
        )
    try:
        options = msgspec.json.decode(spec.parameters, type=dict[str, Any])
    except msgspec.DecodeError:
        options = {}
    if options.get("type") == "object":
        # A JSON Schema, so the tool was declared like any other, without its own options.
        options = {}
    return _encode({"type": kind, **_BUILTIN_DEFAULTS.get(kind, {}), **options})


def _provider_item(opaque: Raw | UnsetType, following: Sequence[AssistantPart]) -> bytes:
    if opaque is UNSET:
        return b""
    item = bytes(opaque)
    if _type_of(opaque) == IMAGE_CALL and following and isinstance(following[0], Image) and following[0].data:
        # The image is stored once, as the part after the call.
        return item[:-1] + b',"result":' + _encode(following[0].data) + b"}"
    return item


def _phase_after(parts: Sequence[AssistantPart], index: int, provider: str) -> str | None:
    for part in parts[index + 1 : index + 2]:
        if isinstance(part, Opaque) and part.provider == provider and _type_of(part.data) == "phase":
            return msgspec.json.decode(part.data, type=Phase).phase
    return None


def _namespace(extra: Raw | UnsetType) -> dict[str, str]:
    """Returns where OpenAI's tool search found the tool; without it, the call would mean a different one."""
    try:
        return msgspec.json.decode(b"{}" if extra is UNSET else extra, type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def _type_of(data: Raw) -> str:
    try:
        return msgspec.json.decode(data, type=_Item).type
    except msgspec.DecodeError:
        return ""
