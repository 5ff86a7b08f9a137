"""Engines with a bug, planted at the seam: an engine around an engine, or one whose commands run ahead of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from weftline.kernel.state import Command, State
from weftline.runtime.carry_out import carry_out
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.live import WorkingSet
from weftline.runtime.services import Outcome, Services, Sink

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
