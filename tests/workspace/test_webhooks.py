"""Webhooks and the retention of their deliveries."""

from __future__ import annotations

import pytest

from weftline.cases import webhooks
from weftline.errors import InvalidRequest, NotFound
from weftline.store.database import Query, statement
from weftline.store.records import deliveries
from weftline.store.records.deliveries import Attempt
from weftline.store.records.webhooks import WebhookRow
from weftline.workspace import delivering
from weftline.workspace.context import Change, Workspaces

from .conftest import NOW_US

URL = "https://example.com/hook"
DELIVERED = Attempt(status="delivered", attempts=1, due_at=None, at=NOW_US, http_status=204, error="")


async def ended(at: Workspaces, webhook: WebhookRow, run: int) -> None:
    """A run has ended that the webhook is to be told about."""

    def note() -> Query[None]:
        yield from statement(
            "INSERT INTO deliveries (webhook, run, status, attempts, due_at, created_at, last_error)"
            " VALUES ($1, $2, 'pending', 0, $3, $3, '')",
            webhook.key,
            run,
            NOW_US,
        )

    await at.records.write(note())


async def test_a_webhook_is_told_its_secret_once_and_announced(
    at: Workspaces, acme: int, changes: list[Change]
) -> None:
    made = await webhooks.add(at, acme, URL, events=["failed", "succeeded", "failed"])
    assert made.webhook.events == ("failed", "succeeded") and made.webhook.enabled
    assert delivering.opened(at, made.webhook).secret == made.secret.encode()
    assert made.secret.encode() not in made.webhook.secret
    assert not (await webhooks.enable(at, acme, made.webhook.id, enabled=False)).enabled
    await webhooks.remove(at, acme, made.webhook.id)
    assert changes == [Change("webhooks", acme)] * 3


@pytest.mark.parametrize(
    "url", ["ftp://example.com", "example.com", "https://", "https://a b", "https://" + "x" * 2048]
)
async def test_unpostable_address_is_refused(at: Workspaces, acme: int, url: str) -> None:
    with pytest.raises(InvalidRequest):
        await webhooks.add(at, acme, url)


async def test_a_workspace_has_so_many_webhooks_and_no_more(at: Workspaces, acme: int, globex: int) -> None:
    for _ in range(webhooks.MAX_PER_WORKSPACE):
        await webhooks.add(at, acme, URL)
    with pytest.raises(InvalidRequest):
        await webhooks.add(at, acme, URL)
    await webhooks.add(at, globex, URL)
    for events in ([], ["started"]):
        with pytest.raises(InvalidRequest):
            await webhooks.add(at, globex, URL, events=events)


async def test_due_deliveries_wait_while_their_webhook_is_off(at: Workspaces, acme: int) -> None:
    one, two = [(await webhooks.add(at, acme, URL)).webhook for _ in range(2)]
    for webhook in (one, two):
        await ended(at, webhook, 1)
    await webhooks.enable(at, acme, one.id, enabled=False)
    due = await at.records.read(deliveries.due(NOW_US, limit=9))
    assert [(workspace, row.webhook) for workspace, row in due] == [(acme, two.key)]
    for others in ({"without_webhooks": [two.key]}, {"without_workspaces": [acme]}):
        assert await at.records.read(deliveries.due(NOW_US, limit=9, **others)) == []
    assert await at.records.read(deliveries.next_due(NOW_US - 1)) == NOW_US
    await webhooks.enable(at, acme, two.id, enabled=False)
    assert await at.records.read(deliveries.next_due(NOW_US - 1)) is None


async def test_delivery_can_be_made_due_again_whatever_became_of_it(
    at: Workspaces, acme: int, changes: list[Change]
) -> None:
    webhook, other = [(await webhooks.add(at, acme, URL)).webhook for _ in range(2)]
    await ended(at, webhook, 7)
    (row,) = await webhooks.deliveries_of(at, webhook)
    await at.records.write(deliveries.settle(row.key, DELIVERED))
    assert await webhooks.deliveries_of(at, webhook, status="pending") == []
    changes.clear()
    again = await webhooks.make_due(at, webhook, row.key, salt=row.salt)
    assert (again.status, again.attempts, again.due_at) == ("pending", 0, NOW_US)
    assert changes == [Change("webhooks", acme)]
    for wrong in (
        webhooks.make_due(at, other, row.key, salt=row.salt),
        webhooks.make_due(at, webhook, 99, salt=row.salt),
        webhooks.make_due(at, webhook, row.key, salt="0" * 12),
    ):
        with pytest.raises(NotFound):
            await wrong


async def test_retention_forgets_settled_deliveries_of_the_workspace_alone(
    at: Workspaces, acme: int, globex: int
) -> None:
    ours, theirs = [(await webhooks.add(at, workspace, URL)).webhook for workspace in (acme, globex)]
    for run in (1, 2):
        for webhook in (ours, theirs):
            await ended(at, webhook, run)
    for webhook in (ours, theirs):
        _, first = await webhooks.deliveries_of(at, webhook)
        await at.records.write(deliveries.settle(first.key, DELIVERED))
    assert await delivering.forget_deliveries(at, before=NOW_US, workspace=acme) == 0
    assert await delivering.forget_deliveries(at, before=NOW_US + 1, workspace=acme) == 1
    assert [row.run for row in await webhooks.deliveries_of(at, ours)] == [2]
    assert [row.run for row in await webhooks.deliveries_of(at, theirs)] == [2, 1]
    assert await delivering.forget_deliveries(at, before=NOW_US + 1) == 1
