"""The seven kinds of tool refs as clients send them: their shapes, their names, and the secrets they carry.

Two kinds have two names: `mantyx` and `mantyx_plugin` are the protocol's, `stored` and `server` are ours.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

from msgspec import Raw
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from weftline.framing import REFUSAL, frames_request
from weftline.text.redaction import REDACTED, SEALED_URL, redact_url
from weftline.text.schema_cost import refusal
from weftline.wire.json_text import decode_fields, decode_items, encode
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
    MAX_URL_CHARS,
    MCP_TOOL_NAME_PATTERN,
    PLUGIN_NAME_PATTERN,
    TOOL_NAME_PATTERN,
    URL_PATTERN,
)
from weftline.wire.validation import quoted

_is_tool_name = re.compile(TOOL_NAME_PATTERN).fullmatch
_is_mcp_tool_name = re.compile(MCP_TOOL_NAME_PATTERN).fullmatch
_NOT_EVERYWHERE = re.compile(r"[^a-zA-Z0-9_]")
_is_header_value = re.compile(HEADER_VALUE_PATTERN).fullmatch


def _tool_name(name: str) -> str:
    if _is_tool_name(name):
        return name
    raise _name_refused(name, TOOL_NAME_PATTERN)


def _mcp_tool_name(name: str) -> str:
    if _is_mcp_tool_name(name):
        return name
    raise _name_refused(name, MCP_TOOL_NAME_PATTERN)


def _name_refused(name: str, pattern: str) -> PydanticCustomError:
    return PydanticCustomError(
        "tool_name", "{name} must match {pattern}", {"name": quoted(name), "pattern": f"^{pattern}$"}
    )


def _header_name(name: str) -> str:
    if frames_request(name):
        raise PydanticCustomError("header_name", REFUSAL)
    return name


def _header_value(value: str) -> str:
    # A value is a secret: the message never shows it.
    if len(value) > MAX_HEADER_VALUE_BYTES or len(value.encode()) > MAX_HEADER_VALUE_BYTES:
        raise PydanticCustomError("header_size", "must have at most {limit} bytes", {"limit": MAX_HEADER_VALUE_BYTES})
    if not _is_header_value(value):
        raise PydanticCustomError("header_value", "must have no control characters")
    return value


def header_bytes(headers: dict[str, str] | None) -> int:
    return sum([len(value.encode()) for value in (headers or {}).values()])


def _headers(headers: dict[str, str]) -> dict[str, str]:
    # Everything that the peer sends is searched for each of them, in a dozen spellings.
    if header_bytes(headers) > MAX_HEADERS_BYTES:
        limit = {"limit": MAX_HEADERS_BYTES}
        raise PydanticCustomError("headers_size", "must have at most {limit} bytes in all its values", limit)
    return headers


def checked_schema(schema: object) -> object:
    """Returns a schema of bounded cost, or whatever else was sent in its place."""
    value: object = schema
    if isinstance(value, dict | list):
        value = cast("object", value)
        problem = refusal(value, encoded=encode(value), max_bytes=MAX_TOOL_SCHEMA_BYTES)
        if problem is not None:
            raise PydanticCustomError("schema_cost", "{problem}", {"problem": problem})
    return schema


def _card(card: dict[str, Any]) -> dict[str, Any]:
    name = card.get("name")
    if isinstance(name, str) and name:
        return card
    raise PydanticCustomError("card_name", "needs a non-empty string `name`")


def whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


ToolName: TypeAlias = Annotated[str, AfterValidator(_tool_name)]
McpToolName: TypeAlias = Annotated[str, AfterValidator(_mcp_tool_name)]
Url: TypeAlias = Annotated[str, StringConstraints(pattern=whole(URL_PATTERN), max_length=MAX_URL_CHARS)]
Headers: TypeAlias = Annotated[
    dict[
        Annotated[str, StringConstraints(pattern=whole(HEADER_NAME_PATTERN)), AfterValidator(_header_name)],
        Annotated[str, AfterValidator(_header_value)],
    ],
    Field(max_length=MAX_HEADERS),
    AfterValidator(_headers),
]


AnySchema: TypeAlias = Annotated[Any, AfterValidator(checked_schema)]


class Ref(BaseModel):
    """Base of tool refs. Unknown fields are accepted and stay in the stored spec."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class StoredToolModel(Ref):
    kind: Literal["stored", "mantyx"]
    id: Annotated[str, StringConstraints(pattern=whole(ID_PATTERN))]


class PluginToolModel(Ref):
    kind: Literal["server", "mantyx_plugin"]
    name: Annotated[str, StringConstraints(pattern=whole(PLUGIN_NAME_PATTERN))]


Tags: TypeAlias = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_POLICY_NAME_CHARS)]],
    Field(max_length=MAX_POLICY_ENTRIES),
]
"""What the filters of a policy match."""


class LocalToolModel(Ref):
    """`parameters` and `outputSchema` with a wrong root are coerced later, not refused."""

    kind: Literal["local"]
    name: ToolName
    description: str | None = None
    parameters: AnySchema = None
    outputSchema: AnySchema = None
    longRunning: bool | None = None
    tags: Tags | None = None
    effect: Literal["read", "idempotent", "once"] | None = None


class A2AToolModel(Ref):
    kind: Literal["a2a"]
    name: ToolName
    agentCardUrl: Url
    description: str | None = None
    headers: Headers | None = None
    contextId: Annotated[str, StringConstraints(min_length=1, max_length=MAX_CONTEXT_ID_CHARS)] | None = None


class A2ALocalToolModel(Ref):
    kind: Literal["a2a_local"]
    name: ToolName
    agentCard: Annotated[dict[str, Any], AfterValidator(_card)]
    description: str | None = None


class McpToolModel(Ref):
    kind: Literal["mcp"]
    name: ToolName
    url: Url
    headers: Headers | None = None
    toolFilter: (
        Annotated[
            list[Annotated[str, StringConstraints(max_length=MAX_TOOL_FILTER_NAME_CHARS)]],
            Field(max_length=MAX_TOOL_FILTER_NAMES),
        ]
        | None
    ) = None
    elicitation: Literal["ask", "decline"] | None = None


class McpLocalEntryModel(Ref):
    """An MCP tool as its server describes it, passed on completely."""

    passthrough: ClassVar[bool] = True

    name: McpToolName
    description: str | None = None
    inputSchema: AnySchema = None
    outputSchema: AnySchema = None


class McpLocalToolModel(Ref):
    """`name` is the client's label for the server and never part of a tool's name."""

    kind: Literal["mcp_local"]
    name: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SERVER_NAME_CHARS)]
    tools: Annotated[list[McpLocalEntryModel], Field(min_length=1, max_length=MAX_MCP_LOCAL_TOOLS)]
    serverInfo: dict[str, Any] | None = None


ToolRefModel: TypeAlias = Annotated[
    StoredToolModel
    | PluginToolModel
    | LocalToolModel
    | A2AToolModel
    | A2ALocalToolModel
    | McpToolModel
    | McpLocalToolModel,
    Discriminator("kind"),
]

KINDS = ("stored", "server", "local", "a2a", "a2a_local", "mcp", "mcp_local", "mantyx", "mantyx_plugin")
ADDRESS_FIELDS = {"a2a": "agentCardUrl", "mcp": "url"}
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
        address = ADDRESS_FIELDS.get(tool["kind"])
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
