"""The frames of a stream: each is one of `weftline.events`, with its payload."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct

from weftline.client.errors import NetworkError, ToolDeliveryError
from weftline.events import AnyEvent, CallOpened, Event, Peer
from weftline.events.decode import decode_event
from weftline.net.sse import SseEvent


class ToolDeliveryFailed(Event, frozen=True):
    """The answer to a call could not be delivered. Created by the client itself; no log has it."""

    call_id: str = ""
    error: ToolDeliveryError | None = None


ClientEvent: TypeAlias = AnyEvent | ToolDeliveryFailed


class Frame(Struct, frozen=True, kw_only=True):
    """An event and its wire format: its type there, and in `data` its whole payload."""

    event: ClientEvent
    type: str
    data: dict[str, Any]

    @property
    def seq(self) -> int:
        return self.event.seq


class OfferedCall(Struct, frozen=True, rename="camel"):
    """A call that the client has to answer. `kind` is the sort of tool; for an MCP tool, the names are the server's."""

    tool_use_id: str = ""
    name: str = ""
    args: dict[str, Any] = {}
    kind: str = "local"
    mcp_server: str | None = None
    mcp_tool_name: str | None = None
    attempt: int = 1
    """How often it was offered, including this time."""


def offered(frame: Frame) -> OfferedCall | None:
    """Returns the call that a frame offers to this client, if it does."""
    event = frame.event
    if not isinstance(event, CallOpened) or event.client is None:
        return None
    peer = event.peer or Peer()
    return OfferedCall(
        event.call_id, event.name, event.args, event.client, peer.mcp_server, peer.mcp_tool_name, event.attempt
    )


_ENVELOPE = ("seq", "type", "data")


def parse_frame(sent: SseEvent, *, run_id: str, last_seq: int = 0) -> Frame:
    """Parses a frame of a stream, whether its body is flat, nested under `data`, or both.

    Raises:
        NetworkError: if the frame has no JSON object; the stream is then reopened.
    """
    try:
        body: object = msgspec.json.decode(sent.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NetworkError(f"the stream of {run_id} has a frame that is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise NetworkError(f"the stream of {run_id} has a frame that is not a JSON object")
    fields = cast("dict[str, Any]", body)
    nested = fields.get("data")
    payload = {name: value for name, value in fields.items() if name not in _ENVELOPE}
    if isinstance(nested, dict):
        payload |= cast("dict[str, Any]", nested)
    kind = sent.event or str(fields.get("type") or "")
    return frame_of(kind, payload, run_id=run_id, seq=_seq(fields.get("seq"), sent.id, last_seq))


def frame_of(kind: str, payload: dict[str, Any], *, run_id: str, seq: int) -> Frame:
    return Frame(event=decode_event(kind, payload, run_id=run_id, seq=seq), type=kind, data=payload)


def _seq(inside: object, line: str, last_seq: int) -> int:
    if isinstance(inside, int) and not isinstance(inside, bool):
        return inside
    # Events without numbers are counted here: the first event of a run is 1, and there are no gaps.
    return int(line) if line.isascii() and line.isdigit() and len(line) < 19 else last_seq + 1
