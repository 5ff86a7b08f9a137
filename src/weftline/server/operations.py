"""The operations of administration by name, for the command line and for the owner's control socket."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TypeVar

import apsw

from weftline.server import administration, credentials, stored_providers, stored_tools
from weftline.server.control import Operation
from weftline.server.oauth.administration import OPERATIONS as OAUTH
from weftline.server.oauth.administration import UseCase
from weftline.store.base import Query
from weftline.store.secrets import Vault
from weftline.store.sqlite import keys
from weftline.store.sqlite.database import run_query
from weftline.workspace.context import Workspaces

T = TypeVar("T")


class _Transaction:
    """The records inside a write transaction that is open already."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    async def read(self, query: Query[T]) -> T:
        return run_query(self._db, query)

    async def write(self, query: Query[T]) -> T:
        return run_query(self._db, query)


class _FixedClock:
    def __init__(self, now: int) -> None:
        self._now = now

    def now_us(self) -> int:
        return self._now


def _inside(use_case: UseCase) -> Operation:
    """A use case as an operation in the writer's thread. On an open transaction it never waits for anything."""

    def operation(db: apsw.Connection, *, now: int | None = None, **arguments: Any) -> Any:
        clock = _FixedClock(time.time_ns() // 1000 if now is None else now)
        waiting = use_case(Workspaces(_Transaction(db), Vault(Path(db.filename).parent), clock), **arguments)
        steps = waiting.__await__()
        try:
            next(steps)
        except StopIteration as done:
            return done.value
        raise AssertionError("the use case waits for something other than the records")

    return operation


OPERATIONS: dict[str, Operation] = {
    "keys.create": keys.create_api_key,
    "keys.import": keys.import_api_key,
    "keys.list": credentials.list_keys,
    "keys.show": credentials.show_key,
    "keys.delete": credentials.delete_key,
    "workspaces.list": keys.list_workspaces,
    "workspaces.features": keys.features,
    "workspaces.set_feature": keys.set_feature,
    **{name: _inside(use_case) for name, use_case in OAUTH.items()},
    **administration.OPERATIONS,
    "providers.create": stored_providers.create,
    "providers.list": stored_providers.listed,
    "providers.show": stored_providers.show,
    "providers.delete": stored_providers.delete,
    "tools.create": stored_tools.create,
    "tools.list": stored_tools.listed,
    "tools.show": stored_tools.show,
    "tools.delete": stored_tools.delete,
}
