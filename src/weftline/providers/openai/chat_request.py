"""Conversations and tools in the form of Chat Completions.

Every message becomes bytes once: an object, or several joined by commas (a turn's tool results are one message each).
Content stands last in an object that may carry a cache marker, so that the marker can be inserted without encoding
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from weftline import prompts
from weftline.messages import (
    Assistant,
    File,
    Image,
    Message,
    Opaque,
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
from weftline.providers.base import ToolSpec
from weftline.providers.calls import warn_unread
from weftline.providers.names import NameMap
from weftline.providers.openai.family import data_url, is_readable, is_textual, text_file
from weftline.providers.openai.profiles import Profile
from weftline.providers.openai.schema import described, tool_schema

MARKER = b',"cache_control":{"type":"ephemeral"}'
_MARKABLE = (b'"}]}', b'"}}]}')
"""The end of a message whose last part is text, an image or a file."""
_encode = msgspec.json.encode


class ChatEncoder(Struct, frozen=True):
    """Encodes messages for one server and one model."""

    provider: str
    profile: Profile
    names: NameMap
    images: bool
    marked: bool
    """Whether cache markers are on; then content is written as parts, which can carry one."""

    def message(self, message: Message) -> bytes:
        """Returns the message as one or more JSON objects joined by commas; empty if there is nothing to send."""
        match message:
            case System(content):
                return self.system(content)
            case User(parts):
                return _encode({"role": "user", "content": self._content(parts)})
            case Assistant():
                return self._assistant(message)
            case ToolResults(results):
                return self._results(results)

    def system(self, text: str) -> bytes:
        return _encode({"role": "system", "content": self._content((Text(text),))})

    def tools(self, specs: Sequence[ToolSpec]) -> bytes:
        encoded = [self._tool(spec) for spec in specs]
        if self.marked and encoded:
            encoded[-1] = encoded[-1][:-1] + MARKER + b"}"
        return b",".join(encoded)

    def _tool(self, spec: ToolSpec) -> bytes:
        schema = tool_schema(spec)
        strict = schema.strict if self.profile.strict_tools else None
        function: dict[str, Any] = {
            "name": self.names.out(spec.name),
            "description": described(spec),
            "parameters": Raw(schema.parameters if strict is None else strict),
        }
        if strict is not None:
            function["strict"] = True
        return _encode({"type": "function", "function": function})

    def _content(self, parts: Sequence[UserPart]) -> str | list[dict[str, Any]]:
        if not self.marked and all(isinstance(part, Text) for part in parts):
            return joined_text(parts)
        # Some servers refuse a part without text.
        return [self._part(part) for part in parts if not (isinstance(part, Text) and not part.text)] or [
            {"type": "text", "text": "(empty)"}
        ]

    def _part(self, part: UserPart) -> dict[str, Any]:
        match part:
            case Text(text):
                return {"type": "text", "text": text}
            case Image():
                return self._image(part)
            case File():
                return self._file(part)

    def _image(self, image: Image) -> dict[str, Any]:
        url = image.url if image.data is None else data_url(image.media_type, image.data)
        if not self.images or url is None:
            warn_unread(image.media_type)
            return {"type": "text", "text": prompts.models.unseen_image(image.media_type)}
        return {"type": "image_url", "image_url": {"url": url}}

    def _file(self, file: File) -> dict[str, Any]:
        name = file.name or "file"
        if is_textual(file.media_type) and file.data is not None:
            return {"type": "text", "text": text_file(file.name, file.data)}
        if file.data is not None and self._is_file(file):
            return {
                "type": "file",
                "file": {"filename": name, "file_data": data_url(file.media_type, file.data)},
            }
        warn_unread(file.media_type, file.name)
        return {"type": "text", "text": prompts.models.unreadable_file(file.name, file.media_type, file.url)}

    def _assistant(self, message: Assistant) -> bytes:
        fields: dict[str, Any] = {"role": "assistant"}
        thinking: list[Raw] = []
        thoughts: list[Thinking] = []
        calls: list[dict[str, Any]] = []
        for part in message.parts:
            match part:
                case Thinking(provider=provider, opaque=opaque) if provider == self.provider:
                    thoughts.append(part)
                    if opaque is not UNSET:
                        thinking += _details(opaque)
                case ToolCall():
                    calls.append(self._call(part))
                case Opaque(provider, data) if provider == self.provider:
                    fields |= _message_fields(data)
                case _:
                    pass
        if self.profile.thinking_back == "reasoning_details" and thinking:
            fields["reasoning_details"] = thinking
        elif self.profile.thinking_back == "reasoning_content" and calls:
            # Required inside a tool round, and refused outside of one.
            fields["reasoning_content"] = "".join(thought.text for thought in thoughts)
        if calls:
            fields["tool_calls"] = calls
        elif not message.text and "reasoning_details" not in fields:
            return b""
        content = self._content((Text(message.text),)) if message.text else None
        if self.profile.thinking_back == "content" and thoughts:
            texts = [{"type": "text", "text": message.text}] if message.text else []
            content = [*(_thinking_part(thought) for thought in thoughts), *texts]
        fields["content"] = content
        return _encode(fields)

    def _call(self, call: ToolCall) -> dict[str, Any]:
        native: dict[str, Any] = {
            "id": call.id,
            "type": "function",
            "function": {"name": self.names.out(call.name), "arguments": readable_arguments(call.args)},
        }
        if call.extra is not UNSET and call.provider == self.provider:
            native |= _message_fields(call.extra)
        return native

    def _results(self, results: Sequence[ToolResult]) -> bytes:
        messages = [self._result(result) for result in results]
        images = [part for result in results for part in self._images(result)]
        if images:
            # A tool message may only contain text, and no user message may come between the results of one turn.
            messages.append(_encode({"role": "user", "content": images}))
        return b",".join(messages)

    def _result(self, result: ToolResult) -> bytes:
        texts = [
            part for part in result.parts if not (isinstance(part, Image) and self.images) and not self._is_file(part)
        ]
        if not texts:
            texts = [Text(prompts.models.RESULT_FOLLOWS if result.parts else "")]
        return _encode({"role": "tool", "tool_call_id": result.id, "content": self._content(texts)})

    def _is_file(self, part: UserPart) -> bool:
        if not isinstance(part, File) or part.data is None or is_textual(part.media_type):
            return False
        return self.profile.files and is_readable(part.media_type)

    def _images(self, result: ToolResult) -> list[dict[str, Any]]:
        images = [
            self._part(part)
            for part in result.parts
            if (isinstance(part, Image) and self.images) or self._is_file(part)
        ]
        if not images:
            return []
        return [{"type": "text", "text": prompts.models.returned_by(self.names.out(result.name), result.id)}, *images]


def marked_body(encoded: Sequence[bytes]) -> list[bytes]:
    """Returns the messages with a cache marker on the last block that may carry one."""
    messages = list(encoded)
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.endswith(_MARKABLE):
            messages[index] = message[:-3] + MARKER + b"}]}"
            break
    return messages


def readable_arguments(args: str) -> str:
    """Returns arguments that every server can read, as some refuse the whole request for a malformed call."""
    try:
        value = msgspec.json.decode(args or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = None
    if isinstance(value, dict):
        return args or "{}"
    return _encode({"malformed_arguments": args}).decode()


def _thinking_part(thought: Thinking) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "thinking", "thinking": [{"type": "text", "text": thought.text}]}
    return part | ({"signature": thought.signature} if thought.signature else {})


def _details(opaque: Raw) -> list[Raw]:
    try:
        return msgspec.json.decode(opaque, type=list[Raw])
    except msgspec.DecodeError:
        return []


def _message_fields(data: Raw) -> dict[str, Any]:
    value = msgspec.json.decode(data)
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return {"extra_content": fields["extra_content"]} if "extra_content" in fields else {}
