"""The seven kinds of tools as clients send them: their shapes, their names, and the secrets they carry.

Two kinds have two names: `mantyx` and `mantyx_plugin` are the protocol's, `stored` and `server` are ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, json

from weftline.framing import REFUSAL, frames_request
from weftline.spec.declare import PASSED_ON, Part, Whole, both, check, says, whole
from weftline.text.redaction import REDACTED, SEALED_URL, redact_url
from weftline.text.schema_cost import refusal
from weftline.wire.json_text import decode_fields, decode_items, encode, is_deep
from weftline.wire.limits import (
    HEADER_NAME_PATTERN,
    HEADER_VALUE_PATTERN,
    ID_PATTERN,
    MAX_CONTEXT_ID_CHARS,
    MAX_HEADER_VALUE_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_MCP_LOCAL_TOOLS,
    MAX_POLICY_ENTRIES,
    MAX_POLICY_NAME_CHARS,
    MAX_SERVER_NAME_CHARS,
    MAX_TOOL_FILTER_NAME_CHARS,
    MAX_TOOL_FILTER_NAMES,
    MAX_TOOL_SCHEMA_BYTES,
    MAX_TOOLS,
    MAX_TOOLS_HEADERS_BYTES,
    MAX_URL_CHARS,
    MCP_TOOL_NAME_PATTERN,
    PLUGIN_NAME_PATTERN,
    TOOL_NAME_PATTERN,
    URL_PATTERN,
)

_NOT_EVERYWHERE = re.compile(r"[^a-zA-Z0-9_]")
_is_header_value = re.compile(HEADER_VALUE_PATTERN).fullmatch

TOO_DEEP: Final = "is nested too deeply"


def header_value_problem(value: str) -> str:
    """Returns what is wrong with a header's value. It is a secret, so the text never shows it."""
    if len(value) > MAX_HEADER_VALUE_BYTES or len(value.encode()) > MAX_HEADER_VALUE_BYTES:
        return f"must have at most {MAX_HEADER_VALUE_BYTES} bytes"
    return "" if _is_header_value(value) else "must have no control characters"


def header_name_problem(name: str) -> str:
    return REFUSAL if frames_request(name) else ""


def headers_problem(headers: Mapping[str, str]) -> str:
    # Everything that the peer sends is searched for each of them, in a dozen spellings.
    fits = header_bytes(headers) <= MAX_HEADERS_BYTES
    return "" if fits else f"must have at most {MAX_HEADERS_BYTES} bytes in all its values"


def header_bytes(headers: Mapping[str, str] | None) -> int:
    return sum([len(value.encode()) for value in (headers or {}).values()])


def schema_problem(schema: object) -> str:
    """Returns why a schema is refused; "" for one of bounded cost, and for whatever else was sent in its place."""
    if not isinstance(schema, dict | list):
        return ""
    schema = cast("object", schema)
    encoded = encode(schema)
    if is_deep(encoded, schema):
        return TOO_DEEP
    return refusal(schema, encoded=encoded, max_bytes=MAX_TOOL_SCHEMA_BYTES) or ""


def object_problem(value: object) -> str:
    if not isinstance(value, dict):
        return "must be a JSON object"
    value = cast("object", value)
    return TOO_DEEP if is_deep(encode(value), value) else ""


def _card_problem(card: object) -> str:
    if problem := object_problem(card):
        return problem
    name = cast("dict[str, object]", card).get("name")
    return "" if isinstance(name, str) and name else "needs a non-empty string `name`"


def _tools_problem(tools: Sequence[Mapping[str, Any]]) -> str:
    count = sum([len(tool["tools"]) if tool["kind"] == "mcp_local" else 1 for tool in tools])
    if count > MAX_TOOLS:
        return f"has {count} tools; at most {MAX_TOOLS} are allowed"
    if sum([header_bytes(tool.get("headers")) for tool in tools if tool["kind"] in DIALLED]) > MAX_TOOLS_HEADERS_BYTES:
        return f"must have at most {MAX_TOOLS_HEADERS_BYTES} bytes in all values of headers"
    return ""


ToolName: TypeAlias = Annotated[str, Meta(pattern=whole(TOOL_NAME_PATTERN))]
Url: TypeAlias = Annotated[
    str, says("must be an http or https address", pattern=whole(URL_PATTERN)), Meta(max_length=MAX_URL_CHARS)
]
Headers: TypeAlias = Annotated[
    dict[
        Annotated[str, Meta(pattern=whole(HEADER_NAME_PATTERN)), check(header_name_problem)],
        Annotated[str, check(header_value_problem)],
    ],
    Meta(max_length=MAX_HEADERS),
    check(headers_problem),
]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_POLICY_NAME_CHARS)]
Tags: TypeAlias = Annotated[Sequence[Name], Meta(max_length=MAX_POLICY_ENTRIES)]
"""The words that the filters of a policy match."""
Effect: TypeAlias = Literal["read", "idempotent", "once"]
_Schema: TypeAlias = Annotated[Raw, check(schema_problem)]


