"""Webhook receivers as unreliable as real ones: they fail, stay silent, hang up and are slow."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from random import Random

from aiohttp import web

from campaigns.torture.ledger import Delivery, Ledger

_SURE_AFTER = 3
"""Attempts of one delivery after which a receiver accepts it."""


class Receivers:
    def __init__(self, ledger: Ledger, *, seed: int) -> None:
        self._ledger = ledger
        self._random = Random(f"{seed}/receivers")
        self._attempts: dict[str, int] = {}
        self.received = asyncio.Event()
        """Set whenever something was delivered."""
        self.secrets: dict[str, str] = {}
        """By webhook: the secrets that signatures are checked with."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/hooks/{name}", self._receive)]

    async def _receive(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body = json.loads(raw)
        identity, webhook = body["id"], body["webhookId"]
        if request.headers["weftline-delivery"] != identity or not self._signed(request, webhook, raw):
            self._ledger.fault(f"webhook {webhook}: delivery {identity} has a wrong id or signature")
        attempt = self._attempts[identity] = self._attempts.get(identity, 0) + 1
        mood = (
            "take"
            if attempt > _SURE_AFTER
            else self._random.choices(("take", "fail", "hang up", "slow"), (6, 2, 1, 1))[0]
        )
        if mood == "slow":
            await asyncio.sleep(0.5)
        run = body["run"]
        accepted = mood in ("take", "slow")
        self._ledger.deliveries.append(Delivery(webhook, identity, run["id"], run["status"], accepted))
        self.received.set()
        if mood == "hang up" and request.transport is not None:
            request.transport.close()
        return web.Response(status=200 if accepted else 500)

    def _signed(self, request: web.Request, webhook: str, raw: bytes) -> bool:
        secret = self.secrets.get(webhook)
        if secret is None:
            return False
        stamp, _, mark = request.headers["weftline-signature"].partition(",v1=")
        signed = hmac.new(secret.encode(), stamp.removeprefix("t=").encode() + b"." + raw, hashlib.sha256)
        return hmac.compare_digest(signed.hexdigest(), mark)
