"""Brings runs into memory: each is read once, however many ask for it at the same time."""

from __future__ import annotations

import asyncio
import logging

from weftline.errors import StoreError, no_such_run
from weftline.runtime.driver import CUT_S, Driver
from weftline.runtime.fleet.lineage import Lineage
from weftline.runtime.fleet.residents import Residents
from weftline.runtime.fleet.roles import RunMover
from weftline.runtime.live import BEHIND, GONE, LiveRun
from weftline.runtime.log import Log
from weftline.runtime.reads.finding import public_id
from weftline.runtime.recovery import Recovery
from weftline.runtime.trials import STORE_RETRY_S
from weftline.runtime.waiting import wait_while_running
from weftline.store.base import LogStore

logger = logging.getLogger(__name__)


class Loader:
    """`connect` passes it the parts that refer to it, before the first run is loaded."""

    def __init__(self, store: LogStore, residents: Residents, mover: RunMover) -> None:
        self._store = store
        self._residents = residents
        self._mover = mover
        self._loop = asyncio.get_running_loop()
        self._loading: dict[int, asyncio.Task[LiveRun]] = {}

    def connect(self, *, log: Log, driver: Driver, recovery: Recovery, lineage: Lineage) -> None:
        self._log = log
        self._driver = driver
        self._recovery = recovery
        self._lineage = lineage

    def resident(self, key: int) -> LiveRun | None:
        """The run, if it is in memory."""
        return self._residents.runs.get(key)

    async def load(self, key: int) -> LiveRun:
        """The run in memory; a parked one is read from the store.

        Raises `NotFound`, or `Conflict` for a run that is left to a newer version.
        There is no await between finding the run in memory and returning it.
        """
        while (run := self._residents.runs.get(key)) is None:
            loading = self._loading.get(key)
            if loading is None:
                loading = self._loading[key] = self._loop.create_task(self._read(key))
                loading.add_done_callback(lambda task: self._loading_done(key, task))
            loaded = await asyncio.shield(loading)
            if loaded.state.ended:
                return loaded
        return run

    async def load_with_retry(self, key: int) -> LiveRun:
        """Like `load`, for callers that will not retry: waits until the store can be read."""
        while True:
            try:
                return await self.load(key)
            except StoreError as error:
                if self._mover.stopping:
                    raise
                name = await public_id(self._store, key)
                logger.error("run %s cannot be loaded, trying again: %s", name, error.message)
                await asyncio.sleep(STORE_RETRY_S)

    def _loading_done(self, key: int, task: asyncio.Task[LiveRun]) -> None:
        self._loading.pop(key, None)
        if not task.cancelled():
            task.exception()  # the caller may have disconnected since

    async def _read(self, key: int) -> LiveRun:
        residents = self._residents
        if (earlier := residents.leaving.get(key)) is not None:
            if earlier.task is not None:
                await wait_while_running([earlier.task], timeout_s=CUT_S)
            await self._log.settled(earlier)
            residents.leaving.pop(key, None)
        run = await self._recovery.load(key)
        if run is None:
            raise no_such_run()
        if run.residency is BEHIND and not run.state.ended:
            residents.behind.add(run)
        else:
            residents.behind.drop(run)
        if run.state.ended:
            self._store.release(key, run.log.epoch)
            run.move(GONE)
            return run
        try:
            await self._lineage.require_known_above(run)
            ends = await self._lineage.undelivered_ends(run)
        except BaseException:
            self._store.release(key, run.log.epoch)
            raise
        residents.add(run)
        residents.kept.keep(run)
        self._driver.record(run, ends)
        self._lineage.cut_children(run)
        if ends:
            self._mover.consider(run)  # the caller may only want to read it
        return run
