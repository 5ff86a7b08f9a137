"""Frames of the stream, and the events of observations: deltas and notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, DecodeError, Raw
from msgspec.json import decode, encode

from weftline.framing import one_line
from weftline.kernel import bodies
from weftline.kernel.notes import (
    ARGS_DELTA,
    CHILD_NOTE,
    PROMPT_NOTE,
    PROVIDER_CALL,
    RUN_NOTE,
    TEXT_DELTA,
    THINKING_DELTA,
    TOOL_NOTE,
    TOOL_PROGRESS,
)
from weftline.outcome import preview_of

COPY_LIMIT = 100 * 1024
"""How many bytes of a result an informational event shows; the model always gets the whole."""
NESTED_LIMIT = 1_000_000
"""Payload size in bytes above which the nested copy is left out."""

OBSERVED = {
    TEXT_DELTA: "assistant_delta",
    THINKING_DELTA: "thinking_delta",
    PROVIDER_CALL: "tool_result",
    TOOL_PROGRESS: "tool_progress",
    TOOL_NOTE: "note",
}
"""The events of observations, which are not folded."""
HIDDEN = frozenset({RUN_NOTE, PROMPT_NOTE, CHILD_NOTE, ARGS_DELTA})
"""Kinds that only a stream with a profile has."""
_HEADS_KEPT = 1024
"""Most runs have fewer entries. Beyond that the beginnings of frames are not kept."""
_heads: dict[str, list[bytes]] = {kind: [] for kind in OBSERVED}
"""The beginnings of frames by kind and seq: those of all runs are alike."""


def frame(seq: int, event: str, payload: bytes) -> bytes:
    """Returns one SSE frame in the hybrid shape."""
    name, payload = event.encode(), one_line(payload)
    if payload == b"{}":
        return b'id: %d\nevent: %b\ndata: {"seq":%d,"type":"%b","data":{}}\n\n' % (seq, name, seq, name)
    fields = payload[1:-1]
    if len(payload) > NESTED_LIMIT:
        return b'id: %d\nevent: %b\ndata: {"seq":%d,"type":"%b",%b}\n\n' % (seq, name, seq, name, fields)
    shape = b'id: %d\nevent: %b\ndata: {"seq":%d,"type":"%b",%b,"data":%b}\n\n'
    return shape % (seq, name, seq, name, fields, payload)


def delta_frames(first_seq: int, kind: str, bodies_joined: bytes, *, after: int, upto: int) -> bytes:
    """Returns the frames of consecutive observations of one kind, those in (after, upto].

    Almost everything sent is deltas, whose stored bodies are their payloads: all frames are joined at once.
    """
    first_seq, payloads = _payloads(first_seq, kind, bodies_joined, after=after, upto=upto)
    pieces = [b"", b"", b',"data":{', b"", b"}}\n\n"] * len(payloads)
    pieces[0::5] = _frame_heads(kind, first_seq, first_seq + len(payloads))
    pieces[1::5] = pieces[3::5] = payloads
    return b"".join(pieces)


def _frame_heads(kind: str, first_seq: int, end: int) -> list[bytes]:
    """What frames begin with, up to their payloads, for the seqs from the first to the one before `end`."""
    kept = _heads[kind]
    if end > _HEADS_KEPT:
        return _new_heads(kind, first_seq, end)
    if end > len(kept):
        kept += _new_heads(kind, len(kept), end)
    return kept[first_seq:end]


def _new_heads(kind: str, first_seq: int, end: int) -> list[bytes]:
    event = OBSERVED[kind].encode()
    shape = b'id: %d\nevent: %b\ndata: {"seq":%d,"type":"%b",'
    return [shape % (seq, event, seq, event) for seq in range(first_seq, end)]


def observed(
    first_seq: int, kind: str, bodies_joined: bytes, *, after: int, upto: int
) -> Iterator[tuple[int, str, str]]:
    """Yields seq, event and payload of the same observations, for a reader in this process."""
    first_seq, payloads = _payloads(first_seq, kind, bodies_joined, after=after, upto=upto)
    for seq, fields in enumerate(payloads, first_seq):
        yield seq, OBSERVED[kind], f"{{{fields.decode()}}}"


def _payloads(first_seq: int, kind: str, bodies_joined: bytes, *, after: int, upto: int) -> tuple[int, list[bytes]]:
    """Returns the first seq, and each payload without its braces."""
    split = bodies_joined[1:-1].split(b"}\n{")
    if first_seq <= after:
        split, first_seq = split[after + 1 - first_seq :], after + 1
    if first_seq + len(split) - 1 > upto:
        split = split[: upto + 1 - first_seq]
    payload_of = _CONVERTED.get(kind)
    if payload_of is not None:
        split = [payload_of(b"{%b}" % fields)[1:-1] for fields in split]
    return first_seq, split


def provider_call(body: bytes) -> bytes:
    """Returns the payload of the `tool_result` for a tool that the provider itself ran, from the stored note.

    `toolType` repeats the name: `type` is the event's own.
    """
    note = bodies.decode_note(body)
    part = note.call
    result = bodies.provider_result(part)
    return encode(
        {
            "toolUseId": part.id,
            "name": part.name,
            "toolType": part.name,
            "provider": part.provider,
            "status": part.status,
            "ok": part.status != "failed",
            "summary": preview_of(result),
            "result": excerpt(result),
            "args": {} if part.input is UNSET else _json(part.input),
            "phase": "end",
            "turn": note.turn,
        }
    )


def tool_progress(body: bytes) -> bytes:
    """Returns the payload of a `tool_progress`, from the stored note."""
    note = bodies.decode_progress(body)
    payload: dict[str, Any] = {"toolUseId": note.call, "name": note.name, "progress": note.progress}
    if note.total is not None:
        payload["total"] = note.total
    if note.message:
        payload["message"] = note.message
    return encode(payload)


def tool_note(body: bytes) -> bytes:
    """Returns the payload of a `note`, from the stored note."""
    note = bodies.decode_tool_note(body)
    return encode({"toolUseId": note.call, "name": note.name, "kind": note.kind, "note": note.data})


_CONVERTED = {PROVIDER_CALL: provider_call, TOOL_PROGRESS: tool_progress, TOOL_NOTE: tool_note}
"""How the payloads are made of what is stored, where the two differ."""


def _json(raw: Raw) -> Any:
    try:
        return decode(raw)
    except (DecodeError, RecursionError):
        return bytes(raw).decode(errors="replace")


def excerpt(text: str) -> str:
    """Returns the part of a result that an event shows."""
    if len(text) * 4 <= COPY_LIMIT:
        return text
    data = text.encode()
    return text if len(data) <= COPY_LIMIT else data[:COPY_LIMIT].decode(errors="ignore")
