"""A run's log as a reader sees it: one line for each seq."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from weftline.kernel.entries import Fact, decode_fact
from weftline.store.rows import Item


class Line(Struct, frozen=True):
    """One entry, fact or observation."""

    seq: int
    kind: str
    head: bytes
    body: bytes

    @property
    def fact(self) -> Fact | None:
        """The decoded head; None for an observation."""
        return decode_fact.decode(self.head) if self.head else None


def lines_of(items: Iterable[Item], *, after: int = 0) -> Iterator[Line]:
    """The lines above seq `after`; observations that share an item are separate lines."""
    for item in items:
        parts = [item.body] if item.head else item.body.split(b"\n")
        for seq, body in enumerate(parts, item.seq):
            if seq > after:
                yield Line(seq, item.kind, item.head, body)
