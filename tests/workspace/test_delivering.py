"""The loop that sends webhooks: it wakes, it waits, and it stops when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.store.records.deliveries import DeliveryRow
from weftline.store.records.webhooks import WebhookRow
from weftline.workspace.context import Workspaces
from weftline.workspace.delivering import Deliveries

TIMEOUT_S = 60


class Waiting:
    """Says when the loop has looked at what is due and waits for more."""

    def __init__(self, at: Workspaces) -> None:
        self.looked = asyncio.Event()
        self.deliveries = Deliveries(at, Dialer(Egress()), retry_s=(), render=self._render, watch=self._watch)

    async def _render(self, webhook: WebhookRow, row: DeliveryRow) -> bytes:
        raise AssertionError("there is nothing to send")

    def _watch(self, wake: Callable[[], None] | None) -> None:
        self.looked.set()


async def test_delivering_stops_even_if_a_run_ends_at_that_moment(at: Workspaces) -> None:
    for turns in range(12):
        waiting = Waiting(at)
        task = asyncio.create_task(waiting.deliveries.run())
        await waiting.looked.wait()
        for _ in range(turns):  # wherever it stands by now, the wake-up and the cancel come at once
            await asyncio.sleep(0)
        waiting.deliveries.changed()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=TIMEOUT_S)
        assert done and task.cancelled()
