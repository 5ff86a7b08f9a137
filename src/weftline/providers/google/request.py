"""Builds Gemini requests by joining bytes that were encoded once.

The body starts with what stays the same from turn to turn (system instruction, tools, the messages so far) and ends
with what may differ (tool config, generation config), so that the prefix of one request is the prefix of the next.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, assert_never

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
)
from weftline.providers.base import ModelRequest, ProviderError, SchemaForm, ToolSpec
from weftline.providers.google.models import thinking_config, traits
from weftline.providers.google.schema import accepted
from weftline.providers.names import NameMap, free_name

PROVIDER = "google"
ANSWER_FUNCTION = "set_model_response"
BUILTIN_PREFIX = "provider:"
BUILTIN_TOOLS: dict[str, str] = {
    "google_search": "googleSearch",
    "url_context": "urlContext",
    "code_execution": "codeExecution",
    "google_maps": "googleMaps",
    "file_search": "fileSearch",
}
"""The tools that Gemini runs itself, by the name that selects them (`provider:google_search`)."""

UNSIGNED = b'"thoughtSignature":"skip_thought_signature_validator"'
"""Gemini 3 refuses a call without a signature. This value is accepted for calls that it did not make."""

_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_TOOL_BLOCKS = 64

_encode = msgspec.json.encode


class Signed(Struct, frozen=True, tag_field="kind", tag="signature"):
    """A signature on the previous part: on the last `chars` characters if that is a text."""

    signature: str
    chars: int = 0


class Native(Struct, frozen=True, tag_field="kind", tag="part"):
    """A part without a neutral form, as it was received."""

    part: Raw


class ToolBlock(Struct, frozen=True):
    """The tools of a request, encoded. `sent` are the names of its functions as the model sees them."""

    specs: tuple[ToolSpec, ...]
    names: NameMap
    sent: tuple[str, ...]
    functions: bytes
    builtins: tuple[bytes, ...]


class Built(Struct, frozen=True):
    """A request's body, and what is needed to read the response."""

    body: bytes
    names: NameMap
    answer_function: str | None
    """The function that represents structured output, if the request has one."""


