"""Delivering webhooks: what is due is in the store, and stays there until it was delivered or given up.

A delivery row is written in the transaction that ends its run, so that none is lost; after a crash between the sending
and the note of it, it is sent again under the same id. The body is made from the log when it is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections import Counter
from functools import partial

from msgspec import Raw
from msgspec.json import encode

from weftline._version import __version__
from weftline.errors import StoreError, WeftlineError
from weftline.net.dial import Dialer
from weftline.net.errors import RequestFailed
from weftline.runtime.embedded import Engine
from weftline.server.routes.lists import listed_run
from weftline.store.sqlite import webhooks
from weftline.store.sqlite.webhooks import DeliveryRow, WebhookRow
from weftline.wire.responses import iso

logger = logging.getLogger(__name__)

SIGNATURE = "Weftline-Signature"
_TIMEOUT_S = 10.0
_AT_ONCE, _AT_ONCE_EACH = 32, 4
_LONGEST_WAIT_S = 30.0
_ANSWER_BYTES = 4096


class Deliveries:
    """Sends what is due, `run` until it is cancelled. `changed` is to be called after webhooks were changed.

    `retry_s` are the waits between attempts; after the last one a delivery has failed.
    """

    def __init__(self, engine: Engine, dialer: Dialer, *, retry_s: tuple[float, ...]) -> None:
        self._engine = engine
        self._dialer = dialer
        self._retry_s = retry_s
        self._wake = asyncio.Event()
        self._under_way: dict[int, tuple[int, asyncio.Task[None]]] = {}

    def changed(self) -> None:
        """Without a webhook nobody needs to hear about the ends of runs."""
        some = webhooks.any_enabled(self._engine.read.db)
        self._engine.on_ended = self._wake.set if some else None
        self._wake.set()

    async def run(self) -> None:
        self.changed()
        try:
            while True:
                self._wake.clear()
                now = self._engine.clock.now_us()
                self._start_due(now)
                await self._something_to_do(now)
        finally:
            tasks = [task for _, task in self._under_way.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start_due(self, now: int) -> None:
        """Begins what is due, a few of each webhook at once: one that is slow does not hold up the others."""
        self._under_way = {key: one for key, one in self._under_way.items() if not one[1].done()}
        busy = Counter(webhook for webhook, _ in self._under_way.values())
        begun = True
        while begun and len(self._under_way) < _AT_ONCE:
            full = [webhook for webhook, count in busy.items() if count >= _AT_ONCE_EACH]
            begun = False
            for row in webhooks.due(self._engine.read.db, now, limit=2 * _AT_ONCE, without=full):
                if row.key in self._under_way or busy[row.webhook] >= _AT_ONCE_EACH:
                    continue
                begun = True
                busy[row.webhook] += 1
                task = asyncio.create_task(self._deliver(row))
                task.add_done_callback(lambda _: self._wake.set())
                self._under_way[row.key] = (row.webhook, task)

    async def _something_to_do(self, after: int) -> None:
        """Returns when a run or a delivery has ended, or when a delivery is due that was not at `after`."""
        wait_s = _LONGEST_WAIT_S
        due_at = webhooks.next_due(self._engine.read.db, after)
        if due_at is not None:
            wait_s = min(wait_s, max(0.0, (due_at - self._engine.clock.now_us()) / 1e6))
        try:
            await asyncio.wait_for(self._wake.wait(), wait_s)
        except TimeoutError:
            pass

    async def _deliver(self, row: DeliveryRow) -> None:
        webhook = webhooks.by_key(self._engine.read.db, row.webhook)
        if webhook is None:
            return
        status, error = await self._send(webhook, row)
        now = self._engine.clock.now_us()
        attempts = row.attempts + 1
        delivered = status is not None and 200 <= status < 300
        again = not delivered and attempts <= len(self._retry_s)
        if not delivered:
            logger.warning("webhook %s: attempt %d failed: %s", webhook.id, attempts, error)
        note = partial(
            webhooks.settle,
            key=row.key,
            status="delivered" if delivered else "pending" if again else "failed",
            attempts=attempts,
            due_at=now + round(self._retry_s[attempts - 1] * 1e6) if again else None,
            at=now,
            last_status=status,
            last_error=error,
        )
        try:
            await self._engine.store.job(note)
        except StoreError:
            # Still due by the store: it is sent again once that takes writes.
            await asyncio.sleep(_TIMEOUT_S)

    async def _send(self, webhook: WebhookRow, row: DeliveryRow) -> tuple[int | None, str]:
        """The answer's status and what is wrong with it, "" for nothing."""
        try:
            body = self._body(webhook, row)
            secret = self._engine.store.vault.open(webhook.secret, place=webhooks.place_of(webhook.id))
        except WeftlineError as error:
            return None, error.message
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"weftline/{__version__}",
            "Weftline-Delivery": delivery_id(row.key),
            "Weftline-Event": "run.ended",
            SIGNATURE: signature(secret, body, at_s=self._engine.clock.now_us() // 1_000_000),
        }
        try:
            async with self._dialer.request(
                "POST", webhook.url, headers=headers, body=body, timeout_s=_TIMEOUT_S
            ) as reply:
                answer, _ = await reply.read_up_to(_ANSWER_BYTES)
        except RequestFailed as error:
            return None, error.message
        except Exception:
            logger.exception("webhook %s: an attempt failed for no reason that is known", webhook.id)
            return None, "The server could not send it; its log has the details."
        if 200 <= reply.status < 300:
            return reply.status, ""
        return reply.status, f"HTTP {reply.status}: {answer[:200].decode(errors='replace')}".strip()

    def _body(self, webhook: WebhookRow, row: DeliveryRow) -> bytes:
        read = self._engine.read
        run = read.run(row.run)
        if run is None:
            raise WeftlineError("The run is gone.", code="not_found")
        return encode(
            {
                "id": delivery_id(row.key),
                "type": "run.ended",
                "webhookId": webhook.id,
                "workspace": read.slug(webhook.workspace),
                "createdAt": iso(row.created_at),
                "run": Raw(listed_run(read, run)),
            }
        )


def delivery_id(key: int) -> str:
    return f"dlv_{key:x}"


def signature(secret: bytes, body: bytes, *, at_s: int) -> str:
    """The value of the signature header: the time in seconds, and HMAC-SHA-256 over `<time>.<body>` in hex."""
    mark = hmac.new(secret, b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={mark}"
