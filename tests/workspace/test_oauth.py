"""Users, apps and grants without HTTP: what ends is gone from the store, and whoever remembers credentials is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec import Struct

from weftline.cases import keys
from weftline.errors import Conflict, InvalidRequest, NotFound, Unauthorized
from weftline.server.auth import Authenticator
from weftline.server.http import Request
from weftline.server.router import Route
from weftline.store.database import Database, Query, statement
from weftline.store.records.apps import StoredApp
from weftline.store.sqlite.store import SqliteStore
from weftline.trace_context import RequestInfo
from weftline.workspace import apps, consent, grants, users
from weftline.workspace.context import Change, Workspaces

T = TypeVar("T")

EMAIL = "ann@example.com"
CALLBACK = "https://app.example/callback"
VERIFIER = "v" * 43
GIVEN = ("oauth_codes", "oauth_grants", "oauth_tokens")


class Clock:
    us = 1_800_000_000_000_000

    def now_us(self) -> int:
        return self.us


class World(Struct):
    at: Workspaces
    changes: list[Change]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    store = SqliteStore(tmp_path / "store")
    changes: list[Change] = []

    async def changed(change: Change) -> None:
        changes.append(change)

    yield World(Workspaces(store.records, store.vault, Clock(), changed), changes)
    await store.close()


async def granted(at: Workspaces) -> tuple[StoredApp, grants.Issued]:
    """What an app has after Ann has said yes in a browser."""
    await users.create_user(at, email=EMAIL, password="not a hash", slugs=["acme"])
    new = apps.checked_app(name="Notes", redirect_uris=[CALLBACK], scopes=["runs:read"])
    app, _ = await apps.register_app(at, new, slug="acme")
    asked = await consent.read_request(
        at,
        consent.AuthorizeQuery(
            client_id=app.client_id,
            redirect_uri=CALLBACK,
            response_type="code",
            scope="runs:read",
            code_challenge=grants.challenge_of(VERIFIER),
            code_challenge_method="S256",
        ),
    )
    user = (await users.show_user(at, email=EMAIL)).user
    question = await consent.question(at, *asked, user, session="s")
    assert question is not None
    decided = await consent.decide(at, user, consent.Decision(question.token, "approve"), session="s")
    assert decided.code is not None
    return app, await grants.exchange_code(at, app, code=decided.code, redirect_uri=CALLBACK, verifier=VERIFIER)


async def delete_the_grant(at: Workspaces) -> None:
    (grant,) = await grants.list_grants(at, email=EMAIL)
    await grants.delete_grant(at, id=grant.id)


async def delete_the_app(at: Workspaces) -> None:
    (app,) = await apps.list_apps(at, slug="acme")
    await apps.delete_app(at, client_id=app.client_id)


async def leave(at: Workspaces) -> None:
    await users.leave_workspace(at, email=EMAIL, slug="acme")


async def delete_the_user(at: Workspaces) -> None:
    await users.delete_user(at, email=EMAIL)


def rows(tables: tuple[str, ...]) -> Query[int]:
    total = 0
    for table in tables:
        total += len((yield from statement(f"SELECT 1 FROM {table}")))
    return total


async def test_a_workspace_has_so_many_apps_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "MAX_PER_WORKSPACE", 2)
    new = apps.checked_app(name="Notes", redirect_uris=[CALLBACK], scopes=["runs:read"])
    for _ in range(2):
        await apps.register_app(world.at, new, slug="acme")
    with pytest.raises(InvalidRequest):
        await apps.register_app(world.at, new, slug="acme")
    await apps.register_app(world.at, new, slug="globex")


@pytest.mark.parametrize("end", [delete_the_grant, delete_the_app, leave, delete_the_user])
async def test_whatever_ends_a_grant_ends_its_tokens_and_says_so(
    world: World, end: Callable[[Workspaces], Awaitable[None]]
) -> None:
    app, issued = await granted(world.at)
    assert await grants.find_token(world.at, grants.stored_token(world.at, issued.access)) is not None
    world.changes.clear()
    await end(world.at)
    assert await grants.find_token(world.at, grants.stored_token(world.at, issued.access)) is None
    assert issued.refresh is not None
    with pytest.raises(grants.OAuthError):
        await grants.refresh_grant(world.at, app, refresh=issued.refresh)
    assert [change.kind for change in world.changes] == ["credentials"]
    left = await world.at.records.read(rows(GIVEN))
    assert left == (1 if end is delete_the_grant else 0), "a code stays, so that its second use is noticed"


async def test_of_a_user_who_is_deleted_nothing_stays(world: World) -> None:
    await granted(world.at)
    await delete_the_user(world.at)
    assert await world.at.records.read(rows(("users", "memberships", "user_sessions", *GIVEN))) == 0


async def test_a_user_who_cannot_be_created_leaves_no_workspace_behind(world: World) -> None:
    await users.create_user(world.at, email=EMAIL, password="not a hash", slugs=["acme"])
    with pytest.raises(Conflict):
        await users.create_user(world.at, email=" ANN@example.com", password="not a hash", slugs=["globex"])
    with pytest.raises(NotFound):
        await users.join_workspace(world.at, email="bob@example.com", slug="globex")
    assert await world.at.records.read(rows(("workspaces",))) == 1


async def test_another_users_grant_cannot_be_deleted(world: World) -> None:
    await granted(world.at)
    (grant,) = await grants.list_grants(world.at, email=EMAIL)
    with pytest.raises(NotFound):
        await grants.delete_grant(world.at, id=grant.id, user="usr_other")
    await grants.delete_grant(world.at, id=grant.id, user=grant.user)


class RevokedMeanwhile:
    """Records on which, after the next read and before its caller hears of it, something else happens."""

    def __init__(self, records: Database) -> None:
        self._records = records
        self.then: Callable[[], Awaitable[object]] | None = None

    async def read(self, query: Query[T], *, heavy: bool = False) -> T:
        value = await self._records.read(query, heavy=heavy)
        if self.then is not None:
            then, self.then = self.then, None
            await then()
        return value

    async def write(self, query: Query[T]) -> T:
        return await self._records.write(query)


async def test_credential_revoked_during_lookup_is_not_remembered(world: World) -> None:
    created = await keys.add(world.at, "acme")
    slow = RevokedMeanwhile(world.at.records)
    auth = Authenticator(Workspaces(slow, world.at.vault, world.at.clock))

    async def revoke() -> None:
        await keys.remove(world.at, created.key.id)
        auth.forget()

    slow.then = revoke
    headers = [(b"x-api-key", created.secret.encode())]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    request = Request(scope, unused, unused, RequestInfo("req_1"))
    route = Route("GET", "/", unused)
    assert (await auth.check(request, route)).id == created.key.id
    with pytest.raises(Unauthorized):
        await auth.check(request, route)


async def unused(*arguments: object) -> Any:
    raise AssertionError("nobody calls this")
