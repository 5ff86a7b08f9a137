"""The loop that sends webhooks: it wakes, it waits, and it stops when it is told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from weftline.errors import StoreError, WeftlineError
from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.store.database import Database
from weftline.store.records.deliveries import DeliveryRow, of_webhook
from weftline.store.records.webhooks import WebhookRow
from weftline.workspace import delivering, webhooks
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


class Sick:
    """Records that cannot be read the first few times."""

    def __init__(self, records: Database, failures: int) -> None:
        self._records = records
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    async def read(self, query: Any, **options: Any) -> Any:
        if self._failures:
            self._failures -= 1
            query.close()
            raise StoreError("The store cannot be read.")
        return await self._records.read(query, **options)


async def test_delivering_goes_on_after_the_store_could_not_be_read(
    at: Workspaces, acme: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "_RETRY_S", 0.001)
    monkeypatch.setattr(delivering, "_TIMEOUT_S", 0.001)
    await ended(at, (await webhooks.create(at, acme, URL)).webhook, 1)
    reached = asyncio.Event()

    async def rendered(webhook: WebhookRow, row: DeliveryRow) -> bytes:
        reached.set()
        raise WeftlineError("The run is gone.")

    sick = replace(at, records=cast("Database", Sick(at.records, failures=6)))
    deliveries = WebhookDeliveries(sick, Dialer(Egress()), retry_s=(), render=rendered, watch=lambda _: None)
    task = asyncio.create_task(deliveries.run())
    async with asyncio.timeout(TIMEOUT_S):
        await reached.wait()
    assert not task.done()
    task.cancel()
    await asyncio.wait({task}, timeout=TIMEOUT_S)


async def test_a_body_that_cannot_be_made_is_a_failed_attempt_and_not_tried_without_end(
    at: Workspaces, acme: int
) -> None:
    row = (await webhooks.create(at, acme, URL)).webhook
    await ended(at, row, 1)
    tries = 0

    async def fails(webhook: WebhookRow, row: DeliveryRow) -> bytes:
        nonlocal tries
        tries += 1
        raise ValueError("a bug")

    deliveries = WebhookDeliveries(at, Dialer(Egress()), retry_s=(), render=fails, watch=lambda _: None)
    task = asyncio.create_task(deliveries.run())
    async with asyncio.timeout(TIMEOUT_S):
        while not (failed := await at.records.read(of_webhook(row.key, status="failed"))):  # noqa: ASYNC110
            await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert (tries, failed[0].attempts) == (1, 1)
    task.cancel()
    await asyncio.wait({task}, timeout=TIMEOUT_S)
