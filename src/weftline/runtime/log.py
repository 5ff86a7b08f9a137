"""The loop's side of the log: gives seqs, folds at once, and hands everything that waits to the writer in one go.

Append returns nothing. Each run has one mark, `durable`; whoever must not run ahead of the log waits for it. The writer
takes all that is queued as soon as it is idle, and one wake-up per flush moves the marks, tells the waiters and fans
out. State may run ahead of the log, effects may not.

When the store refuses (disk full, locked, read-only) nothing new is accepted; what a driver has brought waits here and
is tried again. A run with an answer from outside in the refused flush is dropped from memory instead, since its sender
is told no: the run goes on from its log once the store is well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from weftline.errors import Unavailable, WeftlineError
from weftline.kernel.bodies import encode
from weftline.kernel.entries import KIND, AttemptStarted, CallClosed, CallOpened, Entry, Fact, RunEnded
from weftline.kernel.evolve import evolve
from weftline.kernel.state import encode_state
from weftline.runtime.clock import Clock
from weftline.runtime.live import LiveRun, Waiter
from weftline.store.base import LEAVE_DUE, OnFlushed, RunWrite, Written

logger = logging.getLogger(__name__)

BATCH_BYTES = 4 * 1024 * 1024
WINDOW_BYTES = 1024 * 1024
"""How much of one run may be on its way to the disk before its model stream is no longer read."""
_RETRY_FIRST_S, _RETRY_MOST_S = 0.1, 5.0


class Flusher(Protocol):
    def flush(self, writes: list[RunWrite], done: OnFlushed) -> None: ...


class Observer(Protocol):
    """What hangs on the commit: fan-out, promotion of the next run in line, the end of a run."""

    def flushed(self, run: LiveRun, write: RunWrite, result: Written) -> None: ...
    def dropped(self, run: LiveRun) -> None: ...
    def store_is_well(self) -> None: ...
    def probe(self) -> None:
        """Tries a write of no consequence and reports to `Log.probed`."""
        ...


class Log:
    def __init__(self, store: Flusher, *, clock: Clock, observer: Observer) -> None:
        self._store = store
        self._clock = clock
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._touched: list[LiveRun] = []
        self._in_flight: list[LiveRun] = []
        self._busy = False
        self._kicked = False
        self._retry_s = 0.0
        self.refusal: WeftlineError | None = None
        """Why the store takes no writes; None while it is well."""
        self.on_idle: Callable[[], None] | None = None

    @property
    def idle(self) -> bool:
        return not self._busy and not self._touched

    def require_well(self) -> None:
        """Raises `Unavailable` while the store refuses writes."""
        if self.refusal is not None:
            raise Unavailable("The store takes no writes at the moment.", hint=self.refusal.message, retry_after_s=2)

    def append(self, run: LiveRun, facts: Sequence[tuple[Fact, bytes]]) -> None:
        """Appends facts with their bodies: gives seqs, folds, and queues them for the next flush."""
        at = self._clock.now_us()
        write = run.write or self._touch(run)
        state, seq = run.state, run.next_seq
        for head, body in facts:
            state = evolve(state, Entry(seq, at, head))
            encoded = encode(head)
            write.entries.append((seq, at, KIND[type(head)], encoded, body))
            write.heads.append(head)
            write.size += len(encoded) + len(body) + 64
            seq += 1
            if isinstance(head, CallOpened):
                if head.client is not None and not head.blocked:
                    write.opened.append((head.id, head.client, state.calls[head.index].deadline_at))
            elif isinstance(head, CallClosed):
                if head.client is not None:
                    write.answered.append(head.id)
            elif isinstance(head, AttemptStarted):
                run.started_at = run.started_at or at
            elif isinstance(head, RunEnded):
                run.ended_at = at
        run.state, run.next_seq = state, seq

    def append_deltas(self, run: LiveRun, kind: str, encoded: list[bytes]) -> None:
        """Appends observations, one seq each. They change no state and no version."""
        write = run.write or self._touch(run)
        at = self._clock.now_us()
        joined = b"\n".join(encoded)
        last = write.deltas[-1] if write.deltas else None
        if last is not None and last[3] == kind and last[0] + last[1] == run.next_seq:
            write.deltas[-1] = (last[0], last[1] + len(encoded), last[2], kind, last[4] + b"\n" + joined)
        else:
            write.deltas.append((run.next_seq, len(encoded), at, kind, joined))
        write.size += len(joined) + 32
        run.next_seq += len(encoded)

    def touch(self, run: LiveRun) -> None:
        """Queues the run's row for the next flush although nothing was appended (parking, thread end)."""
        if run.write is None:
            self._touch(run)

    def behind(self, run: LiveRun) -> bool:
        """Whether so much of the run is on its way to the disk that its source should wait."""
        return (run.write.size if run.write else 0) + (run.flight.size if run.flight else 0) > WINDOW_BYTES

    async def durable(self, run: LiveRun, *, requester: bool = False) -> None:
        """Waits until everything appended to the run so far is durable."""
        if run.durable < run.next_seq - 1:
            await self.mark(run, requester=requester)

    def mark(self, run: LiveRun, *, requester: bool = False) -> asyncio.Future[None]:
        """Done when everything appended to the run so far is durable, or has failed."""
        waiter = Waiter(run.next_seq - 1, self._loop.create_future(), requester)
        waiter.future.add_done_callback(_seen)
        run.waiters.append(waiter)
        return waiter.future

    def _touch(self, run: LiveRun) -> RunWrite:
        if run.dropped:
            # Appends of one run are a chain: after one that is lost, whoever still works on it has nothing to add.
            raise asyncio.CancelledError
        write = run.write = RunWrite(
            run.key,
            base_seq=0,
            base_version=0,
            next_seq=0,
            version=0,
            epoch=0,
            due_at=None,
            status="",
            state=None,
            entries=[],
            heads=[],
            deltas=[],
            opened=[],
            answered=[],
        )
        self._touched.append(run)
        if not self._kicked and not self._busy and self.refusal is None:
            # Deferred to the end of this turn of the loop, so that one flush takes all that it brings about.
            self._kicked = True
            self._loop.call_soon(self._kick)
        return write

    def _kick(self) -> None:
        self._kicked = False
        if self._busy or not self._touched:
            return
        batch = self._take()
        writes: list[RunWrite] = []
        for run in batch:
            write = run.write
            assert write is not None
            run.write, run.flight = None, write
            self._complete(run, write)
            writes.append(write)
        self._busy = True
        self._in_flight = batch
        self._store.flush(writes, self._report)

    def _take(self) -> list[LiveRun]:
        """All that waits; when that is more than a batch holds, workspaces take turns."""
        touched = self._touched
        if sum(run.write.size for run in touched if run.write) <= BATCH_BYTES:
            self._touched = []
            return touched
        lines: dict[int, list[LiveRun]] = {}
        for run in touched:
            lines.setdefault(run.workspace, []).append(run)
        taken: list[LiveRun] = []
        size = 0
        while lines and size <= BATCH_BYTES:
            for workspace in list(lines):
                run = lines[workspace].pop(0)
                if not lines[workspace]:
                    del lines[workspace]
                taken.append(run)
                size += run.write.size if run.write else 0
                if size > BATCH_BYTES:
                    break
        self._touched = [run for line in lines.values() for run in line]
        return taken

    def _complete(self, run: LiveRun, write: RunWrite) -> None:
        """Fills in the row as it is to be after this write. The state is encoded once per flush, not per entry."""
        state = run.state
        write.base_seq, write.base_version = run.row_seq, run.row_version
        write.next_seq, write.version = run.next_seq, state.version
        write.epoch, write.status = state.epoch, run.status
        write.due_at = run.due_at if run.activated or state.ended else LEAVE_DUE
        write.started_at, write.ended_at = run.started_at, run.ended_at
        write.state = encode_state(state) if write.version != write.base_version else None
        if run.new is not None:
            write.new, run.new = run.new, None

    def _report(self, writes: list[RunWrite], results: list[Written]) -> None:
        self._loop.call_soon_threadsafe(self._flushed, writes, results)

    def _flushed(self, writes: list[RunWrite], results: list[Written]) -> None:
        runs, self._in_flight, self._busy = self._in_flight, [], False
        refused: list[tuple[LiveRun, RunWrite]] = []
        failed: list[tuple[LiveRun, Written]] = []
        for run, write, result in zip(runs, writes, results, strict=True):
            run.flight = None
            if result.outcome == "ok":
                run.row_seq, run.row_version, run.durable = write.next_seq, write.version, write.next_seq - 1
                run.row_due = write.due_at
            elif result.outcome == "refused":
                refused.append((run, write))
                self.refusal = result.error or Unavailable("The store refuses writes.")
            else:
                failed.append((run, result))
        if refused:
            self._hold(refused)
        elif self.refusal is not None:
            self._well_again()
        if self._touched and self.refusal is None:
            self._kick()  # the next commit starts before the fan-out of this one
        for run, result in failed:
            self._drop(run, result.error or WeftlineError("The write failed."))
        for run, write, result in zip(runs, writes, results, strict=True):
            if result.outcome == "ok":
                self._announce(run, write, result)
        if self.on_idle is not None and self.idle:
            self.on_idle()

    def _announce(self, run: LiveRun, write: RunWrite, result: Written) -> None:
        if run.waiters:  # first: a tool that may begin now should not wait for readers to be told
            durable = run.durable
            ready = [waiter for waiter in run.waiters if waiter.seq <= durable]
            run.waiters = [waiter for waiter in run.waiters if waiter.seq > durable]
            for waiter in ready:
                if not waiter.future.done():
                    waiter.future.set_result(None)
        self._observer.flushed(run, write, result)

    def _hold(self, refused: list[tuple[LiveRun, RunWrite]]) -> None:
        """Keeps what drivers brought for another try, and lets go of what somebody outside waits for."""
        assert self.refusal is not None
        if not self._retry_s:
            logger.error("the store takes no writes: %s", self.refusal.message)
        for run, write in refused:
            if write.new is not None or any(waiter.requester for waiter in run.waiters):
                self._drop(run, Unavailable("The store takes no writes at the moment.", retry_after_s=2))
                continue
            later = run.write
            run.write = write
            if later is None:
                self._touched.append(run)
            else:
                write.entries += later.entries
                write.heads += later.heads
                write.deltas += later.deltas
                write.opened += later.opened
                write.answered += later.answered
                write.thread_end = later.thread_end or write.thread_end
                write.size += later.size
        self._try_later()

    def _try_later(self) -> None:
        self._retry_s = min(max(self._retry_s * 2, _RETRY_FIRST_S), _RETRY_MOST_S)
        self._loop.call_later(self._retry_s, self._retry)

    def _retry(self) -> None:
        if self._busy:
            return
        if self._touched:
            self._kick()
        else:
            self._observer.probe()

    def probed(self, error: WeftlineError | None) -> None:
        """What came of the observer's probe of the store."""
        if error is None:
            self._well_again()
        else:
            self.refusal = error
            self._try_later()

    def _well_again(self) -> None:
        logger.warning("the store takes writes again")
        self.refusal, self._retry_s = None, 0.0
        self._loop.call_soon(self._observer.store_is_well)

    def _drop(self, run: LiveRun, error: WeftlineError) -> None:
        """Forgets a run whose memory is ahead of a log that it will not reach."""
        run.dropped = True
        run.write = None
        self._touched = [other for other in self._touched if other is not run]
        for waiter in run.waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)
        run.waiters = []
        self._observer.dropped(run)


def _seen(future: asyncio.Future[None]) -> None:
    """A failure that nobody waits for any more is no news."""
    if not future.cancelled():
        future.exception()
