"""What goes on beside requests: webhooks are delivered, schedules start runs, idle streams are kept open.

`weftline serve` and a mounted app do the same, so a new task is added here, and once:

* make it in `attach`, with what it needs of the app;
* if a change of something stored must wake it, give the change a kind (`weftline.workspace.context.Change`) and list it
  among the app's `listeners`;
* add what runs to the result, inside `_released` unless it may go on while a restored store is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

from msgspec.json import encode

from weftline.api.views import await_views, listed_run
from weftline.cases import firing
from weftline.errors import WeftlineError
from weftline.kernel.entries import KIND, AwaitOpened, decode_fact
from weftline.net.dial import Dialer
from weftline.runtime.engine import Engine
from weftline.server.app import App
from weftline.server.sse import BEAT_S
from weftline.store.records.deliveries import DeliveryRow
from weftline.store.records.webhooks import WebhookRow
from weftline.store.rows import AwaitFilter, OpenAwait, RunRow
from weftline.wire.responses import iso
from weftline.workspace import workspaces
from weftline.workspace.delivering import WebhookDeliveries, delivery_id, event_of

_MANY = 1000
_MANY_BYTES = 32 * 1024 * 1024

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Goes on until it is cancelled."""


def attach(app: App, *, dialer: Dialer, webhook_retry_s: tuple[float, ...]) -> tuple[Work, ...]:
    """Lets the app tell its background tasks of changes, and returns these tasks, which the caller runs.

    `dialer` reaches the receivers of webhooks.
    """
    deliveries = WebhookDeliveries(
        app.workspaces,
        dialer,
        retry_s=webhook_retry_s,
        render=partial(webhook_body, app),
        watch=app.engine.watch_ends,
    )
    alarm = firing.ScheduleAlarm(app.workspaces, start=partial(firing.start, app), started=partial(firing.started, app))
    app.listeners["webhooks"] = lambda _: deliveries.changed()
    app.listeners["schedules"] = lambda _: alarm.changed()
    works: list[Work] = [
        partial(_released, app.engine, deliveries.run),
        partial(_released, app.engine, alarm.run),
        partial(_beat, app.engine),
    ]
    if (served := app.folder) is not None:
        from weftline.threads.effects import EffectAlarm  # whoever serves a folder has all that it needs

        effects = EffectAlarm(app.workspaces, app.engine, lambda: app.folder or served)
        app.listeners["effects"] = lambda _: effects.changed()
        works.append(partial(_released, app.engine, effects.run))
    return tuple(works)


async def _released(engine: Engine, work: Callable[[], Awaitable[None]]) -> None:
    """Runs `work` once the engine's runs may proceed.

    A restored backup is held first, as its deliveries and starts have mostly happened since.
    """
    await engine.wait_released()
    await work()


async def _beat(engine: Engine) -> None:
    """Keeps idle streams open, with one ticker for all of them."""
    while True:
        await asyncio.sleep(BEAT_S)
        engine.beat()


async def webhook_body(app: App, webhook: WebhookRow, row: DeliveryRow) -> bytes:
    """Returns the body of a delivery: the run as in the list of runs, and its question to people."""
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
