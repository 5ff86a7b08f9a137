"""The loop that sends webhooks: it wakes, it waits, and it stops when it is told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from msgspec.structs import replace

from weftline.cases import webhooks
from weftline.errors import StoreError, WeftlineError
from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.store.database import Database
from weftline.store.records.deliveries import DeliveryRow, of_webhook
from weftline.store.records.webhooks import WebhookRow
from weftline.workspace import delivering
from weftline.workspace.context import Workspaces
from weftline.workspace.delivering import WebhookDeliveries

from .conftest import Clock
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


async def test_workspace_whose_endpoints_answer_nothing_leaves_places_to_others(
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
        await ended(at, (await webhooks.add(at, acme, URL)).webhook, run)
    await ended(at, (await webhooks.add(at, globex, URL)).webhook, 50)
    delivering = WebhookDeliveries(at, Dialer(Egress()), retry_s=(), render=stuck, watch=lambda _: None)
    task = asyncio.create_task(delivering.run())
    async with asyncio.timeout(TIMEOUT_S):
        await reached.wait()
    assert begun[acme] <= 8
    task.cancel()
    await asyncio.wait({task}, timeout=TIMEOUT_S)


class Receivers:
    """A local server whose paths are receivers: `/hang…` never answers, the others do at once. While it is open,
    deliveries are sent to it.
    """

    def __init__(self, at: Workspaces) -> None:
        self.reached: Counter[str] = Counter()
        self._at = at
        self._changed = asyncio.Event()
        self._dialer = Dialer(Egress(hosts=frozenset({"127.0.0.1"})))
        self.deliveries = WebhookDeliveries(at, self._dialer, retry_s=(0,), render=self._render, watch=lambda _: None)

    async def __aenter__(self) -> Receivers:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sending.cancel()
        await asyncio.wait({self._sending}, timeout=TIMEOUT_S)
        await self._dialer.aclose()
        self._server.close()

    async def add(self, workspace: int, path: str, *, runs: range) -> int:
        """The key of a new webhook with a delivery for each run."""
        port = self._server.sockets[0].getsockname()[1]
        made = await webhooks.add(self._at, workspace, f"http://127.0.0.1:{port}{path}")
        for run in runs:
            await ended(self._at, made.webhook, run)
        return made.webhook.key

    async def until_settled(self, webhook: int, *, attempts: int) -> None:
        """Until so many attempts have been recorded as failed."""
        async with asyncio.timeout(TIMEOUT_S):
            while sum(row.attempts for row in await self._at.records.read(of_webhook(webhook))) < attempts:  # noqa: ASYNC110
                await asyncio.sleep(0)

    def start(self) -> None:
        self._sending = asyncio.create_task(self.deliveries.run())

    async def until(self, path: str, *, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.reached[path] < count:
                self._changed.clear()
                await self._changed.wait()

    async def _render(self, webhook: WebhookRow, row: DeliveryRow) -> bytes:
        return b"{}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(2)
                path = head.split()[1].decode()
                self.reached[path] += 1
                self._changed.set()
                if not path.startswith("/hang"):
                    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()


async def test_receivers_that_hang_leave_places_to_a_good_one(at: Workspaces, acme: int) -> None:
    """None of the hanging requests ends while the good ones are delivered."""
    async with Receivers(at) as receivers:
        for number in range(7):
            await receivers.add(acme, f"/hang{number}", runs=range(1, 20))
        await receivers.add(acme, "/good", runs=range(100, 160))
        receivers.start()
        await receivers.until("/good", count=60)
        assert max(receivers.reached[f"/hang{number}"] for number in range(7)) == 1


async def test_receiver_that_timed_out_is_tried_again_after_pause(
    at: Workspaces, acme: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "_TIMEOUT_S", 0.05)
    async with Receivers(at) as receivers:
        hanging = [await receivers.add(acme, f"/hang{number}", runs=range(1, 20)) for number in range(9)]
        await receivers.add(acme, "/good", runs=range(100, 160))
        receivers.start()
        await receivers.until("/good", count=60)
        for attempts, pause_s in ((1, 10), (2, 20)):
            for webhook in hanging:
                await receivers.until_settled(webhook, attempts=attempts)
            clock.us += (pause_s - 1) * 1_000_000
            await receivers.add(acme, f"/good{pause_s}", runs=range(200, 210))
            receivers.deliveries.changed()
            await receivers.until(f"/good{pause_s}", count=10)
            assert {receivers.reached[f"/hang{number}"] for number in range(9)} == {attempts}, "too early"
            clock.us += 1_000_000
            receivers.deliveries.changed()
            for number in range(9):
                await receivers.until(f"/hang{number}", count=attempts + 1)


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
    await ended(at, (await webhooks.add(at, acme, URL)).webhook, 1)
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


async def test_body_that_cannot_be_made_fails_the_attempt_once(at: Workspaces, acme: int) -> None:
    row = (await webhooks.add(at, acme, URL)).webhook
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
