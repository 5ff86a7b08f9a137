"""Ends a cancelled run. The process that received the cancel stops what is running first."""

from __future__ import annotations

import logging
from collections.abc import Callable

from weftline.errors import WeftlineError
from weftline.runtime.driver import Driver
from weftline.runtime.fleet.drivers import Drivers
from weftline.runtime.fleet.lineage import Lineage
from weftline.runtime.fleet.task_set import TaskSet
from weftline.runtime.live import Cut, LiveRun
from weftline.runtime.log import Log
from weftline.runtime.waiting import wait_while_running

logger = logging.getLogger(__name__)

CANCEL_GRACE_S = 2.0
"""How long a cancelled run's work has to stop before the run ends without it."""


class Cancelling:
    def __init__(
        self,
        driver: Driver,
        drivers: Drivers,
        log: Log,
        lineage: Lineage,
        tasks: TaskSet,
        *,
        failed: Callable[[LiveRun, BaseException], None],
    ) -> None:
        """`failed` is called for a run that could not be ended."""
        self._driver = driver
        self._drivers = drivers
        self._log = log
        self._lineage = lineage
        self._tasks = tasks
        self._failed = failed

    def end(self, run: LiveRun) -> None:
        """Ends a run that was cancelled, once its work has stopped or the grace period is over."""
        match run.driving.cut:
            case Cut.NO if run.task is not None and not self._driver.stopping:
                run.log.due_at = 0  # the next process ends it, if this one does not
                run.driving.cut = Cut.BEGUN
                self._tasks.spawn(self._cut_and_end(run))
            case Cut.BEGUN:
                pass
            case Cut.NO | Cut.DONE:
                self._end_now(run)

    async def _cut_and_end(self, run: LiveRun) -> None:
        try:
            await self._log.durable(run)  # the request is durable before anything is stopped
        except WeftlineError:
            return  # the run was dropped, and continues from a log in which nobody has cancelled it
        if run.task is not None:
            run.task.cancel()
            await wait_while_running([run.task], timeout_s=CANCEL_GRACE_S)
        run.driving.cut = Cut.DONE
        if not run.gone and not run.state.ended:
            self._end_now(run)

    def _end_now(self, run: LiveRun) -> None:
        try:
            self._driver.advance(run)
        except Exception as error:
            logger.exception("run %s could not be ended", run.id)
            self._failed(run, error)
            return
        self._drivers.withdraw(run)
        if run.task is not None and run.driving.cut is Cut.NO:
            run.task.cancel()
        if not run.state.ended:
            self._tasks.spawn(self._lineage.cancel(run.state.open_children, by=run.state.control.cancelled_by))
