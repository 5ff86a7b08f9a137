"""The loop that sends webhooks: it wakes, it waits, and it stops when it is told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.store.records.deliveries import DeliveryRow
from weftline.store.records.webhooks import WebhookRow
from weftline.workspace import webhooks
from weftline.workspace.context import Workspaces
from weftline.workspace.delivering import WebhookDeliveries

from .test_webhooks import URL, ended

TIMEOUT_S = 60


class Waiting:
    """Says when the loop has looked at what is due and waits for more."""

    def __init__(self, at: Workspaces) -> None:
        self.looked = asyncio.Event()
        self.deliveries = WebhookDeliveries(at, Dialer(Egress()), retry_s=(), render=self._render, watch=self._watch)

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


async def test_a_workspace_whose_endpoints_answer_nothing_leaves_places_to_the_others(
    at: Workspaces, acme: int, globex: int
) -> None:
    begun: Counter[int] = Counter()
    reached = asyncio.Event()

    async def stuck(webhook: WebhookRow, row: DeliveryRow) -> bytes:
        begun[webhook.workspace] += 1
        if webhook.workspace == globex:
            reached.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    for run in range(1, 20):
        await ended(at, (await webhooks.create(at, acme, URL)).webhook, run)
    await ended(at, (await webhooks.create(at, globex, URL)).webhook, 50)
    delivering = WebhookDeliveries(at, Dialer(Egress()), retry_s=(), render=stuck, watch=lambda _: None)
    task = asyncio.create_task(delivering.run())
    async with asyncio.timeout(TIMEOUT_S):
        await reached.wait()
    assert begun[acme] <= 8
    task.cancel()
    await asyncio.wait({task}, timeout=TIMEOUT_S)
