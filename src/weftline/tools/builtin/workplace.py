"""A context and the handle that toolsets use in it.

Toolsets that were given the same context object and the same directory share one handle: `files(".", context=box)` and
`shell(".", context=box)` see the same files.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from weftline import prompts
from weftline.tools.base import Tool, ToolFailed
from weftline.tools.builtin.reading import display_path
from weftline.tools.contexts.base import ContextDestroyed, ContextUnavailable, ExecutionContext, FileError, Handle
from weftline.tools.contexts.process import ProcessContext
from weftline.tools.workers import shared_workers

T = TypeVar("T")

_FEW_BYTES = 1 << 16


class Workplace:
    """A shared handle: spawned on first use, and destroyed when the last toolset that opened it is closed."""

    def __init__(self, context: ExecutionContext, root: str) -> None:
        self.context = context
        self._root = root
        self._handle: Handle | None = None
        self._users = 0

    async def handle(self) -> Handle:
        if self._handle is None:
            made = await self.context.spawn(cwd=self._root)
            if self._handle is not None:  # another task was faster
                await self.context.destroy(made)
            else:
                self._handle = made
        return self._handle

    async def enter(self) -> None:
        await self.handle()
        self._users += 1

    async def leave(self) -> None:
        self._users = max(0, self._users - 1)
        if not self._users and self._handle is not None:
            gone, self._handle = self._handle, None
            await self.context.destroy(gone)


class WorkplaceTools:
    """Tools that share a workplace, which exists from the first toolset that is opened to the last that is closed."""

    def __init__(self, place: Workplace, tools: Sequence[Tool]) -> None:
        self._place = place
        self.tools = tuple(tools)

    async def open(self) -> Sequence[Tool]:
        if self.tools:
            await self._place.enter()
        return self.tools

    async def close(self) -> None:
        if self.tools:
            await self._place.leave()


_shared: WeakValueDictionary[tuple[int, str], Workplace] = WeakValueDictionary()
"""By the id of the context, which its workplace keeps alive."""


def workplace(context: ExecutionContext | None, root: str | os.PathLike[str]) -> Workplace:
    """Returns the workplace of `context` in `root`; without a context, one on this machine."""
    if context is None:
        return Workplace(ProcessContext(), os.path.abspath(root))
    local = isinstance(context, ProcessContext)
    path = os.path.abspath(root) if local else os.fspath(root)
    return _shared.setdefault((id(context), path), Workplace(context, path))


async def off_the_loop(call: Callable[[], T], *, size: int) -> T:
    """Runs a computation: directly for a small input, in a thread for a large one."""
    return call() if size <= _FEW_BYTES else await shared_workers().run(call)


@asynccontextmanager
async def errors_for_model() -> AsyncGenerator[None]:
    """Turns errors of files and contexts into results that a model can read."""
    try:
        yield
    except FileError as error:
        raise ToolFailed(
            prompts.files.file_error(display_path(error.path), error.kind, display_path(error.reason))
        ) from None
    except (ContextUnavailable, ContextDestroyed) as error:
        raise ToolFailed(error.message) from None