class RequestBuilder:
    """Builds bodies. Caches the encoded tools of recent runs, and stores encoded messages in `request.native`."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[int, ...], ToolBlock] = OrderedDict()

    def build(self, request: ModelRequest) -> Built:
        """Raises `ProviderError` of class `invalid_request` for tools that cannot be sent."""
        block = self._tool_block(request.tools)
        modern = traits(request.model).modern
        schema = request.output_schema
        by_function = schema_form(request) == "tool"
        answer = free_name(ANSWER_FUNCTION, block.sent) if by_function else None

        fields: list[bytes] = []
        system = _system_text(request, answer)
        if system:
            fields.append(b'"systemInstruction":{"parts":[{"text":%b}]}' % _encode(system))
        declared = block.functions
        if schema is not None and answer is not None:
            declaration = _declaration(answer, prompts.models.ANSWER_FUNCTION, schema.schema)
            declared = declared + b"," + declaration if declared else declaration
        tools = [b'{"functionDeclarations":[%b]}' % declared] if declared else []
        if not request.tools_disabled:
            tools.extend(block.builtins)
        if tools:
            fields.append(b'"tools":[%b]' % b",".join(tools))
        fields.append(b'"contents":[%b]' % b",".join(_contents(request, block.names, modern)))
        tool_config = _tool_config(request, block, answer)
        if declared and block.builtins and modern and not request.tools_disabled:
            tool_config["includeServerSideToolInvocations"] = True
        if tool_config:
            fields.append(b'"toolConfig":%b' % _encode(tool_config))
        generation = _generation_config(request, by_function=by_function)
        if generation:
            fields.append(b'"generationConfig":%b' % _encode(generation))
        return Built(b"{" + b",".join(fields) + b"}", block.names, answer)

    def _tool_block(self, tools: Sequence[ToolSpec]) -> ToolBlock:
        # Keyed by identity: the specs are immutable and the block keeps them alive, so no id is reused.
        key = tuple(map(id, tools))
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _encode_tools(tuple(tools))
            if len(self._blocks) > _TOOL_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        return block


def schema_form(request: ModelRequest) -> SchemaForm | None:
    """Gemini 2.5 refuses a response schema together with tools, so the schema becomes a function."""
    if request.output_schema is None:
        return None
    return "tool" if request.tools and not traits(request.model).modern else "native"


def _encode_tools(specs: tuple[ToolSpec, ...]) -> ToolBlock:
    functions = [spec for spec in specs if not spec.name.startswith(BUILTIN_PREFIX)]
    builtins: list[bytes] = []
    for spec in specs:
        if spec.name.startswith(BUILTIN_PREFIX):
            name = spec.name.removeprefix(BUILTIN_PREFIX)
            native = BUILTIN_TOOLS.get(name)
            if native is None:
                known = ", ".join(sorted(BUILTIN_TOOLS))
                raise ProviderError("invalid_request", f"Gemini has no built-in tool {name!r}; it has {known}.")
            builtins.append(_encode({native: spec.parameters if bytes(spec.parameters).strip() else {}}))
    names = NameMap((spec.name for spec in functions), allowed="[a-zA-Z0-9_.:-]", limit=64, first="[a-zA-Z_]")
    declared = [
        _declaration(names.out(spec.name), spec.description, accepted(spec.parameters), spec.output_schema)
        for spec in functions
    ]
    return ToolBlock(
        specs=specs,
        names=names,
        sent=tuple(names.out(spec.name) for spec in functions),
        functions=b",".join(declared),
        builtins=tuple(builtins),
    )


def _declaration(name: str, description: str, parameters: Raw, response: Raw | UnsetType = UNSET) -> bytes:
    declaration: dict[str, Any] = {"name": name, "description": description, "parametersJsonSchema": parameters}
    if response is not UNSET:
        declaration["responseJsonSchema"] = response
    return _encode(declaration)


def _system_text(request: ModelRequest, answer: str | None) -> str:
    texts = [request.system or ""]
    for message in request.messages:
        if not isinstance(message, System):
            break
        texts.append(message.content)
    if answer is not None:
        texts.append(prompts.models.answer_by_function(answer))
    return "\n\n".join(text for text in texts if text)


def _tool_config(request: ModelRequest, block: ToolBlock, answer: str | None) -> dict[str, Any]:
    choice = "none" if request.tools_disabled else request.tool_choice
    calling: dict[str, Any]
    match choice:
        case "auto":
            return {}
        case "none" if answer is not None:
            calling = {"mode": "ANY", "allowedFunctionNames": [answer]}
        case "none":
            calling = {"mode": "NONE"}
        case "required":
            calling = {"mode": "ANY"}
        case ("tool", name):
            calling = {"mode": "ANY", "allowedFunctionNames": [block.names.out(name)]}
        case _:
            assert_never(choice)
    return {"functionCallingConfig": calling} if block.sent or answer is not None else {}


def _generation_config(request: ModelRequest, *, by_function: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        "maxOutputTokens": request.max_output_tokens,
        "temperature": request.temperature,
        "topP": request.top_p,
        "topK": request.top_k,
        "stopSequences": list(request.stop) or None,
        "thinkingConfig": thinking_config(request.model, request.reasoning, tokens=request.reasoning_budget_tokens),
    }
    if request.output_schema is not None and not by_function:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = request.output_schema.schema
    return {key: value for key, value in config.items() if value is not None}


def _contents(request: ModelRequest, names: NameMap, modern: bool) -> list[bytes]:
    native, messages = request.native, request.messages
    if len(native) < len(messages):
        native.extend([None] * (len(messages) - len(native)))
    leading = True
    contents: list[bytes] = []
    for index, message in enumerate(messages):
        leading = leading and isinstance(message, System)
        encoded = native[index]
        if encoded is None:
            encoded = native[index] = b"" if leading else _content(message, names, modern)
        if encoded:
            contents.append(encoded)
    return contents


def _content(message: Message, names: NameMap, modern: bool) -> bytes:
    match message:
        case System(content=content):
            return _turn(b"user", [b'{"text":%b}' % _encode(content)] if content else [])
        case User(parts=parts):
            return _turn(b"user", [sent for part in parts if (sent := _user_part(part))])
        case Assistant(parts=parts):
            return _turn(b"model", _assistant_parts(parts, names, modern))
        case ToolResults(results=results):
            loose: list[bytes] = []
            encoded = [_result(result, names, modern, loose) for result in results]
            return _turn(b"user", encoded + loose)
        case _:
            assert_never(message)


def _turn(role: bytes, parts: list[bytes]) -> bytes:
    """Returns a turn; empty if there is nothing to send, as Gemini refuses content without parts."""
    return b'{"role":"%b","parts":[%b]}' % (role, b",".join(parts)) if parts else b""


def _user_part(part: UserPart) -> bytes:
    match part:
        case Text(text=text):
            return b'{"text":%b}' % _encode(text) if text else b""
        case Image() | File():
            return _media(part)
        case _:
            assert_never(part)


def _media(part: Image | File) -> bytes:
    if part.data is not None:
        return _encode({"inlineData": {"mimeType": part.media_type, "data": part.data}})
    url = part.url or ""
    inline = _DATA_URL.match(url)
    if inline:
        return _encode({"inlineData": {"mimeType": inline[1] or part.media_type, "data": url[inline.end() :]}})
    return _encode({"fileData": {"mimeType": part.media_type, "fileUri": url}})


def _result(result: ToolResult, names: NameMap, modern: bool, loose: list[bytes]) -> bytes:
    """Returns the response to one call.

    Its images are part of it from Gemini 3 on; before, they follow all responses.
    """
    response: dict[str, Any] = {"id": result.id} if result.id else {}
    response["name"] = names.out(result.name)
    response["response"] = {"error" if result.is_error else "output": result.text}
    media = [_media(part) for part in result.parts if not isinstance(part, Text)]
    if media and modern:
        response["parts"] = [Raw(item) for item in media]
    else:
        loose.extend(media)
    return _encode({"functionResponse": response})


def _assistant_parts(parts: tuple[AssistantPart, ...], names: NameMap, modern: bool) -> list[bytes]:
    encoded: list[bytes] = []
    before: AssistantPart | None = None
    called = False
    for part in parts:
        match part:
            case Text(text=text):
                if text:
                    encoded.append(b'{"text":%b}' % _encode(text))
            case Thinking():
                # Summaries are for people; only a signed thought is meaningful to the model.
                if part.provider == PROVIDER and part.signature:
                    encoded.append(_encode({"text": part.text, "thought": True, "thoughtSignature": part.signature}))
            case ToolCall():
                encoded.append(_call(part, names, unsigned=modern and not called))
                called = True
            case ProviderCall():
                if part.provider == PROVIDER and part.opaque is not UNSET:
                    encoded.append(bytes(part.opaque).strip()[1:-1])
            case Image():
                encoded.append(_media(part))
            case Opaque():
                if part.provider == PROVIDER:
                    _restore(part, before, encoded)
            case _:
                assert_never(part)
        before = part
    return encoded


def _call(call: ToolCall, names: NameMap, *, unsigned: bool) -> bytes:
    function: dict[str, Any] = {"id": call.id} if call.id else {}
    function["name"] = names.out(call.name)
    function["args"] = Raw(_arguments(call.args))
    extra = b""
    if call.provider == PROVIDER and call.extra is not UNSET:
        extra = bytes(call.extra).strip()[1:-1].strip()
    if unsigned and b'"thoughtSignature"' not in extra:
        extra = extra + b"," + UNSIGNED if extra else UNSIGNED
    return b'{"functionCall":%b%b}' % (_encode(function), b"," + extra if extra else b"")


def _arguments(text: str) -> bytes:
    """Returns the arguments as the model wrote them; text that is not a JSON object is wrapped in one."""
    try:
        if isinstance(msgspec.json.decode(text), dict):
            return text.encode()
    except (msgspec.DecodeError, RecursionError):
        pass
    return _encode({"invalid_arguments": text})


def _restore(part: Opaque, before: AssistantPart | None, encoded: list[bytes]) -> None:
    try:
        kept = msgspec.json.decode(part.data, type=Signed | Native)
    except msgspec.DecodeError:
        return
    if isinstance(kept, Native):
        encoded.append(bytes(kept.part))
        return
    signature = b'"thoughtSignature":%b' % _encode(kept.signature)
    if isinstance(before, Image):
        encoded[-1] = b"%b,%b}" % (encoded[-1][:-1], signature)
    elif isinstance(before, Text) and 0 < kept.chars <= len(before.text):
        # The signature belongs to the end of a text that was streamed, which becomes a part of its own again.
        start, end = before.text[: -kept.chars], before.text[-kept.chars :]
        encoded[-1:] = [b'{"text":%b}' % _encode(start)] if start else []
        encoded.append(b'{"text":%b,%b}' % (_encode(end), signature))
    else:
        encoded.append(b'{"text":"",%b}' % signature)
