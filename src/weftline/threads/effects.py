"""Runs the effects of threads when they are due, for a server or engine that has their folder.

An effect is `running` in the store before its handler is called, and settled after it: what dies between the two runs
again. docs/effects.md says what that means for handlers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from weftline.errors import StoreError
from weftline.runtime.engine import Engine
from weftline.store.database import Query
from weftline.store.records import thread_effects
from weftline.store.records.thread_effects import EffectRow
from weftline.text.redaction import Redactor
from weftline.threads.definitions.handlers import EffectDefinition
from weftline.threads.serving import Folder, called
from weftline.threads.state import LiveThread
from weftline.tools.validation_work import bounded
from weftline.work.outcomes import attempt
from weftline.work.turns import FairSemaphore, on_behalf_of
from weftline.workspace import thread_effects as effects
from weftline.workspace import threads
from weftline.workspace.alarms import RETRY_S, Alarm
from weftline.workspace.context import Workspaces

logger = logging.getLogger(__name__)

AT_ONCE = 8
"""How many effects of a workspace run at once."""
AT_ONCE_IN_ALL = 64
TRIAL_S = 2.0
"""How long an effect is on trial, as the process died while it ran. Others like it begin after that."""
_MAX_ERROR_CHARS = 1_000


class EffectAlarm(Alarm):
    """Runs what is due. Call `changed` after effects were scheduled."""

    what = "effects"

    def __init__(self, at: Workspaces, engine: Engine, folder: Callable[[], Folder]) -> None:
        """`folder` returns the present one, which changes with `serve --reload`."""
        super().__init__(at)
        self.engine = engine
        self._folder = folder
        self._places = FairSemaphore(AT_ONCE_IN_ALL, per_owner=AT_ONCE)
        self._running: asyncio.TaskGroup | None = None

    def due_workspaces(self, now: int) -> Query[list[int]]:
        return thread_effects.due_workspaces(now)

    def next_due(self, after: int) -> Query[int | None]:
        return thread_effects.next_due(after)

    async def run(self) -> None:
        await self._insist(lambda: thread_effects.left_running(now=self._at.clock.now_us()))
        async with asyncio.TaskGroup() as self._running:
            await super().run()

    async def fire_due(self, workspace: int) -> int | None:
        """Returns how many effects have begun, which does not wait for them to end."""
        assert self._running is not None
        begun = 0
        while True:
            await self._places.acquire(workspace)
            row = None
            try:
                row = await effects.begin(self._at, workspace)
            except StoreError as error:
                logger.warning("effects: the store rejects writes: %s", error.message)
                return None
            finally:
                if row is None:
                    self._places.release(workspace)
            if row is None:
                return begun
            begun += 1
            self._running.create_task(self._execute(row))

    async def _execute(self, row: EffectRow) -> None:
        on_behalf_of.set(row.workspace)
        assert self._running is not None
        trial = self._running.create_task(self._try(row)) if row.deaths else None
        try:
            error = await self._outcome(row)
        except asyncio.CancelledError:
            # The process stops. It has not died of this, which the next one would take it for.
            await self._at.records.write(thread_effects.put_back(row))
            raise
        finally:
            self._places.release(row.workspace)
            if trial is not None:
                trial.cancel()
        await self._insist(lambda: effects.settled(self._at, row, "failed" if error else "executed", error=error))
        if trial is not None:
            self.changed()

    async def _try(self, row: EffectRow) -> None:
        """Ends the trial of an effect after a while, so that it does not hold up others."""
        await asyncio.sleep(TRIAL_S)
        await self._insist(lambda: thread_effects.acquit(row))
        self.changed()

    async def _outcome(self, row: EffectRow) -> str:
        """Calls the handler, and returns what was wrong; empty if nothing was."""
        known: list[str] = []
        with attempt(or_cancelled=True) as calling:
            if row.damaged:
                raise StoreError(f"The effect is damaged: its {row.damaged} cannot be read.")
            thread, folder = await threads.by_key(self._at, row.thread), self._folder()
            definition = folder.registry.effect(row.name)
            with folder.thread(self._at, self.engine, thread, row.id, of=definition) as state:
                known += await state.variables.secrets()
                with folder.in_use():
                    await self._call(definition, row, state)
        error = calling.error
        if error is None:
            return ""
        logger.error("effect %s (%s) failed", row.id, row.name, exc_info=error)
        text = str(error)
        shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
        return Redactor(known).text(shown)[:_MAX_ERROR_CHARS]

    async def _call(self, definition: EffectDefinition, row: EffectRow, state: LiveThread) -> None:
        parameters = definition.parameters
        given = await bounded(lambda: parameters.keywords(row.args), size=len(row.args))
        if parameters.context is not None:
            given[parameters.context] = state
        limit = asyncio.timeout(definition.timeout_s)
        try:
            async with limit:
                await called(definition.handler, **given)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"it took longer than {definition.timeout_s:g} s") from None

    async def _insist(self, query: Callable[[], Query[None]]) -> None:
        """Writes, however long the store rejects that."""
        while True:
            try:
                return await self._at.records.write(query())
            except StoreError as error:
                logger.warning("effects: the store rejects writes: %s", error.message)
                await asyncio.sleep(RETRY_S)
