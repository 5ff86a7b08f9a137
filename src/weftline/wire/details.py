"""A stream with a profile: selected events, including details, each with its context.

One entry may have several events, with the same `seq`. Only its last frame has an `id:` line, so that a reader who
resumes from there has missed nothing; `key` identifies an event that was seen before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.json import decode, encode
from msgspec.structs import asdict

from weftline.details import AnyDetail
from weftline.details.profiles import DETAILS, types_of
from weftline.details.projection import DetailProjection, comes_after, key_of, type_of
from weftline.kernel.entries import Fact
from weftline.wire.events import TERMINAL_EVENTS, project
from weftline.wire.observed import OBSERVED, frame, observed
from weftline.wire.responses import iso

Show: TypeAlias = Callable[[Fact, bytes, tuple[str, bytes]], tuple[str, bytes]]
_EVENTS = frozenset(
    {
        "started",
        "turn_restarted",
        "child_started",
        "child_ended",
        "await_opened",
        "await_closed",
        "messages_taken",
        "output_rejected",
        "policy_decision",
        "final_forced",
        "context_compacted",
        "context_restored",
        "loop_detected",
        "tool_budget_exceeded",
        "run_paused",
        "run_resumed",
        "assistant_message",
        "tool_call",
        "local_tool_call",
        "local_tool_claimed",
        "local_tool_fallback",
        "local_tool_result_in",
    }
    | TERMINAL_EVENTS
    | {*OBSERVED.values()}
)
TYPES = _EVENTS | DETAILS.keys()
"""All types of events."""
_WORDS = {"call_id": "toolUseId", "child_id": "childRunId", "thread": "sessionId", "id": "awaitId"}


def parse_profile(asked: str | None) -> frozenset[str] | None:
    """Returns the types in a query: a profile, or types separated by commas. None for the default profile."""
    if asked is None:
        return None
    names = [name.strip() for name in asked.split(",")]
    return types_of(names[0] if len(names) == 1 else names, known=TYPES)


def _unchanged(head: Fact, body: bytes, event: tuple[str, bytes]) -> tuple[str, bytes]:
    return event


class ProfiledFrames:
    """Builds the frames of a stream with a profile. `show` returns an entry's event as streams show it."""

    def __init__(self, projection: DetailProjection, types: frozenset[str], *, show: Show = _unchanged) -> None:
        self._projection = projection
        self._types = types | TERMINAL_EVENTS
        self._show = show

    def of_fact(self, head: Fact, body: bytes, *, seq: int, at: int) -> bytes:
        main = project(head, body, run_id=self._projection.facts.run_id)
        main = None if main is None else self._show(head, body, main)
        details = self._projection.of_fact(head, body, seq=seq, at=at)
        earlier = [_to_wire(detail) for detail in details if not comes_after(detail, head)]
        later = [_to_wire(detail) for detail in details if comes_after(detail, head)]
        events = [] if main is None else [(main[0], self._about(*main, seq=seq, at=at))]
        return self._framed(seq, [*earlier, *events, *later])

    def of_observations(self, first_seq: int, kind: str, joined: bytes, *, at: int, after: int, upto: int) -> bytes:
        frames: list[bytes] = []
        payloads = observed(first_seq, kind, joined, after=after, upto=upto) if kind in OBSERVED else ()
        events = {seq: (name, payload.encode()) for seq, name, payload in payloads}
        for seq, body in enumerate(joined.split(b"\n"), first_seq):
            if not after < seq <= upto:
                continue
            details = [_to_wire(detail) for detail in self._projection.of_observation(kind, body, seq=seq, at=at)]
            main = events.get(seq)
            plain = [] if main is None else [(main[0], self._about(*main, seq=seq, at=at))]
            frames.append(self._framed(seq, [*details, *plain]))
        return b"".join(frames)

    def _framed(self, seq: int, events: list[tuple[str, bytes]]) -> bytes:
        wanted = [event for event in events if event[0] in self._types]
        if not wanted:
            return b""
        frames = [frame(seq, *event) for event in wanted]
        return b"".join([*[one.partition(b"\n")[2] for one in frames[:-1]], frames[-1]])

    def _about(self, name: str, payload: bytes, *, seq: int, at: int) -> bytes:
        """Returns the payload of an event with its context."""
        facts = self._projection.facts
        about: dict[str, Any] = {
            "runId": facts.run_id,
            "agent": facts.agent,
            "sessionId": facts.thread,
            "turnId": facts.turn_id,
            "at": iso(at),
            "key": key_of(seq, name),
        }
        if name == "started":
            return encode(decode(payload) | about)
        encoded = encode(about)
        return encoded if payload == b"{}" else payload[:-1] + b"," + encoded[1:]


def _to_wire(detail: AnyDetail) -> tuple[str, bytes]:
    """Returns the type and the payload of a detail."""
    fields: dict[str, Any] = asdict(detail)
    del fields["seq"]
    payload = {wire_name(name): value for name, value in fields.items()}
    payload["at"] = iso(detail.at)
    if "items" in payload:
        payload["items"] = [{_WORDS.get(name, name): value for name, value in one.items()} for one in fields["items"]]
    return type_of(type(detail)), encode(payload)


def wire_name(name: str) -> str:
    """Returns the wire name of a detail's field."""
    if name in _WORDS:
        return _WORDS[name]
    first, *more = name.split("_")
    return first + "".join([word.capitalize() for word in more])
