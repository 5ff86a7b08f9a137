"""Delivers webhooks: deliveries that are due are in the store, and stay there until they are delivered or given up.

A delivery row is written in the transaction that ends its run, or that opens an await, so that none is lost; after a
crash between sending and recording, it is sent again under the same id. The body is built from the log when it is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from weftline._version import __version__
from weftline.errors import StoreError, WeftlineError
from weftline.net.dial import Dialer
from weftline.net.errors import RequestFailed
from weftline.store.records import deliveries, webhooks
from weftline.store.records.deliveries import Attempt, DeliveryRow
from weftline.store.records.webhooks import WebhookRow
from weftline.text.redaction import Redactor, redact_url
from weftline.work.turns import RoundRobin
from weftline.workspace.context import Workspaces

logger = logging.getLogger(__name__)

SIGNATURE = "Weftline-Signature"
_TIMEOUT_S = 10.0
_MAX_CONCURRENT, _MAX_CONCURRENT_PER_WORKSPACE, _MAX_CONCURRENT_PER_WEBHOOK = 128, 8, 4
_SHARED_PER_WORKSPACE = 4
"""While so many places of a workspace are taken, a receiver gets no second one: the others are for those with none."""
_PAUSE_S, _MAX_PAUSE_S = 10, 300
"""How long a receiver that has timed out is left alone: first and, doubling each time, at most."""
_MAX_WAIT_S = 30.0
_RETRY_S = 5.0
_MAX_RESPONSE_BYTES = 4096

Render: TypeAlias = Callable[[WebhookRow, DeliveryRow], Awaitable[bytes]]
"""Builds the body of a delivery. Raises `WeftlineError` if there is nothing left to report."""
Watch: TypeAlias = Callable[[Callable[[], None] | None], None]
"""Calls a function whenever a run has ended or opened an await; None switches this off."""


class WebhookDeliveries:
    """Sends what is due; `run` continues until it is cancelled. Call `changed` after webhooks have changed.

    `retry_s` are the waits between attempts; after the last one the delivery fails.
    """

    def __init__(
        self, at: Workspaces, dialer: Dialer, *, retry_s: tuple[float, ...], render: Render, watch: Watch
    ) -> None:
        self._at = at
        self._dialer = dialer
        self._retry_s = retry_s
        self._render = render
        self._watch = watch
        self._wake = asyncio.Event()
        self._under_way: dict[int, _UnderWay] = {}
        self._receivers: dict[int, _Receiver] = {}
        """By webhook, since the process began."""

    def changed(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                try:
                    await self._look()
                except StoreError:
                    logger.exception("webhook deliveries could not be read; trying again")
                    await asyncio.sleep(_RETRY_S)
        finally:
            tasks = [one.task for one in self._under_way.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        # Without a webhook, the ends of runs need not be watched. Watching begins before reading what is due, so that a
        # run that ends in between is not missed.
        enabled = await self._at.records.read(webhooks.any_enabled())
        self._watch(self._wake.set if enabled else None)
        now = self._at.clock.now_us()
        await self._start_due(now)
        await self._wait_for_work(now)

    async def _start_due(self, now: int) -> None:
        """Starts what is due. Workspaces take turns, and the receivers of each, so that slow ones do not block the
        others.
        """
        self._under_way = {key: one for key, one in self._under_way.items() if not one.task.done()}
        of_webhook = Counter(one.webhook for one in self._under_way.values())
        of_workspace = Counter(one.workspace for one in self._under_way.values())
        home = {one.webhook: one.workspace for one in self._under_way.values()}

        def has_place(webhook: int, workspace: int) -> bool:
            receiver = self._receivers.get(webhook) or _Receiver()
            taken = of_workspace[workspace]
            limit = _SHARED_PER_WORKSPACE if of_webhook[webhook] else _MAX_CONCURRENT_PER_WORKSPACE
            return taken < limit and of_webhook[webhook] < receiver.places and receiver.paused_until <= now

        begun = True
        while begun and len(self._under_way) < _MAX_CONCURRENT:
            paused = [webhook for webhook, one in self._receivers.items() if one.paused_until > now]
            query = deliveries.due(
                now,
                limit=2 * _MAX_CONCURRENT,
                without_webhooks=[*paused, *(key for key in home if not has_place(key, home[key]))],
                without_workspaces=[
                    key for key, count in of_workspace.items() if count >= _MAX_CONCURRENT_PER_WORKSPACE
                ],
            )
            turns = RoundRobin[DeliveryRow]()
            waiting = await self._at.records.read(query)
            for workspace, row in waiting:
                if row.key not in self._under_way:
                    home[row.webhook] = workspace
                    turns.put(row, owner=workspace, topic=row.webhook)
            begun = False
            while turns and len(self._under_way) < _MAX_CONCURRENT:
                row = turns.take()
                if not has_place(row.webhook, home[row.webhook]):
                    continue
                begun = True
                of_webhook[row.webhook] += 1
                of_workspace[home[row.webhook]] += 1
                task = asyncio.create_task(self._deliver(row))
                task.add_done_callback(lambda _: self._wake.set())
                self._under_way[row.key] = _UnderWay(home[row.webhook], row.webhook, task)

    async def _wait_for_work(self, after: int) -> None:
        """Returns when a run or a delivery has ended, when a delivery becomes due that was not at `after`, or when a
        receiver may be tried again.
        """
        due_at = await self._at.records.read(deliveries.next_due(after))
        times = [one.paused_until for one in self._receivers.values() if one.paused_until > after]
        times += [due_at] if due_at is not None else []
        now = self._at.clock.now_us()
        wait_s = min([_MAX_WAIT_S, *[max(0.0, (at - now) / 1e6) for at in times]])
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake.wait()

    async def _deliver(self, row: DeliveryRow) -> None:
        try:
            await self._attempt(row)
        except StoreError:
            # Still due in the store: it is sent again once the store can be read and accepts writes.
            await asyncio.sleep(_TIMEOUT_S)

    async def _attempt(self, row: DeliveryRow) -> None:
        webhook = await self._at.records.read(webhooks.by_key(row.webhook))
        if webhook is None:
            self._receivers.pop(row.webhook, None)
            return
        status, error = await self._send(webhook, row)
        now = self._at.clock.now_us()
        attempts = row.attempts + 1
        delivered = status is not None and 200 <= status < 300
        again = not delivered and attempts <= len(self._retry_s)
        if not delivered:
            logger.warning("webhook %s: attempt %d failed: %s", webhook.id, attempts, error)
        attempt = Attempt(
            status="delivered" if delivered else "pending" if again else "failed",
            attempts=attempts,
            due_at=now + round(self._retry_s[attempts - 1] * 1e6) if again else None,
            at=now,
            http_status=status,
            error=error,
        )
        await self._at.records.write(deliveries.settle(row.key, attempt))

    async def _send(self, webhook: WebhookRow, row: DeliveryRow) -> tuple[int | None, str]:
        """The response's status and what is wrong with it, or "" if nothing is."""
        damaged = webhook.damaged or row.damaged
        if damaged:
            return None, f"What is stored of it is damaged: its {damaged} cannot be read."
        try:
            body = await self._render(webhook, row)
            secret, url = opened(self._at, webhook)
        except WeftlineError as error:
            return None, error.message
        except Exception:
            logger.exception("webhook %s: the body of a delivery could not be created", webhook.id)
            return None, "The server could not make the body; its log has the details."
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"weftline/{__version__}",
            "Weftline-Delivery": delivery_id(row),
            "Weftline-Event": event_of(row),
            SIGNATURE: signature(secret, body, at_s=self._at.clock.now_us() // 1_000_000),
        }
        try:
            dialer = self._dialer.of(webhook.workspace)
            async with dialer.request("POST", url, headers=headers, body=body, timeout_s=_TIMEOUT_S) as reply:
                answer, _ = await reply.read_up_to(_MAX_RESPONSE_BYTES)
        except RequestFailed as error:
            if error.reason == "timeout":
                self._receiver(row).timed_out(self._at.clock.now_us())
            return None, error.message
        except Exception:
            logger.exception("webhook %s: an attempt failed for an unknown reason", webhook.id)
            return None, "The server could not send it; its log has the details."
        self._receiver(row).answered()
        if 200 <= reply.status < 300:
            return reply.status, ""
        redactor = Redactor.of_request(url, headers, secrets=(secret.decode(),))
        excerpt = redactor.text(answer.decode(errors="replace"))
        return reply.status, f"HTTP {reply.status}: {excerpt[:200]}".strip()

    def _receiver(self, row: DeliveryRow) -> _Receiver:
        return self._receivers.setdefault(row.webhook, _Receiver())


