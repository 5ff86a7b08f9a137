"""Ends long-running responses when their credential is revoked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from weftline.api.principal import Principal
from weftline.server.auth import Authenticator

T = TypeVar("T")


class OpenStream(Struct, eq=False):
    """A long-running response."""

    principal: Principal
    revoked: bool = False
    task: asyncio.Task[object] | None = None

    def end(self) -> None:
        self.revoked = True
        if self.task is not None:
            self.task.cancel()


class OpenStreams:
    def __init__(self, auth: Authenticator) -> None:
        self._auth = auth
        self._open: dict[bytes, set[OpenStream]] = {}
        """By credential."""

    async def carry(
        self, principal: Principal, work: Callable[[], Awaitable[T]], *, stream: OpenStream | None = None
    ) -> T:
        """Runs `work`. Raises `ConnectionResetError` if the credential is revoked before it is done."""
        stream = stream or OpenStream(principal)
        stream.task = task = asyncio.current_task()
        assert task is not None
        of_credential = self._open.setdefault(principal.digest, set())
        of_credential.add(stream)
        try:
            if not self._auth.remembers(principal) and not await self._auth.is_valid(principal):
                # Revoked since the request was accepted. The work begins anyway, as it may have things to close.
                stream.end()
            return await work()
        except asyncio.CancelledError:
            if not stream.revoked:
                raise
            task.uncancel()
            raise ConnectionResetError from None
        finally:
            stream.task = None
            of_credential.discard(stream)
            if not of_credential:
                self._open.pop(principal.digest, None)

    async def end_revoked(self, workspace: int | None) -> None:
        """Ends the streams whose credential is no longer valid; of one workspace, or of all."""
        for streams in list(self._open.values()):
            principal = next(iter(streams)).principal if streams else None
            if principal is None or workspace not in (None, principal.workspace):
                continue
            if not await self._auth.is_valid(principal):
                for stream in list(streams):
                    stream.end()