class StoredTool(Part, frozen=True, tag_field="kind", tag="stored"):
    """A tool of the workspace."""

    id: Annotated[str, Meta(pattern=whole(ID_PATTERN))]


class ForeignStoredTool(StoredTool, frozen=True, tag_field="kind", tag="mantyx"):
    """The protocol's own name for it."""


class ServerTool(Part, frozen=True, tag_field="kind", tag="server"):
    """A tool of the server itself."""

    name: Annotated[str, Meta(pattern=whole(PLUGIN_NAME_PATTERN))]


class ForeignServerTool(ServerTool, frozen=True, tag_field="kind", tag="mantyx_plugin"):
    """The protocol's own name for it."""


class LocalTool(Part, frozen=True, tag_field="kind", tag="local"):
    """A tool that the client executes. Schemas with a wrong root are coerced later, not refused."""

    name: ToolName
    description: str | None = None
    parameters: _Schema | UnsetType = UNSET
    output_schema: _Schema | UnsetType = UNSET
    long_running: bool | None = None
    tags: Tags | None = None
    effect: Effect | None = None


class A2ATool(Part, frozen=True, tag_field="kind", tag="a2a"):
    """An A2A peer that the server connects to."""

    name: ToolName
    agent_card_url: Url
    description: str | None = None
    headers: Headers | None = None
    context_id: Annotated[str, Meta(min_length=1, max_length=MAX_CONTEXT_ID_CHARS)] | None = None


class A2ALocalTool(Part, frozen=True, tag_field="kind", tag="a2a_local"):
    """An A2A peer that the client talks to."""

    name: ToolName
    agent_card: Annotated[Raw, check(_card_problem, schema={"type": "object"})]
    description: str | None = None


class McpTool(Part, frozen=True, tag_field="kind", tag="mcp"):
    """An MCP server that the server connects to."""

    name: ToolName
    url: Url
    headers: Headers | None = None
    tool_filter: (
        Annotated[
            Sequence[Annotated[str, Meta(max_length=MAX_TOOL_FILTER_NAME_CHARS)]],
            Meta(max_length=MAX_TOOL_FILTER_NAMES),
        ]
        | None
    ) = None
    elicitation: Literal["ask", "decline"] | None = None


class McpLocalEntry(Whole, frozen=True):
    """An MCP tool as its server describes it, passed on completely."""

    name: Annotated[str, Meta(pattern=whole(MCP_TOOL_NAME_PATTERN))]
    description: str | None = None
    input_schema: _Schema | UnsetType = UNSET
    output_schema: _Schema | UnsetType = UNSET


_Entry: TypeAlias = Annotated[McpLocalEntry, check(object_problem), PASSED_ON]


class McpLocalTool(Part, frozen=True, tag_field="kind", tag="mcp_local"):
    """An MCP server that the client talks to. `name` is its label, and never part of a tool's name."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_SERVER_NAME_CHARS)]
    tools: Annotated[tuple[_Entry, ...], Meta(min_length=1, max_length=MAX_MCP_LOCAL_TOOLS)]
    server_info: Annotated[Raw, check(object_problem, schema={"type": "object"})] | UnsetType = UNSET


Tool: TypeAlias = (
    StoredTool
    | ServerTool
    | LocalTool
    | A2ATool
    | A2ALocalTool
    | McpTool
    | McpLocalTool
    | ForeignStoredTool
    | ForeignServerTool
)
Tools: TypeAlias = Annotated[tuple[Tool, ...], Meta(max_length=MAX_TOOLS), check(_tools_problem)]
KINDS: Final = ("stored", "server", "local", "a2a", "a2a_local", "mcp", "mcp_local", "mantyx", "mantyx_plugin")
DIALLED: Final = {"a2a": "agentCardUrl", "mcp": "url"}
"""The kinds that the server connects to, and the field with the address."""


def duplicate_names(tools: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Returns the path and name of each tool whose name an earlier tool of the (valid) list has, and that tool's path.

    An `mcp` ref is a prefix, not a tool, so it clashes only with refs that keep their headers under the same name.
    """
    model_facing: set[str] = set()
    spellings: dict[str, str] = {}
    foreign: dict[str, str] = {}
    """Spellings of names from MCP servers, as `get-weather` and `get_weather` are the same for some models."""
    dialed: set[str] = set()
    found: list[tuple[str, str, str]] = []

    def take(names: set[str], name: str, path: str, *, earlier: str | None = None) -> None:
        if name in names:
            earlier = name
        if earlier is not None:
            found.append((path, name, earlier))
        names.add(name)

    def take_model_facing(name: str, path: str, *, of_server: bool = False) -> None:
        spelt = _NOT_EVERYWHERE.sub("_", name)
        take(model_facing, name, path, earlier=(spellings if of_server else foreign).get(spelt))
        spellings.setdefault(spelt, name)
        if of_server:
            foreign.setdefault(spelt, name)

    for index, tool in enumerate(tools):
        kind = tool["kind"]
        at = f"tools[{index}]"
        if kind == "mcp_local":
            for place, entry in enumerate(tool["tools"]):
                take_model_facing(entry["name"], f"{at}.tools[{place}].name", of_server=True)
        elif kind in ("stored", "mantyx"):
            # Names have no colons, so ids and names cannot clash.
            take(model_facing, f"id:{tool['id']}", f"{at}.id")
        elif kind == "mcp":
            take(dialed, tool["name"], f"{at}.name")
        else:
            take_model_facing(tool["name"], f"{at}.name")
            if kind == "a2a" and tool["name"] in dialed:
                found.append((f"{at}.name", tool["name"], tool["name"]))
            if kind == "a2a":
                dialed.add(tool["name"])
    return found


