"""Fan-out: brings what was committed to whoever follows a run.

A subscriber is a cursor and a small queue of frames. Frames are built once per flush and shared. A reader that is too
slow loses its queue, not its place: it goes on from the log. Nobody can hold back a flush or another reader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec import DecodeError

from weftline.kernel.entries import KIND, Fact, RunEnded, decode_fact
from weftline.runtime.tail import Tails
from weftline.runtime.view import run_view
from weftline.store.base import DeltaRow, EntryRow, RunWrite
from weftline.store.sqlite.reads import Reader
from weftline.wire.events import delta_frames, frame, project
from weftline.wire.responses import snapshot

logger = logging.getLogger(__name__)

QUEUE_BYTES = 1024 * 1024
PAGE = 1000
_ENDED = KIND[RunEnded]


class Subscription:
    """Follows one run from a cursor, as bytes of SSE frames."""

    __slots__ = (
        "_frames",
        "_hub",
        "_silent",
        "_size",
        "_taken",
        "_waiter",
        "behind",
        "ended",
        "last_seq",
        "left",
        "run",
    )

    def __init__(self, hub: Hub, run: int, last_seq: int) -> None:
        self._hub = hub
        self.run = run
        self.left = False
        """Whether the reader has gone away."""
        self.last_seq = last_seq
        self._taken = last_seq
        """What the reader has; `last_seq` counts what is queued for it too."""
        self.behind = True
        """Whether what comes next has to be read from the log."""
        self.ended = False
        self._frames: list[bytes] = []
        self._size = 0
        self._silent = True
        self._waiter: asyncio.Future[None] | None = None

    def beat(self, frame: bytes) -> None:
        """Sends `frame`, a comment, to a reader that got nothing since the last beat."""
        if self._silent and not self.behind and not self._frames:
            self._frames.append(frame)
            self.wake()
        self._silent = True

    def end(self) -> None:
        """Ends the stream after the frames that are queued, although the run goes on: the server is stopping."""
        self.behind, self.ended = False, True
        self.wake()

    def push(self, frames: bytes, last_seq: int, *, ended: bool) -> None:
        if self.behind or last_seq <= self.last_seq:
            pass  # it finds this in the log, or has found it there before it was announced
        elif self._size + len(frames) > QUEUE_BYTES:
            self._frames, self._size, self.behind = [], 0, True
            self.last_seq = self._taken
        else:
            self._frames.append(frames)
            self._size += len(frames)
            self._silent = False
            self.last_seq = last_seq
            self.ended = ended
        self.wake()

    def leave(self) -> None:
        """The reader has gone away: whoever reads for it is to stop."""
        self.left = True
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> bytes | None:
        """What is due at once: bytes, b"" when the reader is up to date, None at the end."""
        if self.behind:
            data = self._hub.catch_up(self)
            self._taken = self.last_seq
            return data
        self._taken = self.last_seq
        if self._frames:
            data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
            self._frames, self._size = [], 0
            return data
        return None if self.ended else b""

    async def wait(self) -> None:
        """Returns when there may be something to take."""
        if self.behind or self._frames or self.ended or self.left:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        self._hub.leave(self)


class Hub:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._topics: dict[int, list[Subscription]] = {}
        self._ids: dict[int, str] = {}
        self._tails = Tails()

    def follow(self, run: int, run_id: str, *, after: int) -> Subscription:
        subscription = Subscription(self, run, max(after, 0))
        self._topics.setdefault(run, []).append(subscription)
        self._ids[run] = run_id
        return subscription

    def leave(self, subscription: Subscription) -> None:
        topic = self._topics.get(subscription.run)
        if topic is None or subscription not in topic:
            return
        topic.remove(subscription)
        if not topic:
            del self._topics[subscription.run], self._ids[subscription.run]

    def beat(self, frame: bytes) -> None:
        for topic in self._topics.values():
            for subscription in topic:
                subscription.beat(frame)

    def end_all(self) -> None:
        for topic in self._topics.values():
            for subscription in topic:
                subscription.end()

    def publish(self, run: int, run_id: str, write: RunWrite) -> None:
        """Called once per flush and run, on the loop, after the commit."""
        entries, last_seq = write.entries, write.next_seq - 1
        topic = self._topics.get(run)
        tail = self._tails.get(run)
        if tail is None and entries and entries[0][0] == 1:
            tail = self._tails.begin(run)
        live = topic is not None and any(not one.behind and one.last_seq < last_seq for one in topic)
        if tail is not None or live:
            ended = bool(entries) and entries[-1][2] == _ENDED
            frames = b"".join(frames_of(entries, write.deltas, run_id=run_id, upto=last_seq, heads=write.heads))
            if tail is not None:
                self._tails.add(run, tail, frames, last_seq, ended=ended)
            for subscription in tuple(topic or ()):
                subscription.push(frames, last_seq, ended=ended)
        elif topic is not None:
            for subscription in topic:
                subscription.wake()

    def parked(self, run: int) -> None:
        """The run has left memory for a while: nothing of it is kept."""
        self._tails.drop(run)

    def forget(self) -> None:
        """Keeps nothing of any run in memory: logs may have been trimmed. Readers go on from the log."""
        self._tails = Tails()

    def catch_up(self, subscription: Subscription) -> bytes | None:
        """The next page of the log for a reader that is behind; makes it live when it has reached the end.

        No await lies between the read and the change to live, so nothing falls between the two. What is committed but
        not announced yet is read here, and its announcement is then passed over.
        """
        after = subscription.last_seq
        tail = self._tails.get(subscription.run)
        if tail is not None and (data := tail.after(after)) is not None:
            subscription.behind, subscription.ended = False, tail.ended
            subscription.last_seq = max(after, tail.last_seq)
            return data if data or not tail.ended else None
        page = self._reader.page(subscription.run, after=after, limit=PAGE)
        if page is None:
            subscription.behind, subscription.ended = False, True
            return None
        upto, ended, entries, deltas = page
        page_end = upto
        if len(entries) == PAGE:
            page_end = min(page_end, entries[-1][0])
        if len(deltas) == PAGE:
            page_end = min(page_end, deltas[-1][0] + deltas[-1][1] - 1)
        run_id = self._ids.get(subscription.run, "")
        first = min(
            entries[0][0] if entries else upto + 1,
            max(deltas[0][0], after + 1) if deltas else upto + 1,
        )
        gap = self._gap(subscription.run, after + 1, first - 1) if first > after + 1 else b""
        data = gap + b"".join(frames_of(entries, deltas, run_id=run_id, after=after, upto=page_end))
        subscription.last_seq = max(after, page_end)
        if page_end == upto:
            subscription.behind = False
            subscription.ended = ended
        return data if data or not subscription.ended else None

    def _gap(self, run: int, first: int, last: int) -> bytes:
        """The event in place of entries that retention has removed: seqs have no holes otherwise."""
        row = self._reader.run(run)
        state = snapshot(run_view(self._reader, row)) if row is not None else b"null"
        return frame(last, "gap", b'{"firstMissingSeq":%d,"lastMissingSeq":%d,"snapshot":%b}' % (first, last, state))


def frames_of(
    entries: list[EntryRow],
    deltas: list[DeltaRow],
    *,
    run_id: str,
    upto: int,
    after: int = 0,
    heads: Sequence[Fact] | None = None,
) -> list[bytes]:
    """The frames of (after, upto], entries and deltas merged by seq. `heads` spares decoding those of `entries`."""
    frames: list[bytes] = []
    d = 0
    for index, (seq, _, _, head, body) in enumerate(entries):
        if seq > upto:
            break
        while d < len(deltas) and deltas[d][0] < seq:
            frames += delta_frames(deltas[d][0], deltas[d][3], deltas[d][4], after=after, upto=upto)
            d += 1
        if seq <= after:
            continue
        try:
            fact = heads[index] if heads is not None else decode_fact.decode(head)
            event = project(fact, body, run_id=run_id)
        except DecodeError:
            logger.exception("run %s: entry %d does not read and is not shown", run_id, seq)
            continue
        if event is not None:
            frames.append(frame(seq, *event))
    for row in deltas[d:]:
        frames += delta_frames(row[0], row[3], row[4], after=after, upto=upto)
    return frames
