"""A store around a store, with the faults that an engine has to survive: it can be killed, and it can refuse writes.

A commit takes a few iterations of the event loop, so that an engine that does not wait for it is found out even on a
store in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from weftline.errors import StoreError
from weftline.runtime.engine import OwnedEngine
from weftline.store.base import LogStore, Store
from weftline.store.database import Database, Query
from weftline.store.rows import Copied, Loaded, Write, Written

T = TypeVar("T")

_ITERATIONS = 5
"""How long a commit takes, in iterations of the event loop."""
_Report: TypeAlias = asyncio.Future[list[Written]]


class Faults:
    """The current faults of a store."""

    dead = False
    """Nothing reaches it any more, and it answers nobody."""
    refuses = False
    """It accepts no writes."""

    def check(self) -> None:
        if self.dead:
            raise asyncio.CancelledError


class FaultyLog:
    def __init__(self, inner: LogStore, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self._queue: deque[tuple[Sequence[Write], _Report]] = deque()
        """Flushes that the store has not been given yet."""

    def __getattr__(self, name: str) -> Any:
        """Everything but the methods below is passed on as it is, as long as the process lives."""
        member = getattr(self._inner, name)
        return partial(_while_alive, self._faults, member) if iscoroutinefunction(member) else member

    def flush(self, writes: Sequence[Write]) -> _Report:
        report: _Report = asyncio.get_running_loop().create_future()
        self._queue.append((writes, report))
        _after(_ITERATIONS, self._hand_over_first)
        return report

    def _hand_over_first(self) -> None:
        if self._faults.dead:
            return
        writes, report = self._queue.popleft()
        if self._faults.refuses and not report.done():
            report.set_result([Written("refused", error=_refusal()) for _ in writes])
        else:
            self._inner.flush(writes).add_done_callback(partial(self._report, report))

    def _report(self, report: _Report, done: _Report) -> None:
        if self._faults.dead or report.done() or done.cancelled():
            return
        if (error := done.exception()) is not None:
            report.set_exception(error)
        else:
            report.set_result(done.result())

    async def finish(self) -> None:
        """Returns when the store has been given everything."""
        while self._queue and not self._faults.dead:  # noqa: ASYNC110 - it takes a few iterations
            await asyncio.sleep(0)

    async def probe(self) -> None:
        if self._faults.refuses:
            raise _refusal()
        await _while_alive(self._faults, self._inner.probe)

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        await self.finish()
        return await _while_alive(self._faults, self._inner.claim, key, kinds=kinds)

    def release(self, key: int, epoch: int) -> None:
        if not self._faults.dead:
            self._inner.release(key, epoch)


class FaultyRecords:
    def __init__(self, inner: Database, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    async def read(self, query: Query[T], *, heavy: bool = False) -> T:
        self._faults.check()
        value = await self._inner.read(query, heavy=heavy)
        self._faults.check()
        return value

    async def write(self, query: Query[T]) -> T:
        if self._faults.refuses:
            raise _refusal()
        self._faults.check()
        value = await self._inner.write(query)
        self._faults.check()
        return value


class FaultyStore:
    """A store with faults, as one engine sees it."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.faults = Faults()
        self._log = FaultyLog(inner.log, self.faults)
        self.log = cast(LogStore, self._log)
        self.records: Database = FaultyRecords(inner.records, self.faults)
        self.vault = inner.vault

    @property
    def folder(self) -> Path | None:
        return self._inner.folder

    @property
    def outlives_process(self) -> bool:
        return self._inner.outlives_process

    def announce(self, *, socket: str) -> None:
        self._inner.announce(socket=socket)

    async def back_up(self, to: Path) -> Copied:
        return await _while_alive(self.faults, self._inner.back_up, to)

    async def shrink(self) -> int:
        return await _while_alive(self.faults, self._inner.shrink)

    async def close(self) -> None:
        await self._log.finish()
        if not self.faults.dead:
            await self._inner.close()


async def end_killed(engine: OwnedEngine, *, spared: Collection[asyncio.Task[Any]]) -> None:
    """After the death of its store: ends what is left of an engine in this process, as its death would.

    Every task of the loop counts as part of it, except the caller's and those that are `spared`.
    """
    await engine.drain(0.0)  # otherwise it would go on with whatever is interrupted here
    while left := asyncio.all_tasks() - {asyncio.current_task(), *spared}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)  # some must be told twice


async def _while_alive(faults: Faults, method: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
    """Calls a method of the store, unless one of them is dead before or after."""
    faults.check()
    value = await method(*args, **options)
    faults.check()
    return value


def _refusal() -> StoreError:
    return StoreError("The disk is full.")


def _after(iterations: int, then: Callable[[], None]) -> None:
    """Calls `then` some iterations of the event loop later."""
    again = partial(_after, iterations - 1, then) if iterations else then
    asyncio.get_running_loop().call_soon(again)
