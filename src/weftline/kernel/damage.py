"""Detects damaged entries. A log has no checksums, but damage often leaves something that is not a valid entry.

Use this only for runs whose format is known: there, an entry that cannot be decoded is damaged (see `FORMAT`).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import DecodeError, Struct
from msgspec.json import Decoder

from weftline.kernel import bodies
from weftline.kernel.entries import KIND, CallOpened, MessageQueued, TurnCompleted, decode_fact
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
    ArgsDelta,
    ChildNote,
    PromptNote,
    RunNote,
)
from weftline.messages import User


class _Delta(Struct, gc=False):
    text: str
    turn: int = 0
    attempt: int = 1
    run_id: str = ""
    seq: int = 0


UNREADABLE = (DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that decoding raises."""

BODIES: dict[str, Callable[[bytes], object]] = {
    "run.created": bodies.decode_created,
    "attempt.started": bodies.decode_offered,
    "attempt.failed": bodies.decode_failed,
    "turn.completed": bodies.decode_turn,
    "instructions.rendered": bodies.decode_rendered,
    "deploy.adopted": bodies.decode_rendered,
    "state.changed": bodies.decode_state_changed,
    "output.rejected": bodies.decode_text,
    "call.asked": bodies.decode_asked,
    "call.gated": bodies.decode_gated,
    "await.opened": bodies.decode_await,
    "await.closed": bodies.decode_answer,
    "call.opened": bodies.decode_opened,
    "call.unclaimed": bodies.decode_opened,
    "child.ended": bodies.decode_ended,
    "call.closed": bodies.decode_closed,
    "results.over_budget": bodies.decode_text,
    "loop.detected": bodies.decode_text,
    "final.forced": bodies.decode_text,
    "seat.taken": bodies.decode_spoken,
    "seat.closing": bodies.decode_text,
    "seat.asked_on": bodies.decode_text,
    "messages.edited": bodies.decode_edited,
    "message.queued": bodies.decode_queued,
    "messages.taken": bodies.decode_taken,
    "compaction.failed": bodies.decode_failed,
    "context.compacted": bodies.decode_summary,
    "policy.decided": bodies.decode_policy,
    "run.paused": bodies.decode_control,
    "run.resumed": bodies.decode_control,
    "run.ended": bodies.decode_ended,
}
_NEVER_EMPTY = frozenset(
    {
        "run.created",
        "turn.completed",
        "instructions.rendered",
        "state.changed",
        "call.asked",
        "call.gated",
        "await.opened",
        "child.ended",
        "call.closed",
        "message.queued",
        "context.compacted",
        "run.ended",
    }
)
"""Facts that are always written with a body, and whose readers rely on it."""
OBSERVATIONS: dict[str, Callable[[bytes], list[object]]] = {
    TEXT_DELTA: Decoder(list[_Delta]).decode,
    THINKING_DELTA: Decoder(list[_Delta]).decode,
    PROVIDER_CALL: Decoder(list[bodies.ProviderNote]).decode,
    TOOL_PROGRESS: Decoder(list[bodies.ProgressNote]).decode,
    TOOL_NOTE: Decoder(list[bodies.ToolNote]).decode,
    ARGS_DELTA: Decoder(list[ArgsDelta]).decode,
    RUN_NOTE: Decoder(list[RunNote]).decode,
    PROMPT_NOTE: Decoder(list[PromptNote]).decode,
    CHILD_NOTE: Decoder(list[ChildNote]).decode,
}  # pyright: ignore[reportAssignmentType]  # a list that is only counted


def fact_is_readable(kind: str, head: bytes, body: bytes) -> bool:
    try:
        if KIND[type(decode_fact.decode(head))] != kind:
            return False
        decode_body = BODIES.get(kind)
        if decode_body is not None and body:
            decode_body(body)
    except UNREADABLE:
        return False
    return True


def fact_is_whole(kind: str, head: bytes, body: bytes) -> bool:
    """Returns True if a fact can be decoded and has everything that readers rely on. A fact from elsewhere may not be
    one of ours.
    """
    if not fact_is_readable(kind, head, body):
        return False
    fact = decode_fact.decode(head)
    if not body:
        return kind not in _NEVER_EMPTY and not (isinstance(fact, CallOpened) and not fact.blocked)
    try:
        match fact:
            case TurnCompleted():
                turn = bodies.decode_turn(body)
                return len(turn.calls) in (0, len(turn.message.calls))
            case MessageQueued():
                return isinstance(bodies.decode_message(body), User)
            case _:
                return True
    except UNREADABLE:
        return False


def observations_are_readable(kind: str, bodies_joined: bytes, count: int) -> bool:
    """Returns True if these are `count` observations of that kind. JSON contains no raw newlines, so they can be
    decoded as one list.
    """
    decode_list = OBSERVATIONS.get(kind)
    try:
        return decode_list is not None and len(decode_list(b"[%b]" % bodies_joined.replace(b"\n", b","))) == count
    except UNREADABLE:
        return False
