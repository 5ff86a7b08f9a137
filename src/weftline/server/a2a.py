"""A2A 0.3 over JSON-RPC: what callers send, and a workspace's runs as the tasks and messages they read."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, DecodeError, Meta, Raw, Struct, UnsetType, field
from msgspec.json import Decoder, decode, encode

from weftline.errors import WeftlineError
from weftline.json_size import MAX_JSON_VALUES, has_more_values
from weftline.server.following import CONTEXT_KEY, usage
from weftline.store.records.agents import AgentRow
from weftline.wire.limits import MAX_METADATA_VALUE_CHARS
from weftline.wire.responses import JsonObject, RunView, iso

PROTOCOL_VERSION = "0.3.0"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
TASK_NOT_FOUND = -32001
TASK_NOT_CANCELABLE = -32002
CONTENT_TYPE_NOT_SUPPORTED = -32005

STATES = {
    "queued": "submitted",
    "running": "working",
    "paused": "input-required",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "canceled",
}


class RpcError(Exception):
    """What a caller is told in place of a result."""

    def __init__(self, code: int, message: str, *, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class RpcCall(Struct, frozen=True):
    """A JSON-RPC request; `id` as the caller wrote it."""

    jsonrpc: Literal["2.0"]
    method: str
    id: str | int | float | None = None
    params: JsonObject | UnsetType = UNSET


Identity: TypeAlias = Annotated[Any, Meta(extra_json_schema={"type": ["string", "number", "null"]})]


class _Part(Struct):
    kind: str = ""
    type: str = ""
    text: str = ""


class _Message(Struct, rename="camel"):
    parts: list[_Part]
    context_id: str | None = None
    task_id: str | None = None


class _Configuration(Struct):
    blocking: bool | None = None


class MessageParams(Struct):
    message: _Message
    configuration: _Configuration | None = None

    @property
    def text(self) -> str:
        """The text parts, a line break between them."""
        return "\n".join(part.text for part in self.message.parts if "text" in (part.kind, part.type))


class TaskParams(Struct):
    id: str


_message_params = Decoder(MessageParams)
_task_params = Decoder(TaskParams)


def parse_call(body: bytes) -> RpcCall:
    """Raises `RpcError` for what is no JSON-RPC request, or one with too many values."""
    if has_more_values(body):
        raise RpcError(INVALID_REQUEST, f"The body has more than {MAX_JSON_VALUES:,} JSON values.")
    try:
        sent = decode(body, type=dict[str, Raw])
        version, identity, method = (decode(sent.get(name, b"null")) for name in ("jsonrpc", "id", "method"))
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        if _is_json(body):
            raise RpcError(INVALID_REQUEST, "The body is no JSON-RPC request.") from None
        raise RpcError(PARSE_ERROR, f"The body is not JSON: {error}") from None
    if isinstance(identity, bool) or not isinstance(identity, str | int | float | None):
        raise RpcError(INVALID_REQUEST, "id: must be a string or a number.")
    if version != "2.0" or not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, 'jsonrpc must be "2.0" and method a string.', data={"id": identity})
    return RpcCall("2.0", method, identity, sent.get("params", UNSET))


def message_params(call: RpcCall) -> MessageParams:
    sent = _params(_message_params, call)
    if not sent.message.parts or not sent.text.strip():
        code = CONTENT_TYPE_NOT_SUPPORTED if sent.message.parts and not sent.text else INVALID_PARAMS
        raise RpcError(code, "message.parts: give at least one text part that is not empty.")
    context = sent.message.context_id
    if context is not None and not (0 < len(context) <= MAX_METADATA_VALUE_CHARS and "\x00" not in context):
        raise RpcError(INVALID_PARAMS, f"message.contextId: must have 1 to {MAX_METADATA_VALUE_CHARS} characters.")
    return sent


def task_params(call: RpcCall) -> TaskParams:
    return _params(_task_params, call)


def _params(decoder: Decoder[Any], call: RpcCall) -> Any:
    try:
        return decoder.decode(b"{}" if call.params is UNSET else call.params)
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RpcError(INVALID_PARAMS, f"params: {error}") from None


def _is_json(body: bytes) -> bool:
    try:
        decode(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


# Answers


class RpcFault(Struct, omit_defaults=True):
    code: int
    message: str
    data: dict[str, Any] | None = None


class RpcReply(Struct):
    """A JSON-RPC response: `result` or `error`."""

    id: Identity
    jsonrpc: Literal["2.0"] = "2.0"
    result: Any | UnsetType = UNSET
    error: RpcFault | UnsetType = UNSET


def result_body(identity: Any, result: Any) -> bytes:
    return encode(RpcReply(identity, result=result))


def error_body(identity: Any, error: RpcError | WeftlineError) -> bytes:
    """The JSON-RPC error of a call; of what the server refused by its own code."""
    if isinstance(error, RpcError):
        return encode(RpcReply(identity, error=RpcFault(error.code, error.message, error.data)))
    code = INVALID_PARAMS if error.status == 400 else INTERNAL_ERROR
    return encode(RpcReply(identity, error=RpcFault(code, error.message, {"code": error.code})))


class _Text(Struct):
    text: str
    kind: str = "text"


class Message(Struct, rename="camel", omit_defaults=True):
    """What the agent says. Fixed words come from factories, since plain defaults are omitted."""

    message_id: str
    parts: list[_Text]
    context_id: str | None = None
    task_id: str | None = None
    metadata: dict[str, Any] | None = None
    kind: str = field(default_factory=lambda: "message")
    role: str = field(default_factory=lambda: "agent")


class _Status(Struct, omit_defaults=True):
    state: str
    timestamp: str
    message: Message | None = None


class Artifact(Struct, rename="camel"):
    artifact_id: str
    parts: list[_Text]


class Task(Struct, rename="camel", omit_defaults=True):
    id: str
    context_id: str
    status: _Status
    artifacts: list[Artifact] | None = None
    metadata: dict[str, Any] | None = None
    kind: str = field(default_factory=lambda: "task")


class ArtifactUpdate(Struct, rename="camel"):
    task_id: str
    context_id: str
    artifact: Artifact
    append: bool
    last_chunk: bool
    kind: str = "artifact-update"


class StatusUpdate(Struct, rename="camel", omit_defaults=True):
    task_id: str
    context_id: str
    status: _Status
    final: bool = field(default_factory=lambda: False)
    metadata: dict[str, Any] | None = None
    kind: str = field(default_factory=lambda: "status-update")


def context_of(run: RunView) -> str:
    """The context of a run; one that was started by other means is a context of its own."""
    return run.metadata.get(CONTEXT_KEY) or run.session_id or run.id


def message_of(run: RunView) -> Message:
    """The answer of a run that succeeded. Raises `RpcError` for one that did not."""
    if run.status != "succeeded":
        data = {"taskId": run.id, "contextId": context_of(run), "status": run.status, "errorClass": run.error_class}
        raise RpcError(INTERNAL_ERROR, run.error or f"The run was {run.status}.", data=data)
    return Message(f"msg_{run.id}", [_Text(run.final_text or "")], context_of(run), run.id, usage(run))


def task_of(run: RunView) -> Task:
    done = run.status == "succeeded"
    return Task(
        run.id,
        context_of(run),
        status_of(run),
        artifacts=[Artifact("result", [_Text(run.final_text or "")])] if done else None,
        metadata=usage(run) if run.finished_us is not None else None,
    )


def status_of(run: RunView) -> _Status:
    at = iso(run.finished_us or run.started_us or run.created_us)
    text = run.final_text if run.status == "succeeded" else run.error
    message = Message(f"msg_{run.id}", [_Text(text)], context_of(run), run.id) if text else None
    return _Status(STATES[run.status], at, message)


def chunk(run: RunView, artifact: str, text: str, *, append: bool) -> ArtifactUpdate:
    return ArtifactUpdate(run.id, context_of(run), Artifact(artifact, [_Text(text)]), append, False)


def final_update(run: RunView) -> StatusUpdate:
    return StatusUpdate(run.id, context_of(run), status_of(run), True, usage(run))


def new_context() -> str:
    return f"ctx_{secrets.token_hex(12)}"


class Capabilities(Struct, frozen=True, rename="camel"):
    streaming: bool = True
    push_notifications: bool = False
    state_transition_history: bool = False


class Skill(Struct):
    id: str
    name: str
    description: str
    tags: tuple[str, ...]


class AgentCard(Struct, rename="camel", kw_only=True):
    protocol_version: str = PROTOCOL_VERSION
    name: str
    description: str
    url: str
    preferred_transport: str = "JSONRPC"
    version: str
    capabilities: Capabilities = Capabilities()
    default_input_modes: tuple[str, ...] = ("text/plain",)
    default_output_modes: tuple[str, ...] = ("text/plain",)
    skills: list[Skill]
    security_schemes: dict[str, dict[str, str]]
    security: list[dict[str, list[str]]]


class AgentCards(Struct):
    agents: list[AgentCard]


def card(agent: AgentRow, *, url: str) -> AgentCard:
    """The agent card; `url` is the agent's endpoint."""
    about = agent.description or agent.name
    return AgentCard(
        name=agent.name,
        description=about,
        url=url,
        version=iso(agent.updated_at),
        skills=[Skill(agent.slug, agent.name, about, ("agent",))],
        security_schemes={"bearer": {"type": "http", "scheme": "bearer"}},
        security=[{"bearer": []}],
    )
