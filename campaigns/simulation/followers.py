"""Readers of the simulated server's streams: they come and go, read slowly, and keep what they saw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from msgspec import Struct, field

from campaigns.simulation.disk import Disk
from campaigns.simulation.server import Server
from campaigns.simulation.trace import require
from weftline.errors import StoreError
from weftline.kernel.bodies import encode
from weftline.kernel.control import CallUnclaimed
from weftline.kernel.entries import AwaitOpened, CallOpened, CallStarted, RunEnded
from weftline.runtime.engine import EntryBatch, Follower
from weftline.testing.lines import Line, lines_of


class Seen(Struct):
    """One reader's view of one run, over all its connections."""

    run: int
    lines: list[Line] = field(default_factory=list[Line])
    last_seq: int = 0
    ended: bool = False


class Reader:
    """Follows one run to its end.

    `on_offer` is called for every client-side call that is offered, `on_await` for every question to people, `on_child`
    for every child run.
    """

    def __init__(
        self,
        server: Server,
        disk: Disk,
        seen: Seen,
        *,
        rng: Random,
        on_offer: Callable[[str], None],
        on_await: Callable[[str], None],
        on_child: Callable[[str], None],
    ) -> None:
        self._on_child = on_child
        self._on_await = on_await
        self._server = server
        self._disk = disk
        self._rng = rng
        self._on_offer = on_offer
        self._slow = rng.random() < 0.3
        self.seen = seen

    async def follow(self, run_id: str) -> None:
        loop = asyncio.get_running_loop()
        while not self.seen.ended:
            engine, life = await self._server.up()
            follower = engine.follow(self.seen.run, run_id, after=self.seen.last_seq)
            leaves_at = loop.time() + (self._rng.random() * 3 if self._rng.random() < 0.3 else 1e9)
            while not self.seen.ended and not life.dead and loop.time() < leaves_at:
                reading = loop.create_task(_next(follower))
                reading.add_done_callback(lambda done: None if done.cancelled() else done.exception())
                await asyncio.wait([reading], timeout=leaves_at - loop.time())
                if not reading.done():
                    follower.leave()
                    reading.cancel()
                    break
                if reading.cancelled() or life.dead or isinstance(reading.exception(), StoreError):
                    break
                batches = reading.result()
                if batches is None:
                    break
                if self._rng.random() < 0.1:
                    # It cannot take everything now, and requests the rest again.
                    batches = batches[: self._rng.randrange(len(batches) + 1)]
                    for batch in batches:
                        self._take(batch)
                    follower.rewind(self.seen.last_seq)
                    continue
                for batch in batches:
                    self._take(batch)
                if self._slow:
                    await asyncio.sleep(self._rng.random() ** 2 * 0.5)
            follower.close()
            await asyncio.sleep(self._rng.random() ** 2 * 0.05)

    def _take(self, batch: EntryBatch) -> None:
        seen = self.seen
        facts = [item.head for item in batch.items if item.head]
        if batch.heads is not None:
            require("C2", facts == [encode(head) for head in batch.heads], f"run {seen.run}: other heads than bytes")
        for line in lines_of(batch.items, after=batch.after):
            require("S9", line.seq == seen.last_seq + 1, f"run {seen.run}: seq {line.seq} came after {seen.last_seq}")
            require("C5", not seen.ended, f"run {seen.run}: seq {line.seq} came after the end")
            durable = self._disk.next_seq(seen.run) > line.seq
            require("C2", durable, f"run {seen.run}: seq {line.seq} was seen before it was durable")
            seen.lines.append(line)
            seen.last_seq = line.seq
            head = line.fact
            seen.ended = isinstance(head, RunEnded)
            if isinstance(head, CallOpened) and head.client is not None and not head.blocked:
                self._on_offer(head.id)
            if isinstance(head, CallUnclaimed) and not head.fallback:
                self._on_offer(head.id)
            elif isinstance(head, AwaitOpened):
                self._on_await(head.id)
            elif isinstance(head, CallStarted) and head.child:
                self._on_child(head.child)
        require("S9", batch.last_seq == seen.last_seq, f"run {seen.run}: {batch.last_seq} is announced and not told")
        require("S9", batch.ended == seen.ended, f"run {seen.run}: at {seen.last_seq} its end is reported wrongly")


async def _next(follower: Follower) -> Sequence[EntryBatch] | None:
    return await follower.next()
