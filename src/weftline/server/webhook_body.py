"""The body of a webhook's delivery: the run as in the list of runs, and its questions to people."""

from __future__ import annotations

from typing import Any

from msgspec.json import encode

from weftline.api.views import await_views, listed_run
from weftline.errors import WeftlineError
from weftline.kernel.entries import KIND, AwaitOpened, decode_fact
from weftline.server.app import App
from weftline.store.records.deliveries import DeliveryRow
from weftline.store.records.webhooks import WebhookRow
from weftline.store.rows import AwaitFilter, OpenAwait, RunRow
from weftline.wire.responses import iso
from weftline.workspace import workspaces
from weftline.workspace.delivering import delivery_id, event_of

_MANY = 1000
_MANY_BYTES = 32 * 1024 * 1024


async def webhook_body(app: App, webhook: WebhookRow, row: DeliveryRow) -> bytes:
    run = await app.engine.stored.row(row.run)
    if run is None:
        raise WeftlineError("The run is gone.", code="not_found")
    body: dict[str, Any] = {
        "id": delivery_id(row),
        "type": event_of(row),
        "webhookId": webhook.id,
        "workspace": await workspaces.slug_of(app.workspaces, webhook.workspace),
        "createdAt": iso(row.created_at),
        "run": await listed_run(app.engine.stored, run),
    }
    if row.about:
        asked, is_open = await _asked(app, run, row.about)
        (body["await"],) = await await_views([asked], app.engine.stored.session_id)
        body["open"] = is_open
    return encode(body)


async def _asked(app: App, run: RunRow, id: str) -> tuple[OpenAwait, bool]:
    """Returns a question, and whether it is still open."""
    for still in await app.engine.stored.awaits(AwaitFilter(workspace=run.workspace, run=run.key, id=id, limit=1)):
        return still, True
    asked = await app.engine.stored.logs.newest_facts(
        run.key, kinds=(KIND[AwaitOpened],), limit=_MANY, max_bytes=_MANY_BYTES
    )
    for fact in asked:
        head = decode_fact.decode(fact.head)
        if isinstance(head, AwaitOpened) and head.id == id:
            deadline = None if head.timeout_us is None else fact.at + head.timeout_us
            top = (run.key, run.salt)
            known = (run.thread, run.agent, run.name, head.kind, fact.at, deadline, fact.body)
            return OpenAwait(run.key, run.salt, id, run.workspace, *top, *known), False
    raise WeftlineError("The question is gone.", code="not_found")