class _Receiver:
    """The record of a webhook's address: one that does not answer keeps its place until the timeout, so it has one
    place until it has answered, and is left alone for a while after each timeout.
    """

    def __init__(self) -> None:
        self.places = 1
        self.paused_until = 0
        self._pause_s = _PAUSE_S

    def answered(self) -> None:
        self.places, self.paused_until, self._pause_s = _MAX_CONCURRENT_PER_WEBHOOK, 0, _PAUSE_S

    def timed_out(self, now: int) -> None:
        # Requests that were under way together count once.
        if now >= self.paused_until:
            self.places, self.paused_until = 1, now + self._pause_s * 1_000_000
            self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)


class _UnderWay(NamedTuple):
    workspace: int
    webhook: int
    task: asyncio.Task[None]


def event_of(row: DeliveryRow) -> str:
    """The event type of a delivery."""
    return "await.opened" if row.about else "run.ended"


def delivery_id(row: DeliveryRow) -> str:
    return f"dlv_{row.key:x}{row.salt}"


def signature(secret: bytes, body: bytes, *, at_s: int) -> str:
    """The value of the signature header: the time in seconds, and HMAC-SHA-256 over `<time>.<body>` in hex."""
    mark = hmac.new(secret, b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={mark}"


class Sealed(NamedTuple):
    secret: bytes
    """The secret that deliveries are signed with."""
    url: str
    """The complete address."""


def sealed(at: Workspaces, id: str, secret: str, url: str) -> bytes:
    """Encrypts the secret of a webhook. An address that may contain a token is a secret too."""
    text = f"{secret}\n{url}" if redact_url(url) != url else secret
    return at.vault.seal(text.encode(), place=_place(id))


def opened(at: Workspaces, webhook: WebhookRow) -> Sealed:
    """Raises `StoreError` if it was encrypted with another key."""
    secret, _, url = at.vault.open(webhook.secret, place=_place(webhook.id)).partition(b"\n")
    return Sealed(secret, url.decode() or webhook.url)


def _place(id: str) -> str:
    return f"webhook:{id}"


_BATCH = 1000
"""Rows in one transaction, so that active runs do not wait long."""


async def forget_deliveries(at: Workspaces, *, before: int, workspace: int | None = None) -> int:
    """Removes some settled deliveries from before that time, of one workspace or of all; returns how many."""
    return await at.records.write(deliveries.forget_settled(before, workspace=workspace, limit=_BATCH))