def take_secrets(raw_tools: Raw, tools: list[dict[str, Any]]) -> tuple[Raw, dict[str, dict[str, str]]]:
    """Returns the tools with every secret replaced by the mark, and the secrets by tool name and header name.

    An address that may contain a secret counts as one, named `SEALED_URL`. Everything else keeps its bytes.
    """
    items = decode_items(raw_tools)
    secrets: dict[str, dict[str, str]] = {}
    for index, tool in enumerate(tools):
        address = DIALLED.get(tool["kind"])
        if address is None:
            continue
        headers: dict[str, str] | None = tool.get("headers")
        url = tool[address]
        kept = dict(headers or {})
        fields = decode_fields(items[index])
        if "headers" in tool:
            fields["headers"] = Raw(encode(None if headers is None else dict.fromkeys(headers, REDACTED)))
        if redact_url(url) != url:
            kept[SEALED_URL] = url
            fields[address] = Raw(encode(redact_url(url)))
        if kept:
            secrets[tool["name"]] = kept
        items[index] = Raw(encode(fields))
    return Raw(encode(items)), secrets


# The tools of stored specs


class _EntryName(Struct):
    name: str


class _Named(Struct):
    kind: str
    name: str = ""
    id: str = ""
    tools: tuple[_EntryName, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which it can clash with another tool."""
        if self.kind == "mcp_local":
            return tuple([entry.name for entry in self.tools])
        return (f"id:{self.id}",) if self.kind in ("stored", "mantyx") else (self.name,)


_decode_named = json.Decoder(_Named).decode


@both
def by_name(own: Raw, above: Raw) -> Raw:
    """Both lists, without those above whose name is also among the request's. Entries keep their bytes."""
    mine = decode_items(own)
    taken = {name for raw in mine for name in _decode_named(raw).names}
    kept = [left for raw in decode_items(above) if (left := _without(raw, taken)) is not None]
    return Raw(encode([*kept, *mine]))


def unless_empty(own: Raw | None, above: Raw | None) -> Raw | None:
    """The request's list, unless that is empty."""
    return own if own is not None and decode_items(own) else above


def _without(raw: Raw, taken: set[str]) -> Raw | None:
    tool = _decode_named(raw)
    if taken.isdisjoint(tool.names):
        return raw
    fields = decode_fields(raw)
    left = [entry for entry in decode_items(fields.get("tools", _NONE)) if _decode_named_entry(entry).name not in taken]
    return Raw(encode({**fields, "tools": left})) if left else None


_NONE = Raw(b"[]")
_decode_named_entry = json.Decoder(_EntryName).decode


class _Dialled(Struct, rename="camel"):
    kind: str
    name: str = ""
    url: str = ""
    agent_card_url: str = ""


_decode_dialled = json.Decoder(_Dialled).decode


def names_of_tools(spec: bytes) -> set[str]:
    """Returns the names of a spec's tools."""
    return {name for raw in _tools(spec) if (name := _decode_named(raw).name)}


def dialled_urls(spec: bytes) -> dict[str, str]:
    """Returns the addresses of the tools that the server connects to, by tool name."""
    dialled = [tool for raw in _tools(spec) if (tool := _decode_dialled(raw)).kind in DIALLED]
    return {tool.name: tool.url if tool.kind == "mcp" else tool.agent_card_url for tool in dialled}


def dialled_tools(spec: bytes) -> dict[str, bytes]:
    """Returns the tools that the server connects to, as they were sent, by tool name."""
    return {tool.name: bytes(raw) for raw in _tools(spec) if (tool := _decode_dialled(raw)).kind in DIALLED}


def client_side_tools(spec: bytes) -> list[str]:
    """Returns the names of the tools that the client executes."""
    tools = [_decode_named(raw) for raw in _tools(spec)]
    return [name for tool in tools if tool.kind in ("local", "a2a_local", "mcp_local") for name in tool.names]


class _WithTools(Struct):
    tools: list[Raw] | None = None


_decode_tools = json.Decoder(_WithTools).decode


def _tools(spec: bytes) -> list[Raw]:
    return _decode_tools(spec).tools or []
