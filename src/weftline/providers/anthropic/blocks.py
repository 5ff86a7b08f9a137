"""Messages as content blocks of the Anthropic Messages API, each encoded once."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw

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
)
from weftline.providers.calls import warn_unread
from weftline.providers.names import NameMap, repaired

PROVIDER: Final = "anthropic"
PLATFORMS: Final = frozenset({PROVIDER, "bedrock"})
"""The platforms that run Claude. Each accepts signatures from the others."""
MARK: Final = b',"cache_control":{"type":"ephemeral"}}'

encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TEXTUAL = frozenset({"application/json", "application/xml", "application/yaml", "application/javascript"})


class Block(NamedTuple):
    """One encoded content block, and whether it may carry a cache breakpoint."""

    json: bytes
    markable: bool = True


def marked(blocks: Sequence[Block]) -> list[Block]:
    """Returns the blocks with a cache breakpoint on the last one that may carry it."""
    for index in range(len(blocks) - 1, -1, -1):
        if blocks[index].markable:
            return [*blocks[:index], Block(blocks[index].json[:-1] + MARK), *blocks[index + 1 :]]
    return list(blocks)


def text_block(text: str) -> Block:
    return Block(b'{"type":"text","text":' + encode(text) + b"}")


def joined(blocks: Iterable[Block]) -> bytes:
    return b",".join([block.json for block in blocks])


def message_blocks(message: Message, names: NameMap, *, provider: str = PROVIDER) -> list[Block]:
    """Returns the blocks of a message.

    `provider` is the platform that receives it: tools that another one ran are left out.
    """
    match message:
        case System(content):
            # The API accepts system text only before the conversation; later it is sent as user text.
            return [text_block(prompts.models.late_system_message(content))] if content.strip() else []
        case User(parts):
            return _user_blocks(_fetched(parts) if provider == "bedrock" else parts)
        case Assistant(parts):
            return [block for part in parts for block in _assistant_block(part, names, provider)]
        case ToolResults(results):
            return [_result_block(result) for result in results]


def missing_results(messages: Sequence[Message], index: int) -> list[Block]:
    """Returns results for calls that are still open before `messages[index]`, as the API refuses open calls."""
    if isinstance(messages[index], ToolResults):
        return []
    answered: set[str] = set()
    for before in range(index - 1, -1, -1):
        message = messages[before]
        if not isinstance(message, ToolResults):
            if not isinstance(message, Assistant):
                return []
            return [
                _result_block(ToolResult(call.id, call.name, (Text(prompts.models.NO_RESULT),), is_error=True))
                for call in message.calls
                if call.id not in answered
            ]
        answered.update(result.id for result in message.results)
    return []


def _user_blocks(parts: Sequence[UserPart]) -> list[Block]:
    blocks: list[Block] = []
    for part in parts:
        match part:
            case Text(text):
                # The API refuses blank text blocks.
                if text.strip():
                    blocks.append(text_block(text))
            case Image():
                blocks.append(Block(b'{"type":"image","source":' + _source(part) + b"}"))
            case File():
                blocks.append(_document(part))
    return blocks


def _fetched(parts: Sequence[UserPart]) -> list[UserPart]:
    """Describes content at URLs in words, as Bedrock does not fetch URLs."""
    fetched: list[UserPart] = []
    for part in parts:
        if not isinstance(part, Text) and part.url is not None and part.data is None:
            warn_unread(part.media_type, part.name if isinstance(part, File) else None)
            part = Text(prompts.models.unfetched_attachment(part.url, part.media_type))
        fetched.append(part)
    return fetched


def _source(part: Image | File) -> bytes:
    if part.data is None:
        return encode({"type": "url", "url": part.url or ""})
    return encode({"type": "base64", "media_type": part.media_type, "data": part.data})


def _document(part: File) -> Block:
    title = {"title": part.name} if part.name else {}
    if part.media_type == "application/pdf":
        source = Raw(_source(part))
    elif part.data is not None and (text := _text_of(part)) is not None:
        source = Raw(encode({"type": "text", "media_type": "text/plain", "data": text}))
    else:
        warn_unread(part.media_type, part.name)
        return text_block(prompts.models.unreadable_file(part.name, part.media_type, part.url))
    return Block(encode({"type": "document", "source": source, **title}))


def _text_of(part: File) -> str | None:
    if not (part.media_type.startswith("text/") or part.media_type.partition(";")[0] in _TEXTUAL):
        return None
    try:
        return base64.b64decode(part.data or "", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _assistant_block(part: AssistantPart, names: NameMap, own: str) -> list[Block]:
    match part:
        case Text(text):
            return [text_block(text)] if text.strip() else []
        case Thinking():
            return _thinking_block(part)
        case ToolCall():
            return [_call_block(part, names)]
        case ProviderCall():
            # Without `opaque` it only describes a call whose own blocks are already there.
            return [Block(bytes(part.opaque))] if part.provider == own and part.opaque is not UNSET else []
        case Opaque(provider, data):
            return [Block(bytes(data), markable=False)] if provider == own else []
        case Image():
            return [text_block(prompts.models.IMAGE_PLACEHOLDER)]


def _thinking_block(part: Thinking) -> list[Block]:
    if part.provider not in PLATFORMS:
        return []
    if part.opaque is not UNSET:
        return [Block(bytes(part.opaque), markable=False)]
    if part.signature is None:
        return []
    block = {"type": "thinking", "thinking": part.text, "signature": part.signature}
    return [Block(encode(block), markable=False)]


def _call_block(call: ToolCall, names: NameMap) -> Block:
    try:
        _decode_object(call.args)
        arguments = Raw(call.args.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        arguments = Raw(encode({"malformed_arguments": call.args}))
    block = {
        "type": "tool_use",
        "id": call_id(call.id),
        "name": names.out(call.name),
        "input": arguments,
    }
    if call.provider in PLATFORMS and call.extra is not UNSET:
        block.update(_decode_object(call.extra))
    return Block(encode(block))


def _result_block(result: ToolResult) -> Block:
    block: dict[str, object] = {"type": "tool_result", "tool_use_id": call_id(result.id)}
    if any(not isinstance(part, Text) for part in result.parts):
        block["content"] = Raw(b"[" + joined(_user_blocks(result.parts)) + b"]")
    else:
        block["content"] = result.text
    block["is_error"] = result.is_error
    return Block(encode(block))


def call_id(id: str) -> str:
    """Replaces characters that this API refuses in the ids of other providers."""
    return id if _ID.fullmatch(id) else repaired(id)
