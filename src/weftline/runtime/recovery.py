"""Carrying on after a start: which runs, in which order, and when to give one up.

A run that kills the process would take every other run with it, start after start. So before a run is touched after an
unclean death, its row is marked; the mark goes with the run's first new fact. Runs that carry a mark from before are
suspects: they are recovered after all others and one at a time, and only then does a failed recovery count.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw
from msgspec.structs import replace

from weftline.errors import StoreError
from weftline.kernel.bodies import ClosedBody, EndedBody, OpenedBody, encode
from weftline.kernel.decide import decide
from weftline.kernel.entries import CallClosed, CallOpened, RunEnded
from weftline.kernel.state import New
from weftline.messages import Text
from weftline.runtime.live import LiveRun
from weftline.store.sqlite.accounts import mark_recovering

if TYPE_CHECKING:
    from weftline.runtime.fleet import Fleet

logger = logging.getLogger(__name__)

TRIES = 3
DEATHS = 10
_PAGE = 10_000


class Recovery:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._suspects: asyncio.Task[None] | None = None
        self._failures: dict[int, int] = {}
        self._waiting: set[int] = set()
        self._moved: asyncio.Future[None] | None = None

    async def begin(self) -> None:
        """Starts the runs that were under way, and arms the timer for those that wait for one."""
        fleet = self._fleet
        suspects: list[int] = []
        after = 0
        while rows := fleet.read.under_way(limit=_PAGE, after=after):
            after = rows[-1][0]
            waiting = [key for key, tries, deaths in rows if tries or deaths >= DEATHS - 1]
            others = [key for key, tries, deaths in rows if not (tries or deaths >= DEATHS - 1)]
            if fleet.store.unclean:
                await fleet.store.job(partial(mark_recovering, keys=others, died=True))
                await fleet.store.job(partial(mark_recovering, keys=waiting, died=True, tried=False))
            for key in others:
                self._recover(key)
            suspects += waiting
        self._waiting.update(suspects)
        if suspects:
            self._suspects = asyncio.create_task(self._one_by_one(suspects))
        due = fleet.read.next_due(0)
        if due is not None:
            fleet.wake_at(due)

    def holds(self, key: int) -> bool:
        """Whether the run is a suspect that waits for its turn: nobody drives it before, whoever asks."""
        return key in self._waiting

    def stop(self) -> None:
        if self._suspects is not None:
            self._suspects.cancel()

    def pick_up(self) -> None:
        """Runs that were dropped from memory while the store refused writes."""
        for key, _, _ in self._fleet.read.under_way(limit=_PAGE):
            if not self._fleet.is_resident(key):
                self._recover(key)
        due = self._fleet.read.next_due(0)
        if due is not None:
            self._fleet.wake_at(due)

    def driver_failed(self, run: LiveRun) -> None:
        """A driver raised, which it never should: tries again from the log, and gives the run up after the third."""
        failures = self._failures[run.key] = self._failures.get(run.key, 0) + 1
        # What it appended is on its way to the store, so the run stays and only what was built from the log goes.
        run.adopting, run.transcript, run.toolbox = True, None, None
        run.prepared.clear()
        if run.state.ended or run.dropped:
            return
        if failures >= TRIES:
            self._give_up(run.key)
        else:
            asyncio.get_running_loop().call_later(0.1 * 2**failures, self._again, run)

    def _again(self, run: LiveRun) -> None:
        if not self._fleet.driver.stopping and not run.dropped:
            self._fleet.adopt(run)

    def _recover(self, key: int) -> None:
        fleet = self._fleet
        if fleet.driver.stopping:
            return
        if fleet.read.run(key) is None:
            return
        try:
            run = fleet.load(key)
            fleet.adopt(run)
        except Exception:
            logger.exception("run %d could not be recovered", key)
            self._give_up(key)

    async def _one_by_one(self, keys: list[int]) -> None:
        for key in keys:
            row = self._fleet.read.run(key)
            if row is None or row.ended_at is not None or row.recovering > TRIES or row.deaths > DEATHS:
                self._waiting.discard(key)
                if row is not None and row.ended_at is None:
                    self._give_up(key)
                continue
            if self._fleet.store.unclean:
                # Its own try, counted when its turn comes: a suspect that died in the line before it has had none.
                await self._mark(key)
            self._waiting.discard(key)
            self._recover(key)
            await self._progress(key)

    async def _mark(self, key: int) -> None:
        while True:
            try:
                await self._fleet.store.job(partial(mark_recovering, keys=[key], died=False))
                return
            except StoreError:
                await asyncio.sleep(1.0)  # the store refuses; this run and those after it wait as all others do

    async def _progress(self, key: int) -> None:
        """Waits until the run has left its mark behind or has left memory, so that a crash has one suspect."""
        while self._fleet.is_resident(key):
            row = self._fleet.read.run(key)
            if row is None or not row.recovering or row.ended_at is not None:
                return
            self._moved = asyncio.get_running_loop().create_future()
            await self._moved

    def moved(self, key: int) -> None:
        """A run's row was written."""
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(None)

    def retry_later(self, key: int) -> None:
        """Picks a dropped run up again from its log."""
        asyncio.get_running_loop().call_later(0.1, self._recover, key)

    def _give_up(self, key: int) -> None:
        """Ends a run that cannot be carried on, without asking anything of its own content."""
        fleet = self._fleet
        logger.error("run %d is given up after repeated failures", key)
        run = fleet.load(key)
        if run.state.ended:
            return
        # The kernel still says what has to be closed; the words are plain, since the run's content is not to be read.
        damaged = replace(run.state, broken=run.state.broken or "its recovery failed repeatedly")
        fleet.end_by_force(run, [(new.head, _plain_body(new)) for new in decide(damaged).append])


def _plain_body(new: New) -> bytes:
    match new.head:
        case CallOpened():
            return encode(OpenedBody(Raw(b"{}")))
        case CallClosed():
            return encode(ClosedBody((Text(new.text),)))
        case RunEnded():
            return encode(EndedBody(error="The run could not be carried on: its recovery failed repeatedly."))
        case _:
            return b""
