"""Administration of users and grants: the operations, which answer in JSON's own types."""

from __future__ import annotations

from typing import Any

import apsw

from weftline.server.oauth.apps import shown_grant
from weftline.store.sqlite import oauth, users
from weftline.wire.responses import iso


def shown_user(db: apsw.Connection, user: users.User) -> dict[str, Any]:
    return {
        "id": user.id,
        "email": user.email,
        "workspaces": [one.slug for one in users.memberships(db, user.key)],
        "createdAt": iso(user.created_at),
    }


def list_users(db: apsw.Connection, *, workspace: str | None = None) -> list[dict[str, Any]]:
    return [shown_user(db, user) for user in users.list_users(db, workspace=workspace)]


def show_user(db: apsw.Connection, *, email: str) -> dict[str, Any]:
    return shown_user(db, users.show_user(db, email=email))


def list_grants(db: apsw.Connection, *, email: str) -> list[dict[str, Any]]:
    return [shown_grant(grant) for grant in oauth.list_grants(db, user=users.show_user(db, email=email).id)]


def delete_grant(db: apsw.Connection, *, id: str) -> None:
    oauth.delete_grant(db, id)
