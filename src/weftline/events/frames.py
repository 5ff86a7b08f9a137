"""The frames of a stream of server-sent events.

A frame is spliced: its payload is encoded once and appears twice, flat and under `data`, because real clients need
both. Deltas, of which most of a stream consists, are spliced as they are stored and never become objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.json import decode, encode

from weftline.events import classes as events
from weftline.events.classes import AnyEvent, Event
from weftline.events.details import AnyDetail, Detail
from weftline.events.parts import iso
from weftline.events.project import OBSERVED_AS_STORED, STORED, project
from weftline.events.project_details import DetailProjection, key_of
from weftline.events.wire import ENDS, ROWS_OF, encode_detail, encode_event
from weftline.framing import one_line
from weftline.kernel.entries import Fact
from weftline.kernel.notes import PROVIDER_CALL, TEXT_DELTA, THINKING_DELTA, TOOL_NOTE, TOOL_PROGRESS

NESTED_LIMIT = 1_000_000
"""Payload size in bytes above which the nested copy is left out."""
_HEADS_KEPT = 1024
"""Most runs have fewer entries. Beyond that the beginnings of frames are not kept."""


class Splice(Struct):
    """How the stored bodies of one kind of observation become frames: what goes before, between and after them.

    `head` has two places for the seq. `reads` makes the payload where the stored body is not the payload already.
    """

    type: str
    head: bytes
    middle: bytes = b',"data":{'
    tail: bytes = b"}}\n\n"
    reads: bool = False
    kept: list[bytes] = []
    """The heads by seq: those of all runs are alike."""

    def heads(self, first_seq: int, end: int) -> list[bytes]:
        """Returns the heads of the seqs from the first to the one before `end`."""
        kept = self.kept
        if end > _HEADS_KEPT:
            return self._new_heads(first_seq, end)
        if end > len(kept):
            kept += self._new_heads(len(kept), end)
        return kept[first_seq:end]

    def _new_heads(self, first_seq: int, end: int) -> list[bytes]:
        head = self.head
        return [head % (seq, seq) for seq in range(first_seq, end)]


@lru_cache(maxsize=256)
def _head(event: str) -> bytes:
    """What the frames of a type of event begin with; both places are for the seq."""
    name = event.encode()
    return b'id: %%d\nevent: %b\ndata: {"seq":%%d,"type":"%b",' % (name, name)


def _splice(event: type[Event], *, reads: bool = False) -> Splice:
    (row,) = ROWS_OF[event]
    return Splice(row.type, _head(row.type), reads=reads)


OBSERVED: dict[str, Splice] = {
    TEXT_DELTA: _splice(events.TextDelta),
    THINKING_DELTA: _splice(events.ThinkingDelta),
    PROVIDER_CALL: _splice(events.ProviderCalled, reads=True),
    TOOL_PROGRESS: _splice(events.CallProgress, reads=True),
    TOOL_NOTE: _splice(events.Note, reads=True),
}
"""The observations that every stream has, by their kinds. A dialect with other frames has a table like this one."""


def frame(seq: int, event: str, payload: bytes) -> bytes:
    """Returns one SSE frame in the hybrid shape."""
    payload = one_line(payload)
    head = _head(event) % (seq, seq)
    if payload == b"{}":
        return head + b'"data":{}}\n\n'
    if len(payload) > NESTED_LIMIT:
        return b"".join((head, payload[1:-1], b"}\n\n"))
    return b"".join((head, payload[1:-1], b',"data":', payload, b"}\n\n"))


def payload_of(head: Fact, body: bytes, *, run_id: str) -> tuple[str, bytes] | None:
    """Returns the event of an entry and its payload, a JSON object; None for entries that clients do not see."""
    event = project(head, body, run_id=run_id, form=STORED)
    return None if event is None else encode_event(event)


def delta_frames(first_seq: int, kind: str, bodies_joined: bytes, *, after: int, upto: int) -> bytes:
    """Returns the frames of consecutive observations of one kind, those in (after, upto].

    Almost everything sent is deltas, whose stored bodies are their payloads: all frames are joined at once.
    """
    splice = OBSERVED[kind]
    first_seq, payloads = _payloads(first_seq, kind, bodies_joined, after=after, upto=upto)
    pieces = [b"", b"", splice.middle, b"", splice.tail] * len(payloads)
    pieces[0::5] = splice.heads(first_seq, first_seq + len(payloads))
    pieces[1::5] = pieces[3::5] = payloads
    return b"".join(pieces)


def observed(
    first_seq: int, kind: str, bodies_joined: bytes, *, after: int, upto: int
) -> Iterator[tuple[int, str, bytes]]:
    """Yields seq, event and payload of the same observations."""
    first_seq, payloads = _payloads(first_seq, kind, bodies_joined, after=after, upto=upto)
    for seq, fields in enumerate(payloads, first_seq):
        yield seq, OBSERVED[kind].type, b"{%b}" % fields


def _payloads(first_seq: int, kind: str, bodies_joined: bytes, *, after: int, upto: int) -> tuple[int, list[bytes]]:
    """Returns the first seq, and each payload without its braces."""
    split = bodies_joined[1:-1].split(b"}\n{")
    if first_seq <= after:
        split, first_seq = split[after + 1 - first_seq :], after + 1
    if first_seq + len(split) - 1 > upto:
        split = split[: upto + 1 - first_seq]
    if OBSERVED[kind].reads:
        of_kind = OBSERVED_AS_STORED[kind]
        split = [encode_event(of_kind(b"{%b}" % fields))[1][1:-1] for fields in split]
    return first_seq, split


Show: TypeAlias = Callable[[AnyEvent], AnyEvent]


class ProfiledFrames:
    """Builds the frames of a stream with a profile: selected events, including details, each with its context.

    One entry may have several events, with the same `seq`. Only its last frame has an `id:` line, so that a reader who
    resumes from there has missed nothing; `key` identifies an event that was seen before. `show` returns an event as
    streams show it.
    """

    def __init__(self, projection: DetailProjection, types: frozenset[str], *, show: Show | None = None) -> None:
        self._projection = projection
        self._types = types | ENDS
        self._show = show

    def of_fact(self, head: Fact, body: bytes, *, seq: int, at: int) -> bytes:
        event = project(head, body, run_id=self._projection.facts.run_id, form=STORED)
        if event is not None and self._show is not None:
            event = self._show(event)
        found = self._projection.around(event, head, body, seq=seq, at=at)
        return self._framed(seq, [self._encoded(one, seq=seq, at=at) for one in found])

    def of_observations(self, first_seq: int, kind: str, joined: bytes, *, at: int, after: int, upto: int) -> bytes:
        frames: list[bytes] = []
        plain = observed(first_seq, kind, joined, after=after, upto=upto) if kind in OBSERVED else ()
        payloads = {seq: (type, payload) for seq, type, payload in plain}
        for seq, body in enumerate(joined.split(b"\n"), first_seq):
            if not after < seq <= upto:
                continue
            found = [encode_detail(one) for one in self._projection.of_observation(kind, body, seq=seq, at=at)]
            if (event := payloads.get(seq)) is not None:
                found.append(self._about(*event, seq=seq, at=at))
            frames.append(self._framed(seq, found))
        return b"".join(frames)

    def _framed(self, seq: int, events: list[tuple[str, bytes]]) -> bytes:
        wanted = [event for event in events if event[0] in self._types]
        if not wanted:
            return b""
        frames = [frame(seq, *event) for event in wanted]
        return b"".join([*[one.partition(b"\n")[2] for one in frames[:-1]], frames[-1]])

    def _encoded(self, one: AnyEvent | AnyDetail, *, seq: int, at: int) -> tuple[str, bytes]:
        if isinstance(one, Detail):
            return encode_detail(one)
        return self._about(*encode_event(one), seq=seq, at=at)

    def _about(self, name: str, payload: bytes, *, seq: int, at: int) -> tuple[str, bytes]:
        """Returns an event with its context in the payload."""
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
            return name, encode(decode(payload) | about)
        encoded = encode(about)
        return name, encoded if payload == b"{}" else payload[:-1] + b"," + encoded[1:]
