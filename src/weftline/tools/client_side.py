"""Tools that the client executes: plain local ones, and A2A agents and MCP servers that only the client can reach.

The runtime offers their calls on the stream and waits for the client's answer, so nothing here touches the network.
A client tool that declares nothing is offered again after a crash, hence the effect `idempotent`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import msgspec
from msgspec import UNSET, Raw

from weftline import prompts
from weftline.kernel.bodies import A2APeer, McpPeer, Peer
from weftline.kernel.entries import Effect
from weftline.providers.base import ToolSpec
from weftline.tools.arguments import InvalidArguments
from weftline.tools.base import PLAIN, ClientKind, Reconciled, Tool, ToolContext, ToolOutput, Traits, Unknown
from weftline.tools.checking import checked_args
from weftline.tools.schema import EMPTY_OBJECT_SCHEMA, object_root, object_schema

A2A_PARAMETERS = Raw(
    b'{"type":"object","properties":{"message":{"type":"string",'
    b'"description":"The full task for the agent, as one message."}},"required":["message"]}'
)
"""The parameters of every A2A agent, whether the server or the client dials it."""

MAX_SKILLS = 12
_NULL = Raw(b"null")


class _ClientTool:
    """Common base of client tools: arguments are checked against the schema before the call is offered."""

    effect: Effect = "idempotent"
    concurrent = True
    timeout_s: float | None = None
    client: ClientKind | None
    traits: Traits = PLAIN

    def __init__(self, spec: ToolSpec, *, client: ClientKind, peer: Peer | None = None) -> None:
        self.spec = spec
        self.client = client
        self.peer = peer

    @property
    def name(self) -> str:
        return self.spec.name

    async def prepare(self, args: str) -> bytes:
        return await checked_args(args, self.spec)

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        raise RuntimeError(f"{self.name} is executed by the client and cannot be invoked here")

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        return Unknown()


class LocalTool(_ClientTool):
    """A tool of kind `local`: name, description and schema as the client sent them.

    Args:
        name: The model-facing name.
        description: What the model reads; `long_running` appends a sentence to it.
        parameters: JSON Schema. Anything but an object schema with properties becomes the empty object schema.
        output_schema: JSON Schema of the result; kept when its root is an object, otherwise dropped.
        long_running: Tells the model not to repeat a call that answered with an intermediate status.
        tags: For the filters of a policy.
        effect: What executing a call twice would mean; `idempotent` by default.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        parameters: Raw | None = None,
        output_schema: Raw | None = None,
        long_running: bool = False,
        tags: Iterable[str] = (),
        effect: Effect | None = None,
    ) -> None:
        self.effect: Effect = effect or "idempotent"
        self.traits = Traits(tags=frozenset(tags))
        if long_running:
            description = (
                f"{description}\n\n{prompts.calls.LONG_RUNNING}" if description else prompts.calls.LONG_RUNNING
            )
        spec = ToolSpec(name, description, object_schema(parameters), object_root(output_schema) or UNSET)
        super().__init__(spec, client="local")


class A2ALocalTool(_ClientTool):
    """An A2A agent that the client dials. The offer of a call contains the whole card.

    Args:
        name: The model-facing name.
        card: The agent card, any JSON object; it is passed on unchanged.
        description: What the model reads; composed of the card's name, description and skills when not given.
    """

    def __init__(self, name: str, *, card: Raw, description: str | None = None) -> None:
        spec = ToolSpec(name, description or card_description(card, fallback=name), A2A_PARAMETERS)
        super().__init__(spec, client="a2a_local", peer=A2APeer(card))


class McpLocalTool(_ClientTool):
    """One tool of an MCP server that the client talks to, under the name that the client gave it.

    Args:
        entry: The tool as the server lists it (`name`, `description`, `inputSchema`, `annotations`, …).
        server: The client's name for the server.
        server_info: What the server says about itself, any JSON; it is passed on unchanged.
    """

    def __init__(self, name: str, *, entry: Raw, server: str, server_info: Raw | None = None) -> None:
        fields = msgspec.json.decode(bytes(entry), type=dict[str, Raw])
        schema = object_root(fields.get("inputSchema")) or EMPTY_OBJECT_SCHEMA
        annotations = fields.get("annotations", _NULL)
        peer = McpPeer(
            server,
            name,
            UNSET if server_info is None else server_info,
            UNSET if bytes(annotations) == b"null" else annotations,
        )
        super().__init__(ToolSpec(name, _text(fields.get("description")), schema), client="mcp_local", peer=peer)


def input_invalid_result(tool: Tool, error: InvalidArguments) -> ToolOutput:
    """Returns what the model reads instead of a call with invalid arguments, which the client never sees."""
    text = prompts.calls.invalid_input(tool.spec.name, message=error.message, issues=error.issues)
    return ToolOutput.of(text, is_error=True)


def card_description(card: Raw, *, fallback: str) -> str:
    """Returns what a model reads about a card's agent: its purpose, and a line for each of its first 12 skills."""
    fields = _fields(card)
    name, about = _line(fields.get("name")) or fallback, _line(fields.get("description"))
    lines = [prompts.remote.delegate(name, about)]
    skills = fields.get("skills")
    if isinstance(skills, list):
        for skill in cast("list[object]", skills)[:MAX_SKILLS]:
            entry = cast("dict[str, object]", skill) if isinstance(skill, dict) else {}
            parts = [_line(entry.get("name")) or _line(entry.get("id")), _line(entry.get("description"))]
            if any(parts):
                lines.append("- " + ": ".join(part for part in parts if part))
    return "\n".join(lines)


def _fields(raw: Raw) -> dict[str, object]:
    value: object = msgspec.json.decode(bytes(raw))
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _line(value: object) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""


def _text(raw: Raw | None) -> str:
    value: object = None if raw is None else msgspec.json.decode(bytes(raw))
    return value if isinstance(value, str) else ""
