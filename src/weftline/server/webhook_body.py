"""The body of a webhook's delivery: the ended run as the list of runs shows it."""

from __future__ import annotations

from msgspec.json import encode

from weftline.errors import WeftlineError
from weftline.server.app import App
from weftline.server.routes.lists import listed_run
from weftline.store.records.deliveries import DeliveryRow
from weftline.store.records.webhooks import WebhookRow
from weftline.wire.responses import iso
from weftline.workspace import workspaces
from weftline.workspace.delivering import delivery_id


async def webhook_body(app: App, webhook: WebhookRow, row: DeliveryRow) -> bytes:
    run = await app.engine.row(row.run)
    if run is None:
        raise WeftlineError("The run is gone.", code="not_found")
    return encode(
        {
            "id": delivery_id(row.key),
            "type": "run.ended",
            "webhookId": webhook.id,
            "workspace": await workspaces.slug_of(app.workspaces, webhook.workspace),
            "createdAt": iso(row.created_at),
            "run": await listed_run(app.engine, run),
        }
    )
