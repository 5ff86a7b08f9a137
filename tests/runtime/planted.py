"""Engines with a bug, planted at the seam: an engine around an engine, or one whose commands run ahead of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import CoroutineType
from typing import Any

from msgspec.structs import replace

from weftline.kernel.state import Command, State
from weftline.runtime.carry_out import carry_out
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.engine import EntryBatch, Follower, Observer
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.live import WorkingSet
from weftline.runtime.services import Outcome, Services, Sink
from weftline.runtime.tasks import wait_while_running

from .subjects import NewEngine


class Planted:
    """Passes everything on to an engine that is in order, except what is replaced."""

    def __init__(self, inner: Any, **replaced: Any) -> None:
        self._inner = inner
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def with_method(name: str, new: Callable[[Any], Any]) -> NewEngine:
    """Engines of which one member is replaced by `new(engine)`."""

    def new_engine(*args: Any, **parts: Any) -> Planted:
        inner = EmbeddedEngine(*args, **parts)
        return Planted(inner, **{name: new(inner)})

    return new_engine


def idle(name: str, answer: Any = None) -> NewEngine:
    """A request that does nothing, and says that all is well."""

    async def nothing(*args: Any, **options: Any) -> Any:
        return answer

    return with_method(name, lambda _: nothing)


def mute(name: str, answer: Any = None) -> NewEngine:
    """The same for a method that is not awaited."""

    def nothing(*args: Any, **options: Any) -> Any:
        return answer

    return with_method(name, lambda _: nothing)


def hasty(name: str, answer: Any = None) -> NewEngine:
    """A request that is acknowledged before it is durable."""

    def new(engine: Any) -> Any:
        async def ask(*args: Any, **options: Any) -> Any:
            asking = asyncio.ensure_future(getattr(engine, name)(*args, **options))
            for _ in range(3):
                await asyncio.sleep(0)  # it is appended by now
            return asking.result() if asking.done() else answer

        return ask

    return with_method(name, new)


def forgetting(name: str, option: str, value: Any) -> NewEngine:
    """A request one option of which is ignored."""

    def new(engine: Any) -> Any:
        def ask(*args: Any, **options: Any) -> Any:
            return getattr(engine, name)(*args, **(options | {option: value}))

        return ask

    return with_method(name, new)


def answering(name: str, change: Callable[[Any], Any]) -> NewEngine:
    """A request whose answer is changed."""

    def new(engine: Any) -> Any:
        async def ask(*args: Any, **options: Any) -> Any:
            return change(await getattr(engine, name)(*args, **options))

        return ask

    return with_method(name, new)


def excusing(name: str, error: type[Exception]) -> NewEngine:
    """A request that does not say that it was refused."""

    def new(engine: Any) -> Any:
        async def ask(*args: Any, **options: Any) -> None:
            with suppress(error):
                await getattr(engine, name)(*args, **options)

        return ask

    return with_method(name, new)


class PlantedFollower:
    def __init__(self, inner: Follower, change: Callable[[Sequence[EntryBatch]], Sequence[EntryBatch]]) -> None:
        self._inner, self._change = inner, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def next(self) -> Sequence[EntryBatch] | None:
        while (batches := await self._inner.next()) is not None:
            changed = self._change(batches)
            if changed or not batches:
                return changed
        return None


def showing(change: Callable[[Sequence[EntryBatch]], Sequence[EntryBatch]]) -> NewEngine:
    """Engines whose followers receive other batches."""

    def new(engine: Any) -> Any:
        def follow(*args: Any, **options: Any) -> PlantedFollower:
            return PlantedFollower(engine.follow(*args, **options), change)

        return follow

    return with_method("follow", new)


def describing(**wrong: Any) -> NewEngine:
    """Engines whose batches have something wrong with them."""
    return showing(lambda batches: [replace(batch, **wrong) for batch in batches])


def without_deltas(batches: Sequence[EntryBatch]) -> Sequence[EntryBatch]:
    return [batch for batch in batches if any(item.head for item in batch.items)]


def observed_until_it_fails(engine: Any) -> Any:
    def observe(observer: Observer) -> Callable[[], None]:
        def call(batch: EntryBatch) -> None:
            try:
                observer(batch)
            except Exception:
                leave()
                raise

        leave = engine.observe(call)
        return leave

    return observe


def beating(times: int, out_of: int = 1) -> NewEngine:
    """Engines that count so many beats for so many."""

    def new(engine: Any) -> Any:
        count = iter(range(10**6))

        def beat() -> None:
            if next(count) % out_of == out_of - 1:
                for _ in range(times):
                    engine.beat()

        return beat

    return with_method("beat", new)


def without_limits(*args: Any, **parts: Any) -> EmbeddedEngine:
    return EmbeddedEngine(*args, **(parts | {"limits": WorkspaceLimits()}))


def drain_that_goes_on(engine: Any) -> Any:
    """Waits for running work, which may begin more."""

    async def drain(drain_s: float) -> None:
        if not drain_s:
            await engine.drain(0)
        engine.ready = False
        tasks = [run.task for run in engine._fleet.residents.runs.values() if run.task is not None]
        await wait_while_running(tasks, timeout_s=drain_s)

    return drain


def drain_without_end(engine: Any) -> Any:
    async def drain(drain_s: float) -> None:
        await engine.drain(60.0 if drain_s else 0.0)

    return drain


def abort_that_leaves_streams_open(engine: Any) -> Any:
    async def abort(*, hurry: asyncio.Event | None = None) -> bool:
        engine._hub.end_all = lambda: None
        return await engine.abort(hurry=hurry)

    return abort


def abort_that_writes_nothing(engine: Any) -> Any:
    async def abort(*, hurry: asyncio.Event | None = None) -> bool:
        engine._fleet.abandon()
        engine._log._give_up()
        engine._hub.end_all()
        return True

    return abort


def new_workspaces(engine: Any) -> Any:
    count = iter(range(10**6))

    async def workspace(slug: str) -> int:
        return await engine.workspace(f"{slug}{next(count)}")

    return workspace


class AheadOfTheLog:
    """A sink that waits for nothing when it is asked to wait for `what`."""

    def __init__(self, inner: Sink, what: str) -> None:
        self._inner, self._what = inner, what

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def permit(self, *, all: bool = False) -> None:
        if self._what != "permit":
            await self._inner.permit(all=all)

    async def durable(self) -> None:
        if self._what != "durable":
            await self._inner.durable()


def ahead(what: str) -> NewEngine:
    """Engines that begin things before the log says so."""

    def at_once(
        command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
    ) -> CoroutineType[Any, Any, Outcome | None]:
        planted: Any = AheadOfTheLog(sink, what)
        return carry_out(command, state, work, services, planted)

    return lambda *args, **parts: EmbeddedEngine(*args, **parts, carry_out=at_once)
