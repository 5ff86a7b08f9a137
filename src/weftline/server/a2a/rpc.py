"""JSON-RPC for A2A: calls in, replies and errors out."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, DecodeError, Meta, Raw, Struct, UnsetType
from msgspec.json import decode, encode

from weftline.errors import WeftlineError
from weftline.text.json_size import excess
from weftline.wire.errors import wire_code
from weftline.wire.responses import JsonObject

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
TASK_NOT_FOUND = -32001
TASK_NOT_CANCELABLE = -32002
PUSH_NOT_SUPPORTED = -32003
UNSUPPORTED_OPERATION = -32004
CONTENT_TYPE_NOT_SUPPORTED = -32005
EXTENDED_CARD_NOT_CONFIGURED = -32007
VERSION_NOT_SUPPORTED = -32009

REASONS = {
    TASK_NOT_FOUND: "TASK_NOT_FOUND",
    TASK_NOT_CANCELABLE: "TASK_NOT_CANCELABLE",
    PUSH_NOT_SUPPORTED: "PUSH_NOTIFICATION_NOT_SUPPORTED",
    UNSUPPORTED_OPERATION: "UNSUPPORTED_OPERATION",
    CONTENT_TYPE_NOT_SUPPORTED: "CONTENT_TYPE_NOT_SUPPORTED",
    EXTENDED_CARD_NOT_CONFIGURED: "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
    VERSION_NOT_SUPPORTED: "VERSION_NOT_SUPPORTED",
}
"""A2A's own errors, with the names that version 1.0 sends along with their codes."""


class RpcError(Exception):
    """The error that a caller gets instead of a result.

    Args:
        path: The parameter that is wrong.
        about: Facts that belong to the error, such as the task's id.
        status: The status of the HTTP response.
    """

    def __init__(
        self, code: int, message: str, *, path: str = "", about: dict[str, Any] | None = None, status: int = 200
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = f"{path}: {message}" if path else message
        self.path = path
        self.fault = message
        """What is wrong with it, without the path."""
        self.about = about or {}
        self.status = status


def invalid(path: str, message: str) -> RpcError:
    return RpcError(INVALID_PARAMS, message, path=path)


def as_rpc(error: RpcError | WeftlineError) -> RpcError:
    """Returns a refusal with one of the server's own codes as a JSON-RPC error."""
    if isinstance(error, RpcError):
        return error
    code = INVALID_PARAMS if error.status == 400 else INTERNAL_ERROR
    return RpcError(code, error.message, about={"code": wire_code(error.code)})


Identity: TypeAlias = Annotated[Any, Meta(extra_json_schema={"type": ["string", "number", "null"]})]


class RpcCall(Struct, frozen=True):
    """A JSON-RPC request. Without an `id` it is executed but not answered."""

    jsonrpc: Literal["2.0"]
    method: str
    id: str | int | float | None = None
    params: JsonObject | UnsetType = UNSET


class Call(Struct, frozen=True):
    """A parsed request: `id` as the caller wrote it, UNSET if there was none."""

    method: str
    params: bytes
    id: str | int | float | UnsetType | None


class NotACall(Exception):
    """The body is not a JSON-RPC request. `id` is None if it cannot be read."""

    def __init__(self, code: int, message: str, *, id: str | int | float | None = None) -> None:
        super().__init__(message)
        self.error = RpcError(code, message)
        self.id = id


def parse_call(body: bytes) -> Call:
    """Parses a call. Raises `NotACall` if the body is not a JSON-RPC request or has too many values."""
    if too_much := excess(body):
        raise NotACall(INVALID_REQUEST, f"The body has {too_much}.")
    try:
        sent = decode(body, type=dict[str, Raw])
        version, identity, method = (decode(sent.get(name, b"null")) for name in ("jsonrpc", "id", "method"))
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        if _is_json(body):
            raise NotACall(INVALID_REQUEST, "The body is not a JSON-RPC request.") from None
        raise NotACall(PARSE_ERROR, f"The body is not JSON: {error}") from None
    if isinstance(identity, bool) or not isinstance(identity, str | int | float | None):
        raise NotACall(INVALID_REQUEST, "id: must be a string or a number.")
    if version != "2.0" or not isinstance(method, str):
        raise NotACall(INVALID_REQUEST, 'jsonrpc must be "2.0" and method a string.', id=identity)
    return Call(method, bytes(sent.get("params", b"{}")), identity if "id" in sent else UNSET)


def _is_json(body: bytes) -> bool:
    try:
        decode(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


class RpcFault(Struct, omit_defaults=True):
    code: int
    message: str
    data: dict[str, Any] | list[dict[str, Any]] | None = None


class RpcReply(Struct):
    """A JSON-RPC response: `result` or `error`."""

    id: Identity
    jsonrpc: Literal["2.0"] = "2.0"
    result: Any | UnsetType = UNSET
    error: RpcFault | UnsetType = UNSET


def result_body(identity: Any, result: Any) -> bytes:
    return encode(RpcReply(identity, result=result))


def error_body(identity: Any, fault: RpcFault) -> bytes:
    return encode(RpcReply(identity, error=fault))
