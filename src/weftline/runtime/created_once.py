"""Ensures that a run is created only once.

A request that is repeated with its Idempotency-Key finds the run of the first one; a request that chooses an id is
rejected if that run exists. Of concurrent requests, one goes first and the others wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeAlias

from weftline.errors import Conflict
from weftline.runtime import ids
from weftline.runtime.reads.finding import row_of
from weftline.store.base import LogReader
from weftline.store.rows import IdempotencyKey

Slot: TypeAlias = tuple[int, str, str]
"""Workspace, route and key of a request; or workspace and id of a run, with an empty route in between."""


class CreatedOnce:
    def __init__(self, store: LogReader) -> None:
        self._store = store
        self._creating: dict[Slot, asyncio.Future[None]] = {}

    async def find(self, workspace: int, idempotency: IdempotencyKey) -> str | None:
        """The id of the run that was created under the key, even if it is still being created.

        Raises:
            Conflict: `idempotency_conflict`, if the key was used for another request.
        """
        slot = (workspace, idempotency.route, idempotency.key)
        await self._free(slot)
        return await self.created(slot, idempotency.digest)

    async def take(self, workspace: int, idempotency: IdempotencyKey) -> Slot:
        """Waits until no other request with this key is creating a run, then reserves the key for this one.

        `release` must follow.
        """
        return await self._occupy((workspace, idempotency.route, idempotency.key))

    async def take_id(self, workspace: int, run_id: str) -> Slot:
        """The same for the id of a run, if the client chose it.

        Raises:
            Conflict: `run_exists`. Nothing is reserved then.
        """
        slot = await self._occupy((workspace, "", run_id))
        try:
            if await row_of(self._store, run_id, workspace=workspace) is not None:
                raise Conflict(f"There is already a run {run_id!r}.", code="run_exists", run_id=run_id)
        except BaseException:
            self.release(slot)
            raise
        return slot

    async def _occupy(self, slot: Slot) -> Slot:
        await self._free(slot)
        self._creating[slot] = asyncio.get_running_loop().create_future()
        return slot

    def release(self, slot: Slot) -> None:
        self._creating.pop(slot).set_result(None)

    def release_after(self, slots: Iterable[Slot], _: object) -> None:
        """Releases them when a future is done."""
        for slot in slots:
            self.release(slot)

    async def created(self, slot: Slot, digest: bytes) -> str | None:
        """Like `find`, but only for runs that are stored."""
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
