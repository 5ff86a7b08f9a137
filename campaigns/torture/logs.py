"""The logs of all runs in the store when the torture is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from campaigns.torture.orders import number_in
from weftline.events.frames import delta_frames, frame, payload_of
from weftline.events.project import HIDDEN
from weftline.kernel import bodies
from weftline.kernel.entries import Fact, RunEnded, decode_fact
from weftline.messages import Message, User
from weftline.plan import decode_content
from weftline.runtime import ids
from weftline.store import open_for_reading
from weftline.store.base import LogReader
from weftline.store.rows import Item, RunRow

AnyFact = TypeVar("AnyFact", bound=Fact)


class Entry(Struct, frozen=True):
    at_us: int
    fact: Fact
    body: bytes


class RunLog(Struct, frozen=True):
    row: RunRow
    items: list[Item]
    entries: list[Entry]
    given: tuple[Message, ...]
    history: list[Message]

    @property
    def run(self) -> str:
        return ids.run_id(self.row.key, self.row.salt)

    @property
    def order(self) -> int:
        asked = self.given[-1]
        number = number_in(asked.text) if isinstance(asked, User) else None
        assert number is not None, f"run {self.run} is not one of ours"
        return number

    def of(self, kind: type[AnyFact]) -> Iterator[tuple[Entry, AnyFact]]:
        return ((entry, entry.fact) for entry in self.entries if isinstance(entry.fact, kind))

    @property
    def end(self) -> RunEnded | None:
        last = self.entries[-1].fact
        return last if isinstance(last, RunEnded) else None

    def frames(self) -> dict[int, bytes]:
        """What a reader of the whole stream gets, by seq."""
        frames: dict[int, bytes] = {}
        for item in self.items:
            if not item.head:
                if item.kind in HIDDEN:
                    continue
                deltas = delta_frames(item.seq, item.kind, item.body, after=0, upto=item.last_seq)
                frames.update(enumerate([delta + b"\n\n" for delta in deltas[:-2].split(b"\n\n")], item.seq))
            elif (event := payload_of(decode_fact.decode(item.head), item.body, run_id=self.run)) is not None:
                frames[item.seq] = frame(item.seq, *event)
        return frames


async def read_logs(store: Path) -> list[RunLog]:
    """The store may have an owner, or may have been abandoned by one."""
    reader = open_for_reading(store)
    try:
        keys = range(1, await reader.log.last_key() + 1)
        return [log for key in keys if (log := await _read(reader.log, key)) is not None]
    finally:
        await reader.close()


async def _read(log: LogReader, key: int) -> RunLog | None:
    """None for the key of a run that was never created because the disk was full."""
    row = await log.run(key)
    page = await log.page(key, after=0, max_bytes=2**40)
    if row is None or page is None:
        return None
    entries = [Entry(item.at, decode_fact.decode(item.head), item.body) for item in page.items if item.head]
    plan = decode_content(bytes(bodies.decode_created(entries[0].body).plan))
    stored = [] if row.thread is None else await log.thread_messages(row.thread)
    return RunLog(row, page.items, entries, plan.messages, [bodies.decode_message(one) for one in stored])
