"""A driver for each run that needs one, as slots become free: one task per driven run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from weftline.runtime.driver import Driver
from weftline.runtime.fleet.scheduler import Scheduler
from weftline.runtime.live import DRIVEN, PARKED, SCHEDULED, LiveRun


class Drivers:
    def __init__(
        self, driver: Driver, *, max_per_workspace: int, left: Callable[[LiveRun, BaseException | None], None]
    ) -> None:
        """`left` is called when a driver has left: nothing is left to do, it was stopped, or it failed."""
        self._driver = driver
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._scheduler = Scheduler(self._start, max_per_workspace=max_per_workspace)

    def queued(self, workspace: int) -> int:
        """Returns the number of queued runs of the workspace."""
        return self._scheduler.queued(workspace)

    def submit(self, run: LiveRun) -> None:
        """Drives the run now, or when its workspace has a free slot."""
        run.move(SCHEDULED)
        self._scheduler.submit(run)

    def withdraw(self, run: LiveRun) -> None:
        """Withdraws a run that no longer needs a driver, if it is queued for one."""
        if run.residency is SCHEDULED:
            self._scheduler.withdraw(run)
            run.move(PARKED)

    def _start(self, run: LiveRun) -> None:
        if not run.gone:
            run.move(DRIVEN)
        run.task = self._loop.create_task(self._driver.drive(run))
        run.task.add_done_callback(partial(self._done, run))

    def _done(self, run: LiveRun, task: asyncio.Task[None]) -> None:
        run.task = None
        self._scheduler.finished(run)
        self._left(run, None if task.cancelled() else task.exception())
