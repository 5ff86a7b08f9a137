"""Sending what webhooks are to be told."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest
from msgspec.structs import replace

from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.store.base import Database, Query
from weftline.store.records.deliveries import DeliveryRow
from weftline.store.records.webhooks import WebhookRow
from weftline.workspace.context import Workspaces
from weftline.workspace.delivering import Deliveries

T = TypeVar("T")
PATIENCE_S = 60.0
READS_OF_A_ROUND = 3


class WatchedReads:
    """A database that tells when a round of deliveries has read all it needs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reads = 0
        self.rounds = [asyncio.Event(), asyncio.Event()]

    async def read(self, query: Query[T], *, heavy: bool = False) -> T:
        value = await self._database.read(query, heavy=heavy)
        self._reads += 1
        if self._reads % READS_OF_A_ROUND == 0:
            self.rounds[self._reads // READS_OF_A_ROUND - 1].set()
        return value

    async def write(self, query: Query[T]) -> T:
        return await self._database.write(query)


async def never(webhook: WebhookRow, row: DeliveryRow) -> bytes:
    raise AssertionError("nothing is due")


@pytest.mark.parametrize("steps", range(6))
async def test_a_stop_that_comes_with_the_end_of_a_run_is_not_swallowed(at: Workspaces, steps: int) -> None:
    records = WatchedReads(at.records)
    deliveries = Deliveries(
        replace(at, records=records), Dialer(Egress()), retry_s=(), render=never, watch=lambda watch: None
    )
    task = asyncio.create_task(deliveries.run())
    async with asyncio.timeout(PATIENCE_S):
        await records.rounds[0].wait()
        for _ in range(5):  # it waits for something to do by then
            await asyncio.sleep(0)
        deliveries.changed()
        for _ in range(steps):  # the stop may come at any step of its waking up
            await asyncio.sleep(0)
        task.cancel()
        another_round = asyncio.create_task(records.rounds[1].wait())
        await asyncio.wait({task, another_round}, return_when=asyncio.FIRST_COMPLETED)
        another_round.cancel()
    assert task.cancelled()
