"""What the server remembers of credentials never outlives them."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from weftline.server.auth import Authenticator
from weftline.server.http import Request
from weftline.server.routes.models import ROUTES
from weftline.store.base import Database, Query

from .kit import World

T = TypeVar("T")


class Slow:
    """A database that answers after something else has happened."""

    def __init__(self, records: Database) -> None:
        self._records = records
        self.happens_meanwhile = lambda: None

    async def read(self, query: Query[T], *, heavy: bool = False) -> T:
        value = await self._records.read(query, heavy=heavy)
        self.happens_meanwhile()
        return value

    async def write(self, query: Query[T]) -> T:
        return await self._records.write(query)


async def test_a_key_that_is_revoked_while_it_is_looked_up_is_not_remembered(world: World) -> None:
    secret = await world.key("acme")
    slow = Slow(world.app.workspaces.records)
    auth = Authenticator(world.engine.read, replace(world.app.workspaces, records=slow), hasher=world.app.oauth.hasher)
    looked_up = 0

    def forget() -> None:
        nonlocal looked_up
        looked_up += 1
        auth.forget()

    slow.happens_meanwhile = forget
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(b"authorization", f"Bearer {secret}".encode())],
    }

    async def nothing(*_: object) -> dict[str, object]:
        return {}

    for _ in range(2):
        request = Request(scope, nothing, nothing, "req_1")  # pyright: ignore[reportArgumentType]
        assert (await auth.check(request, ROUTES[0])).slug == "acme"
    assert looked_up == 2
    slow.happens_meanwhile = lambda: None
