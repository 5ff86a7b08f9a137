"""Operations on stored agents, webhooks and old logs for the command line, in JSON's own types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
from msgspec.json import decode, encode

from weftline.errors import NotFound
from weftline.server.routes.agents import parse_agent
from weftline.server.routes.agents import shown as shown_agent
from weftline.server.routes.webhooks import shown as shown_webhook
from weftline.server.routes.webhooks import shown_delivery, webhook_url
from weftline.store.secrets import Vault
from weftline.store.sqlite import accounts, agents, retention, webhooks
from weftline.store.sqlite.reads import Reader


def create_agent(db: apsw.Connection, *, workspace: str, definition: str, now: int) -> Any:
    """`definition` is the JSON that the HTTP API takes."""
    body = parse_agent(definition.encode())
    key = accounts.workspace_key(db, workspace, now=now)
    row = agents.create_agent(
        db,
        workspace=key,
        slug=body.slug,
        name=body.name,
        description=body.description,
        spec=body.spec.spec,
        sealed=Vault(Path(db.filename).parent).seal_headers(body.spec.secrets, workspace=key),
        metadata=body.metadata,
        system=body.system,
        now=now,
    )
    return decode(shown_agent(row))


def list_agents(db: apsw.Connection, *, workspace: str) -> Any:
    return [decode(shown_agent(row)) for row in agents.of_workspace(db, _workspace(db, workspace))]


def show_agent(db: apsw.Connection, *, workspace: str, id: str) -> Any:
    return decode(shown_agent(_agent(db, workspace, id)))


def delete_agent(db: apsw.Connection, *, workspace: str, id: str) -> Any:
    row = _agent(db, workspace, id)
    agents.delete_agent(db, id=row.id, workspace=row.workspace)
    return row.id


def create_webhook(db: apsw.Connection, *, workspace: str, url: str, events: list[str], now: int) -> Any:
    key = accounts.workspace_key(db, workspace, now=now)
    row, secret = webhooks.create_webhook(
        db, workspace=key, url=webhook_url(url), events=events or webhooks.EVENTS, now=now
    )
    return {**decode(encode(shown_webhook(row))), "secret": secret}


def list_webhooks(db: apsw.Connection, *, workspace: str) -> Any:
    rows = webhooks.of_workspace(db, _workspace(db, workspace))
    return decode(encode([shown_webhook(row) for row in rows]))


def delete_webhook(db: apsw.Connection, *, workspace: str, id: str) -> Any:
    webhooks.delete_webhook(db, id=id, workspace=_workspace(db, workspace))
    return id


def list_deliveries(db: apsw.Connection, *, workspace: str, id: str, status: str | None) -> Any:
    """The newest 200."""
    row = webhooks.by_id(db, id, workspace=_workspace(db, workspace))
    if row is None:
        raise webhooks.no_such_webhook()
    rows = webhooks.deliveries(db, row.key, status=status, limit=200)
    return decode(encode([shown_delivery(Reader(db), delivery) for delivery in rows]))


def trim(db: apsw.Connection, *, before: int, after: int, workspace: str | None) -> Any:
    """See `retention.trim`; `workspace` is a slug."""
    key = None if workspace is None else _workspace(db, workspace)
    return list(retention.trim(db, before=before, after=after, workspace=key))


OPERATIONS = {
    "agents.create": create_agent,
    "agents.list": list_agents,
    "agents.show": show_agent,
    "agents.delete": delete_agent,
    "webhooks.create": create_webhook,
    "webhooks.list": list_webhooks,
    "webhooks.delete": delete_webhook,
    "webhooks.deliveries": list_deliveries,
    "retention.trim": trim,
}


def _workspace(db: apsw.Connection, slug: str) -> int:
    key = Reader(db).workspace(slug)
    if key is None:
        raise NotFound(f"There is no workspace {slug!r}.")
    return key


def _agent(db: apsw.Connection, workspace: str, id: str) -> agents.AgentRow:
    key = _workspace(db, workspace)
    row = agents.by_id(db, id, workspace=key) or agents.by_slug(db, id, workspace=key)
    if row is None:
        raise agents.no_such_agent()
    return row
