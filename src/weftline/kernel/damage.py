"""Whether what is stored can be read: a log has no checksums, but damage often leaves something that is not an entry.

To be asked only about runs whose format is known: in those, what cannot be decoded is damaged (see `FORMAT`).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import DecodeError, Struct
from msgspec.json import Decoder

from weftline.kernel import bodies
from weftline.kernel.entries import (
    KIND,
    PROVIDER_CALL,
    TEXT_DELTA,
    THINKING_DELTA,
    TOOL_NOTE,
    TOOL_PROGRESS,
    decode_fact,
)
from weftline.kernel.notes import (
    ARGS_DELTA,
    CHILD_NOTE,
    PROMPT_NOTE,
    RUN_NOTE,
    ArgsDelta,
    ChildNote,
    PromptNote,
    RunNote,
)


class _Delta(Struct, gc=False):
    text: str


UNREADABLE = (DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises."""

BODIES: dict[str, Callable[[bytes], object]] = {
    "run.created": bodies.decode_created,
    "attempt.failed": bodies.decode_failed,
    "turn.completed": bodies.decode_turn,
    "instructions.rendered": bodies.decode_rendered,
    "deploy.adopted": bodies.decode_rendered,
    "state.changed": bodies.decode_state,
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
    "message.queued": bodies.decode_queued,
    "messages.taken": bodies.decode_taken,
    "compaction.failed": bodies.decode_failed,
    "context.compacted": bodies.decode_summary,
    "policy.decided": bodies.decode_policy,
    "run.ended": bodies.decode_ended,
}
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


def observations_are_readable(kind: str, bodies_joined: bytes, count: int) -> bool:
    """Whether these are so many observations of that kind. JSON has no newlines of its own, so they are one list."""
    decode_list = OBSERVATIONS.get(kind)
    try:
        return decode_list is not None and len(decode_list(b"[%b]" % bodies_joined.replace(b"\n", b","))) == count
    except UNREADABLE:
        return False
