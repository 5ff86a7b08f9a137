"""Builds the body of a request to the Anthropic Messages API.

What stays the same from turn to turn comes first (model, tools, system, earlier messages) and keeps its bytes; what may
change (the newest message's cache breakpoint, tool choice, thinking) comes after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from msgspec import UNSET, Raw, Struct, field

from weftline import prompts
from weftline.messages import Assistant, Message, System
from weftline.providers.anthropic.blocks import (
    PROVIDER,
    Block,
    encode,
    joined,
    marked,
    message_blocks,
    missing_results,
    text_block,
)
from weftline.providers.anthropic.models import DEFAULT_MODEL, Levels, Thinking, thinking_for, traits
from weftline.providers.anthropic.schema import Report, input_schema, native_schema, report_for
from weftline.providers.base import ModelInfo, ModelRequest, ProviderError, SchemaForm, ToolSpec
from weftline.providers.names import NameMap

BUILTIN_PREFIX: Final = "provider:"
BUILTIN_TOOLS: Final[Mapping[str, Mapping[str, Any]]] = {
    "web_search": {"type": "web_search_20250305", "name": "web_search"},
    "web_fetch": {"type": "web_fetch_20250910", "name": "web_fetch"},
    "code_execution": {"type": "code_execution_20250825", "name": "code_execution"},
}
"""Tools that Anthropic runs itself, as they are declared in a request."""
NEWER_TYPES: Final[Mapping[str, str]] = {
    "web_search": "web_search_20260318",
    "web_fetch": "web_fetch_20260318",
    "code_execution": "code_execution_20260521",
}
"""The same for models that filter search results before they read them."""
CITING: Final = "web_search"
"""Tools whose answers have citations, which the API refuses together with an output format."""


class Built(Struct, frozen=True):
    """A body, and what is needed to read the response."""

    body: bytes
    names: NameMap
    report: Report | None = None


class RequestBuilder(Struct, frozen=True, kw_only=True):
    """Builds bodies. `context_management` goes into each as it is; `models` may limit the output of some models.

    `platform` has the fields to send instead of `model` and `stream`, for a platform whose URL contains those.
    """

    provider: str = PROVIDER
    platform: Mapping[str, Any] | None = None
    cache: bool = True
    context_management: Mapping[str, Any] | None = None
    builtin_tools: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: BUILTIN_TOOLS)
    models: Sequence[ModelInfo] = ()
    reasoning_levels: Mapping[str, Levels] = {}
    native_schemas: bool = True
    """Whether output schemas may be sent natively, to models that support them."""

    def build(self, request: ModelRequest) -> Built:
        own = [tool for tool in request.tools if not tool.name.startswith(BUILTIN_PREFIX)]
        native = [
            self._builtin(tool.name, request.model) for tool in request.tools if tool.name.startswith(BUILTIN_PREFIX)
        ]
        names = NameMap([tool.name for tool in own])
        taken = {names.out(tool.name) for tool in own}
        for tool in native:
            if tool["name"] in taken:
                raise ProviderError(
                    "invalid_request",
                    f"A tool and Anthropic's own tool are both sent as {tool['name']!r}; rename the tool.",
                    code="tool_name_collision",
                )
        schema = self._native_schema(request)
        report = None if schema else report_for(request.output_schema, taken | {str(tool["name"]) for tool in native})
        tools = [_declared(tool, names) for tool in own] + [Block(encode(tool)) for tool in native]
        kept = bool(tools) and not (report and _without_tools(request))
        max_tokens = self._max_tokens(request)
        # A tool choice forced by the caller wins over a budget; a budget wins over forcing the report tool.
        forced = kept and not _without_tools(request) and request.tool_choice not in ("auto", "none")
        may_force_report = report is not None and not kept and not request.reasoning
        thinking = thinking_for(
            request,
            max_tokens=max_tokens,
            forced=traits(request.model).forces and (forced or may_force_report),
            levels=self.reasoning_levels.get(request.model),
        )
        if report:
            tools = [*(tools if kept else []), report.tool]
        choice = _tool_choice(request, names, report, has_tools=kept, thinking=thinking)
        platform, cache = self.platform, self.cache and request.cache
        addressed = {"model": request.model or DEFAULT_MODEL} if platform is None else platform
        head = {
            **{name: encode(value) for name, value in addressed.items()},
            "max_tokens": encode(max_tokens),
            **({"stream": b"true"} if platform is None else {}),
            "tools": _array(tools, cache=cache),
            "system": _array(_system(request, report, thinking), cache=cache),
        }
        output = {**thinking.fields.get("output_config", {}), **({"format": schema} if schema else {})}
        tail = {
            **({"tool_choice": choice} if choice else {}),
            **thinking.fields,
            **({"output_config": output} if output else {}),
            **_sampling(request, thinking),
            **({"context_management": self.context_management} if self.context_management else {}),
        }
        # A single join for the whole body, as copying long conversations dominates the cost.
        pieces = [b'"%b":%b,' % (name.encode(), value) for name, value in head.items() if value]
        pieces += [b'"messages":[', *self._messages(request, names), b"]"]
        pieces += [b',"%b":%b' % (name.encode(), encode(value)) for name, value in tail.items()]
        return Built(b"".join([b"{", *pieces, b"}"]), names, report)

    def _builtin(self, name: str, model: str) -> Mapping[str, Any]:
        bare = name.removeprefix(BUILTIN_PREFIX)
        tool = self.builtin_tools.get(bare)
        if tool is None:
            known = ", ".join(BUILTIN_PREFIX + tool for tool in self.builtin_tools)
            raise ProviderError("invalid_request", f"Anthropic has no tool {name!r}; it has {known}.")
        if tool is BUILTIN_TOOLS.get(bare) and traits(model or DEFAULT_MODEL).filters:
            return {**tool, "type": NEWER_TYPES[bare]}
        return tool

    def schema_form(self, request: ModelRequest) -> SchemaForm | None:
        if request.output_schema is None:
            return None
        return "tool" if self._native_schema(request) is None else "native"

    def _native_schema(self, request: ModelRequest) -> dict[str, Any] | None:
        if request.output_schema is None or not self.native_schemas:
            return None
        cites = any(tool.name == BUILTIN_PREFIX + CITING for tool in request.tools)
        if cites or not traits(request.model or DEFAULT_MODEL).structured:
            return None
        schema = native_schema(bytes(request.output_schema.schema))
        return None if schema is None else {"type": "json_schema", "schema": Raw(schema)}

    def _max_tokens(self, request: ModelRequest) -> int:
        if request.max_output_tokens is not None:
            return request.max_output_tokens
        known = next((model.max_output_tokens for model in self.models if model.vendor_id == request.model), None)
        return min(traits(request.model).max_output_tokens, known or traits(request.model).max_output_tokens)

    def _messages(self, request: ModelRequest, names: NameMap) -> list[bytes]:
        """Joins the bytes of earlier turns. Only the newest message is encoded separately, with its breakpoint."""
        messages, native, own = request.messages, request.native, self.provider
        count, head = len(messages), _head_length(messages)
        del native[count:]
        native.extend([None] * (count - len(native)))
        first_new = count
        while first_new > 0 and native[first_new - 1] is None:
            first_new -= 1
        for index in range(first_new, count):
            native[index] = b"" if index < head else _fragment(request, index, names, provider=own, mark=False)
        newest = count - 1
        while newest >= 0 and not native[newest]:
            newest -= 1
        if newest < 0:
            return []
        fragments = cast("list[bytes]", native)
        marks = self.cache and request.cache
        last = _fragment(request, newest, names, provider=own, mark=True) if marks else fragments[newest]
        return [*fragments[:newest], last, b"]}"]


def _array(blocks: Sequence[Block], *, cache: bool) -> bytes:
    if not blocks:
        return b""
    return b"[" + joined(marked(blocks) if cache else blocks) + b"]"


def _fragment(request: ModelRequest, index: int, names: NameMap, *, provider: str, mark: bool) -> bytes:
    """Returns one message's part of the `messages` array, from the end of the block before it to the end of its own.

    Adjacent messages of one role become one message, as the API requires, so brackets are placed where the role
    changes. A fragment depends only on the messages up to its own, which never change.
    """
    messages, native = request.messages, request.native
    role = _role(messages[index])
    blocks = message_blocks(messages[index], names, provider=provider)
    if mark:
        blocks = marked(blocks)
    if not blocks and role == "assistant":
        # Nothing to send to this API: it was only another provider's reasoning.
        return b""
    missing = missing_results(messages, index)
    before = index - 1
    while before >= 0 and not native[before]:
        before -= 1
    previous = _role(messages[before]) if before >= 0 else None
    out: list[bytes] = []
    turns = [("user", missing), (role, blocks)]
    if previous is None and role == "assistant":
        turns.insert(0, ("user", [text_block(prompts.models.CONTINUE)]))
    for turn, content in turns:
        if not content:
            continue
        if turn == previous:
            out.append(b",")
        else:
            out.append(b"]}," if previous else b"")
            out.append(b'{"role":"%b","content":[' % turn.encode())
        out.append(joined(content))
        previous = turn
    return b"".join(out)


def _role(message: Message) -> str:
    return "assistant" if isinstance(message, Assistant) else "user"


def _head_length(messages: Sequence[Message]) -> int:
    """Returns how many system messages the conversation begins with. These become system text."""
    length = 0
    while length < len(messages) and isinstance(messages[length], System):
        length += 1
    return length


def _system(request: ModelRequest, report: Report | None, thinking: Thinking) -> list[Block]:
    texts = [request.system or ""]
    texts += [
        message.content for message in request.messages[: _head_length(request.messages)] if isinstance(message, System)
    ]
    if report and (thinking.on or not traits(request.model).forces):
        texts.append(report.instruction)
    return [text_block(text) for text in texts if text.strip()]


def _declared(tool: ToolSpec, names: NameMap) -> Block:
    description = tool.description
    if tool.output_schema is not UNSET:
        result = prompts.models.result_schema(bytes(tool.output_schema).decode())
        description = f"{description}\n\n{result}" if description else result
    return Block(
        b'{"name":%b,"description":%b,"input_schema":%b}'
        % (encode(names.out(tool.name)), encode(description), input_schema(bytes(tool.parameters)))
    )


def _without_tools(request: ModelRequest) -> bool:
    return request.tools_disabled or request.tool_choice == "none"


def _tool_choice(
    request: ModelRequest, names: NameMap, report: Report | None, *, has_tools: bool, thinking: Thinking
) -> dict[str, str | bool] | None:
    may_force = traits(request.model or DEFAULT_MODEL).forces and not thinking.budget
    if report and not has_tools:
        if not may_force:
            return {"type": "auto"}
        return {"type": "tool", "name": report.name, "disable_parallel_tool_use": True}
    if not has_tools:
        return None
    if _without_tools(request):
        return {"type": "none"}
    choice: dict[str, str | bool] = {"type": "auto"}
    if may_force:
        match request.tool_choice:
            case "required":
                choice = {"type": "any"}
            case ("tool", name):
                choice = {"type": "tool", "name": names.out(name)}
            case _:
                pass
    if request.parallel_tool_calls is not None:
        choice["disable_parallel_tool_use"] = not request.parallel_tool_calls
    return choice


def _sampling(request: ModelRequest, thinking: Thinking) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if request.stop:
        fields["stop_sequences"] = list(request.stop)
    if not traits(request.model).sampling:
        return fields
    if thinking.on:
        # The only temperature allowed with thinking; the other two settings are not allowed at all.
        return {**fields, "temperature": 1}
    given = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k}
    return {**fields, **{name: value for name, value in given.items() if value is not None}}
