"""Commands and files in a sandbox of an external service, behind a few methods.

A provider connects a service to Weftline. It raises `FileError` for files; any other exception fails the call.
Time-outs, handles and cleanup are managed here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from typing import Protocol

from weftline.tools.contexts.base import (
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    TIMED_OUT,
    TIMEOUT_S,
    Capabilities,
    Command,
    ContextDestroyed,
    ExecResult,
    FileBytes,
    Handle,
    Listing,
    walk,
)

_SLOWER_S = 10.0
"""How much longer than the command's own time an answer may take."""


class SandboxProvider(Protocol):
    """The methods of a service. A sandbox is identified by the id that `create` returns with its working directory."""

    async def create(self, *, cwd: str | None, env: Mapping[str, str]) -> tuple[str, str]:
        """Creates a sandbox, and returns its id and working directory."""
        ...

    async def exec(
        self, sandbox: str, command: Command, *, cwd: str, env: Mapping[str, str], timeout_s: float, stdin: bytes
    ) -> ExecResult:
        """Runs a command, and kills it with its children after `timeout_s` and when cancelled."""
        ...

    async def read_file(self, sandbox: str, path: str, *, max_bytes: int) -> FileBytes: ...
    async def write_file(self, sandbox: str, path: str, data: bytes) -> str: ...
    async def list_directory(self, sandbox: str, path: str) -> Listing: ...
    async def destroy(self, sandbox: str) -> None: ...


class RemoteContext:
    """A sandbox of `provider` per handle."""

    type = "sandbox"

    def __init__(
        self,
        provider: SandboxProvider,
        *,
        capabilities: Capabilities | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.capabilities = capabilities or Capabilities(shell=True, filesystem=True, network=True)
        self._provider = provider
        self._env = dict(env or {})
        self._timeout_s = timeout_s
        self._alive: dict[str, set[asyncio.Task[ExecResult]]] = {}

    async def spawn(self, *, cwd: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None) -> Handle:
        folder = None if cwd is None else os.fspath(cwd)
        sandbox, where = await self._provider.create(cwd=folder, env={**self._env, **(env or {})})
        self._alive[sandbox] = set()
        return Handle(sandbox, self.type, where)

    async def exec(
        self,
        handle: Handle,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        under_way = self._under_way(handle)
        where = os.path.join(handle.cwd, cwd) if cwd else handle.cwd
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        call = self._provider.exec(handle.id, command, cwd=where, env=dict(env or {}), timeout_s=limit_s, stdin=stdin)
        task = asyncio.ensure_future(call)
        under_way.add(task)
        try:
            async with asyncio.timeout(limit_s + _SLOWER_S):
                result = await task
        except TimeoutError:
            return ExecResult(stdout=b"", stderr=b"", exit_code=TIMED_OUT, timed_out=True)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or not caller.cancelling():
                self._under_way(handle)  # `destroy` cancelled the command, not this call
            raise
        finally:
            under_way.discard(task)
        self._under_way(handle)
        return result

    async def read_file(self, handle: Handle, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> FileBytes:
        self._under_way(handle)
        return await self._provider.read_file(handle.id, path, max_bytes=max_bytes)

    async def write_file(self, handle: Handle, path: str, data: bytes) -> str:
        self._under_way(handle)
        return await self._provider.write_file(handle.id, path, data)

    async def list_files(
        self,
        handle: Handle,
        path: str = ".",
        *,
        recursive: bool = False,
        skip: Collection[str] = (),
        max_entries: int = MAX_ENTRIES,
    ) -> Listing:
        return await walk(self, handle, path, recursive=recursive, skip=skip, max_entries=max_entries)

    async def list_directory(self, handle: Handle, path: str) -> Listing:
        self._under_way(handle)
        return await self._provider.list_directory(handle.id, path)

    async def destroy(self, handle: Handle) -> None:
        under_way = self._alive.pop(handle.id, None)
        if under_way is None:
            return
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._provider.destroy(handle.id)

    def _under_way(self, handle: Handle) -> set[asyncio.Task[ExecResult]]:
        if handle.id not in self._alive:
            raise ContextDestroyed(f"the sandbox {handle.id} was destroyed")
        return self._alive[handle.id]
