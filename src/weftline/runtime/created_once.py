"""Runs that are created once: a request that comes again with its Idempotency-Key finds the run of the first one."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from weftline.errors import Conflict
from weftline.runtime import ids
from weftline.store.base import IdempotencyKey, LogReader

Slot: TypeAlias = tuple[int, str, str]
"""Workspace, route and key of a request."""


class CreatedOnce:
    def __init__(self, store: LogReader) -> None:
        self._store = store
        self._creating: dict[Slot, asyncio.Future[None]] = {}

    async def find(self, workspace: int, idempotency: IdempotencyKey) -> str | None:
        """The id of the run that was created under the key, also if that is still under way.

        Raises:
            Conflict: `idempotency_conflict`, if the key was used for another request.
        """
        slot = (workspace, idempotency.route, idempotency.key)
        await self._free(slot)
        return await self.created(slot, idempotency.digest)

    async def take(self, workspace: int, idempotency: IdempotencyKey) -> Slot:
        """Waits until no other request with this key is creating a run, and then makes this one the only one.

        `release` must follow.
        """
        slot = (workspace, idempotency.route, idempotency.key)
        await self._free(slot)
        self._creating[slot] = asyncio.get_running_loop().create_future()
        return slot

    def release(self, slot: Slot) -> None:
        self._creating.pop(slot).set_result(None)

    async def created(self, slot: Slot, digest: bytes) -> str | None:
        """As `find`, of what is stored."""
        earlier = await self._store.idempotent(*slot)
        if earlier is None:
            return None
        row = await self._store.run(earlier[1])
        run_id = ids.run_id(row.key, row.salt) if row is not None else ""
        if earlier[0] != digest:
            raise Conflict(
                "This Idempotency-Key was used for another request.", code="idempotency_conflict", run_id=run_id
            )
        return run_id

    async def _free(self, slot: Slot) -> None:
        while (first := self._creating.get(slot)) is not None:
            await asyncio.shield(first)
