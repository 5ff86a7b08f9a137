"""The loop's side of the log: hands everything waiting to the store at once, and advances each run's mark.

Append returns nothing. Each run has one mark, `durable`; anything that must not run ahead of the log waits for it.
There is one flush at a time, which takes everything queued, and one wake-up per flush advances the marks, notifies the
waiters and fans out. State may run ahead of the log; effects may not.

While the store refuses writes (disk full, locked, read-only), nothing new is accepted; what drivers have appended waits
here and is retried. A request from outside that was in the refused flush fails at once, and its run is dropped from
memory, to continue from its log once the store accepts writes again. If that would lose work that is done or under way,
the request waits for the store together with it. At a stop, what a store still refuses is given up for good: a caller
who is told that nothing was kept must not find it there later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from weftline.errors import StoreError, Unavailable, WeftlineError
from weftline.kernel.bodies import encode
from weftline.kernel.entries import FORMAT, KIND, CallClosed, TurnCompleted
from weftline.kernel.state import FOLD, State, encode_state
from weftline.runtime.batching import WriteQueue
from weftline.runtime.clock import Clock
from weftline.runtime.commits import Commits
from weftline.runtime.live import BEHIND, GONE, NOTED, Draft, LiveRun, Waiter, note_fact
from weftline.runtime.metrics import Metrics
from weftline.store.base import LogStore
from weftline.store.rows import ITEM_BYTES, LEAVE_DUE, Item, KeptMessage, Progress, ThreadEnd, Write, Written
from weftline.work.outcomes import is_being_cancelled

logger = logging.getLogger(__name__)

WINDOW_BYTES = 1024 * 1024
"""How much of one run may wait to be written before its model stream is paused."""
ROW_BYTES = 16 * 1024
"""Observations of one commit share a row up to this size: a page of the log has at least one whole row."""
_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 5.0
_ENDED, _STREAMED = Progress.ENDED, Progress.STREAMED
"""The first: something that the run began has ended, so it does not kill the process."""


class _Batch(NamedTuple):
    """The runs of one flush, and what it writes of each."""

    runs: list[LiveRun]
    writes: list[Write]
    began_s: float
    """By the loop's clock."""


class Log:
    def __init__(self, store: LogStore, *, clock: Clock, observer: Commits, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._touched = WriteQueue()
        self._kicked = False
        self._flushing: asyncio.Future[Any] | None = None
        """The current flush or probe."""
        self._retry_s = 0.0
        self._retrying: asyncio.TimerHandle | None = None
        self._given_up = False
        """Whether nothing is written any more: the engine has stopped, and its store refused writes to the last."""
        self._writable: asyncio.Future[None] | None = None
        self.refusal: WeftlineError | None = None
        """Why the store refuses writes; None while it accepts them."""
        self._tried: asyncio.Future[None] | None = None

    @property
    def idle(self) -> bool:
        return self._flushing is None and not self._touched

    def require_writable(self) -> None:
        """Raises `Unavailable` while the store refuses writes."""
        if self.refusal is not None:
            raise Unavailable(
                "The store is not accepting writes at the moment.", hint=self.refusal.message, retry_after_s=2
            )

    def append(
        self,
        run: LiveRun,
        drafts: Sequence[Draft],
        *,
        state: State,
        at: int,
        thread_end: ThreadEnd | None = None,
        kept: Sequence[KeptMessage] = (),
    ) -> None:
        """Queues facts for the next flush, with what they spend and reserve. `state` is the run's state with all of
        them folded.

        `thread_end` comes with the terminal fact, if the run has a thread; `kept` are the messages that the facts make,
        if its thread keeps them all.
        """
        log = run.log
        row, outbox = log.row, log.outbox
        write = outbox.pending or self._touch(run)
        items, facts, size = write.items, write.facts, 0
        for draft in drafts:
            head, body = draft.head, draft.body
            kind = type(head)
            encoded = draft.encoded or encode(head)
            items.append(Item(at, KIND[kind], encoded, body, parts=draft.parts))
            facts.append(head)
            size += len(encoded) + len(body) + ITEM_BYTES
            if kind is CallClosed:
                write.progress = _ENDED
            elif kind is TurnCompleted:
                log.outcome_seq, write.progress = log.next_seq, _ENDED
            elif kind in NOTED:
                note_fact(run, write, head, body, at=at, state=state)
            if draft.edits or draft.put:
                write.edits += draft.edits
                kept = (*kept, *draft.put)
            if draft.child is not None:
                write.children += (draft.child,)
                size += sum([item.size for item in draft.child.items])
        if kept:
            write.kept += tuple(kept)
            write.keeps = run.thread
            size += sum([len(one.message) for one in kept])
        log.state = state
        log.next_seq += len(drafts)
        write.size += size
        outbox.size += size
        log.stored.newer += size
        if row.started_at is None and state.totals.attempts:
            row.starts(at)
        account = run.work.account
        if account is not None and account.booked:
            write.bookings += account.pop_bookings()
        if state.step == "ended":
            row.ends(at)
            log.due_at = None
            write.progress, write.wakes = _ENDED, run.parent
            write.thread_end = thread_end
            write.closes = None if account is None else account.own

    def observe(self, run: LiveRun, kind: str, lines: bytes, count: int = 1) -> None:
        """Queues observations of one kind, one seq each: a line is the body of one. They change neither state nor
        version.

        Nothing is added to a run that has ended: work that refuses to stop may outlive its run.
        """
        log = run.log
        if log.state.step == "ended":
            return
        size = len(lines)
        if size > ROW_BYTES and count > 1:
            for joined, some in _rows(lines):
                self.observe(run, kind, joined, some)
            return
        outbox = log.outbox
        write = outbox.pending or self._touch(run)
        last = write.items[-1] if write.items else None
        if last is not None and last.kind == kind and not last.head and last.size + size <= ROW_BYTES:
            last.body += b"\n" + lines
            last.count += count
        else:
            write.items.append(Item(self._clock.now_us(), kind, b"", lines, count))
            size += ITEM_BYTES
        write.size += size
        outbox.size += size
        write.progress = write.progress or _STREAMED
        log.next_seq += count

    def write_row(self, run: LiveRun) -> None:
        """Queues the run's row for the next flush even though nothing was appended."""
        if run.log.outbox.pending is None:
            self._touch(run)

    async def durable(self, run: LiveRun, *, upto: int | None = None, outside: bool = False) -> None:
        """Waits until everything appended to the run so far, or up to that seq, is durable."""
        seq = run.log.next_seq - 1 if upto is None else upto
        if run.log.durable < seq:
            await self.mark(run, upto=seq, outside=outside)

    def mark(self, run: LiveRun, *, upto: int | None = None, outside: bool = False) -> asyncio.Future[None]:
        """A future that is done when everything appended to the run so far, or up to that seq, is durable or has
        failed.
        """
        seq = run.log.next_seq - 1 if upto is None else upto
        future = self._loop.create_future()
        dropped = run.residency is GONE and run.log.outbox.empty
        if (dropped or self._given_up) and run.log.durable < seq:
            future.set_exception(_not_accepting())  # this will never be written
            return future
        waiter = Waiter(seq, future, outside)
        if run.log.waiters is None:
            run.log.waiters = [waiter]
        else:
            run.log.waiters.append(waiter)
        return future

    async def settled(self, run: LiveRun) -> None:
        """Returns when nothing of the run is waiting to be written: it was written, or failed."""
        while not run.log.outbox.empty:
            with suppress(WeftlineError):
                await self.mark(run)

    async def wait_writable(self) -> None:
        """Waits until the store accepts writes."""
        while self.refusal is not None:
            if self._writable is None:
                self._writable = self._loop.create_future()
            await asyncio.shield(self._writable)

    def _touch(self, run: LiveRun) -> Write:
        if run.residency is GONE:
            # Appends of one run are a chain: once one is lost, nothing can be added after it.
            raise asyncio.CancelledError
        # Everything but the entries is filled in when it is flushed.
        write = Write(run.key, run.log.epoch, 0, 0, [], version=0, status="", due_at=None, format=FORMAT)
        if self._given_up:
            return write  # never flushed: callers that wait for it get an error
        run.log.outbox.pending = write
        self._touched.put(run)
        if self._flushing is None and self.refusal is None:
            self._kick_later()
        return write

    def _kick_later(self) -> None:
        """Flushes at the end of the next loop iteration, so that one flush takes everything that this iteration
        appends, and what the tasks that it wakes append.
        """
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._kick_unless_more)

    def _kick_unless_more(self) -> None:
        """Flushes at once if a new run is all there is: someone waits for it, and its first turn need not."""
        if len(self._touched) == 1 and next(iter(self._touched)).new is not None:
            self._kick()
        else:
            self._loop.call_soon(self._kick)

    def _kick_soon(self) -> None:
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        self._kicked = False
        if self._flushing is None and self._touched:
            self._flush()

    def _flush(self) -> None:
        """Hands everything queued to the store, and repeats this as long as the store finishes at once, as in
        memory.
        """
        while self._touched:
            batch = self._take()
            flushing = self._flushing = self._hand_over(batch)
            if not flushing.done():
                flushing.add_done_callback(partial(self._on_store_done, batch))
                return
            try:
                self._written(batch, flushing)
            finally:
                self._flushing = None
            if self.refusal is not None:
                break
        self._try_is_over()

    def _hand_over(self, batch: _Batch) -> asyncio.Future[list[Written]]:
        try:
            return self._store.flush(batch.writes)
        except Exception as error:
            failed: asyncio.Future[list[Written]] = self._loop.create_future()
            failed.set_exception(error)
            return failed

    def _on_store_done(self, batch: _Batch, flushing: asyncio.Future[list[Written]]) -> None:
        # A done callback, because a task for each commit would cost as much as the rest of the loop's side.
        self._flushing = None
        try:
            self._written(batch, flushing)
        finally:
            if self._touched and self.refusal is None:
                # In the next iteration, together with what the tasks append that were only just woken.
                self._kick_soon()
            else:
                self._try_is_over()

    def _try_is_over(self) -> None:
        if self._tried is not None and not self._tried.done():
            self._tried.set_result(None)

    async def finish(self, *, patience_s: float, hurry: asyncio.Event | None = None) -> list[LiveRun]:
        """Returns when everything appended is durable, or when the store has refused for `patience_s`, or until `hurry`
        was set, and one more try has failed: then with the runs of which something is lost, which is final.

        A store that accepts writes is waited for however slow it is: giving up would discard answers that have been
        paid for.
        """
        until = self._loop.time() + patience_s
        last = False
        hurried = self._loop.create_task((hurry or asyncio.Event()).wait())
        self.hurry()
        try:
            while not self.idle:
                self._tried = self._loop.create_future()
                left_s = max(0.0, until - self._loop.time())
                if last:
                    await self._tried
                else:
                    await asyncio.wait([self._tried, hurried], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if last and self.refusal is not None and self._flushing is None:
                    break
                if not last and (hurried.done() or self._loop.time() >= until):
                    last = True  # one more try: the loop may have been blocked until now
                    self.hurry()
        finally:
            hurried.cancel()
        return [] if self.refusal is None else self._give_up()

    def _give_up(self) -> list[LiveRun]:
        """Drops what a refusing store has not accepted, and never tries again; returns the runs of which something is
        lost. Nothing may be in flight.
        """
        self._given_up = True
        left = self._touched.take_all()
        for run in left:
            run.log.outbox.pending = None
            self._fail_waiters(run, _not_accepting())
        return [run for run in left if run.log.next_seq - 1 > run.log.durable]

    def _take(self) -> _Batch:
        """Takes what is waiting, as it will be written. Whatever cannot be encoded is left out, so that it does not
        block the others.
        """
        batch = _Batch([], [], self._loop.time())
        for run in self._touched.take_batch():
            try:
                batch.writes.append(self._complete(run))
            except Exception as error:
                outbox = run.log.outbox
                _unbook(run, outbox.flight)
                outbox.flight = None
                self._fail_waiters(run, WeftlineError("The run cannot be written."))
                self._observer.unwritable(run, error)
            else:
                batch.runs.append(run)
        return batch

    def _complete(self, run: LiveRun) -> Write:
        """Fills in the row as it will be after this write."""
        log = run.log
        row, state = log.row, log.state
        write = log.outbox.take(log.next_seq - 1)
        write.base_seq, write.base_version = log.durable + 1, row.version
        write.version, write.status = state.version, log.status
        write.started_at, write.ended_at = row.started_at, row.ended_at
        behind = run.residency is BEHIND and not state.ended
        write.due_at = LEAVE_DUE if behind else log.due_at
        if log.stored.is_stale(state):
            write.state, write.fold = encode_state(state), FOLD
            log.stored.store(state, len(write.state))
        if run.new is not None:
            write.new, run.new = run.new, None
        return write

    def _written(self, batch: _Batch, flushing: asyncio.Future[list[Written]]) -> None:
        results = _results(batch, flushing)
        self._metrics.flushed(self._loop.time() - batch.began_s)
        refused: list[tuple[LiveRun, Write]] = []
        written = list(zip(batch.runs, batch.writes, results, strict=True))
        for run, write, result in written:
            log = run.log
            row, outbox = log.row, log.outbox
            outbox.flight = None
            if result.outcome == "ok":
                row.version, row.due_at = write.version, write.due_at
                log.durable = outbox.flight_seq
                outbox.size -= write.size
                if write.bookings and run.work.account is not None:
                    run.work.account.committed(write.bookings)
                if log.waiters:  # first, so that a tool that may begin now does not wait for readers to be notified
                    log.wake()
            elif result.outcome == "refused":
                refused.append((run, write))
                self.refusal = result.error or Unavailable("The store rejects writes.")
            else:
                self._drop(run, write, result.error or WeftlineError("The write failed."))
        if refused:
            self._hold(refused)
        elif self.refusal is not None:
            self._is_well()
        for run, write, result in written:
            if result.outcome == "ok":
                try:
                    self._observer.committed(run, write, result)
                except Exception:  # the other runs of this commit are unaffected
                    logger.exception("run %s: handling a commit failed", run.id)

    def _hold(self, refused: list[tuple[LiveRun, Write]]) -> None:
        """Keeps what drivers appended for another try, and drops what an outside caller is waiting for."""
        assert self.refusal is not None
        if not self._retry_s:
            logger.error("the store accepts no writes: %s", self.refusal.message)
        for run, write in refused:
            log = run.log
            asked = any(waiter.outside for waiter in log.waiters or ())
            if write.new is not None or (asked and not _is_at_work(run, write)):
                self._drop(run, write, _not_accepting())
                continue
            if write.state is not None:
                write.state = None
                log.stored.was_refused()
            if log.outbox.put_back(write):
                self._touched.put(run)
        self._try_later()

    def _try_later(self) -> None:
        self._retry_s = min(max(self._retry_s * 2, _RETRY_FIRST_S), _RETRY_MAX_S)
        self._cancel_retry()
        self._retrying = self._loop.call_later(self._retry_s, self._retry)

    def _cancel_retry(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()

    def hurry(self) -> None:
        """Retries a refusing store at once, and then at the initial interval again."""
        if self.refusal is not None:
            self._retry_s = 0.0
            self._retry()

    def _retry(self) -> None:
        if self._flushing is not None or self._given_up:
            return
        if self._touched:
            self._flush()
        else:
            self._flushing = self._loop.create_task(self._probe())

    async def _probe(self) -> None:
        """Makes a dummy write: with nothing to write, this is the only way to find out whether the store has
        recovered.
        """
        try:
            await self._store.probe()
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            if isinstance(error, WeftlineError):
                self.refusal = error
            else:
                logger.error("the store could not be probed; trying again", exc_info=error)
            self._try_later()
        else:
            self._is_well()
        finally:
            self._flushing = None
            self._try_is_over()
        if self._touched and self.refusal is None:
            self._kick()

    def _is_well(self) -> None:
        logger.warning("the store accepts writes again")
        self.refusal, self._retry_s = None, 0.0
        self._cancel_retry()  # if it was not the timer that tried
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        self._loop.call_soon(self._observer.store_recovered)

    def _drop(self, run: LiveRun, write: Write, error: WeftlineError) -> None:
        """Drops a run whose memory is ahead of a log that will not catch up, and the write that failed."""
        _unbook(run, write, run.log.outbox.pending)
        run.log.outbox.pending = None
        self._touched.withdraw(run)
        self._fail_waiters(run, error)
        self._observer.lost(run, refused=self.refusal is not None)

    def _fail_waiters(self, run: LiveRun, error: WeftlineError) -> None:
        for waiter in run.log.pop_waiters():
            if not waiter.future.done():
                waiter.future.set_exception(error)
                waiter.future.exception()  # a failure that nothing waits for needs no warning


def _results(batch: _Batch, flushing: asyncio.Future[list[Written]]) -> Sequence[Written]:
    """Returns the outcome of each write. If nobody knows, its run is read again: it continues from whatever is
    stored.
    """
    try:
        results = flushing.result()
        if len(results) != len(batch.writes):
            raise RuntimeError(f"{len(batch.writes)} writes have {len(results)} results")
        return results
    except StoreError as error:
        each = Written("refused", error=error)
    except (Exception, asyncio.CancelledError) as error:
        logger.error("a flush ended without saying what was written", exc_info=error)
        each = Written("failed", error=StoreError("It is not known whether this was stored."))
    return [each] * len(batch.writes)


def _is_at_work(run: LiveRun, write: Write) -> bool:
    """Returns True if dropping the run would lose what a model or a tool has done, or is doing at the moment."""
    later = run.log.outbox.pending
    return run.task is not None or bool(write.progress) or (later is not None and bool(later.progress))


def _not_accepting() -> Unavailable:
    return Unavailable("The store is not accepting writes at the moment.", retry_after_s=2)


def _unbook(run: LiveRun, *writes: Write | None) -> None:
    """Undoes bookings whose facts will not be in the log."""
    account = run.work.account
    if account is not None:
        for write in writes:
            if write is not None and write.bookings:
                account.undo(write.bookings)


def _rows(lines: bytes) -> Sequence[tuple[bytes, int]]:
    """Groups observations into rows, with at least one in each; returns the lines of each row and their number."""
    groups: list[tuple[bytes, int]] = []
    group: list[bytes] = []
    size = 0
    for line in lines.split(b"\n"):
        if group and size + len(line) > ROW_BYTES:
            groups.append((b"\n".join(group), len(group)))
            group, size = [], 0
        group.append(line)
        size += len(line) + 1
    return [*groups, (b"\n".join(group), len(group))]
