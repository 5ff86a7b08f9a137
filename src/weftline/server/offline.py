"""The app for a command that has the store open itself, because no server has.

What is stored can be read and changed, but runs get no input: nothing here starts or continues one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple, cast

from weftline.errors import Conflict
from weftline.plan import RunPlan
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.clock import SystemClock
from weftline.runtime.engine import Engine, Resumed
from weftline.runtime.reads.finding import StoredNames
from weftline.runtime.reads.reading import StoredRuns
from weftline.server.app import App
from weftline.server.heads import path_and_query, readable
from weftline.server.http import PEER, Application
from weftline.server.operators import PATHS
from weftline.server.router import Route, Router
from weftline.store.base import ReadStore, Store
from weftline.store.naming import db_option
from weftline.store.rows import IdempotencyKey, Write, Written


class Answer(NamedTuple):
    status: int
    body: bytes


async def ask(app: Application, method: str, target: str, body: bytes = b"", *, operator: str) -> Answer:
    """Sends a request of the operator, who is this user of the machine; `target` is the path and the query."""
    path, query = path_and_query(target.encode())
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": readable(path),
        "query_string": query,
        "headers": [(b"host", b"localhost")],
        "client": None,
        PEER: operator,
    }
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Mapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not unread:
            await asyncio.Event().wait()
        return unread.pop()

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return Answer(sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:]))


_INPUT = {
    "answer_await": "answer",
    "cancel": "cancel the run",
    "create": "start the run",
    "follow_up": "send the message",
    "pause": "pause the run",
    "resume": "resume the run",
    "steer": "send the message",
}
"""What a run would need an engine for, in the words of the person who asks for it."""
_PAGES = {
    "agents": ("agents",),
    "api-keys": ("keys",),
    "awaits": ("awaits",),
    "budgets": ("budgets",),
    "calls": ("calls",),
    "oauth-apps": ("oauth",),
    "providers": ("providers",),
    "schedules": ("schedules",),
    "tools": ("tools",),
    "webhooks": ("webhooks",),
}
"""The modules with the routes below a workspace; each takes a while to load."""
_OF_RUN = {"awaits": "awaits", "pause": "awaits", "resume": "awaits", "messages": "awaits"} | {
    "budgets": "budgets",
    "calls": "calls",
    "fork": "forks",
    "grants": "calls",
    "turns": "calls",
}


class StoredEngine:
    """Stands in for an engine. Whatever only runs under way can do raises `Conflict`."""

    def __init__(self, store: Store) -> None:
        self.clock = SystemClock()
        self.stored = StoredRuns(store.log, StoredNames(store.records))
        self._store = store

    def require_accepting(self) -> None: ...

    def require_writable(self) -> None: ...

    async def locate(self, run_id: str, *, workspace: int) -> int:
        return (await self.stored.find(run_id, workspace=workspace)).key

    async def check(self, plan: RunPlan, *, workspace: int, runs_now: bool = True) -> None:
        """Does nothing, as only a server knows its models and tools."""

    async def created_before(self, workspace: int, idempotency: IdempotencyKey) -> str | None:
        return None

    async def budgets_changed(self, workspace: int, *, by: str = "") -> None: ...

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        return await self._store.log.trim(before=before, after=after, workspace=workspace)

    async def add_ended(self, write: Write, *, last_key: int) -> Written:
        from weftline.runtime.creating import add_ended  # with half of the engine

        return await add_ended(self._store.log, write)

    async def resume_all(self) -> Resumed:
        held = self._store.log.held
        if held:
            await self._store.log.lift_hold()
        return Resumed(held, await self._store.log.unfinished())

    def __getattr__(self, verb: str) -> Any:
        if verb not in _INPUT:
            raise AttributeError(verb)

        async def refuse(*_: Any, **__: Any) -> None:
            raise Conflict(
                "Nothing has this store open, so no run goes on: start"
                f" `weftline serve{db_option(self._store.folder)}`, or the script with the run's engine, then"
                f" {_INPUT[verb]}."
            )

        return refuse


def _operator_routes() -> tuple[Route, ...]:
    from weftline.server.routes.operator import ROUTES  # few commands need them

    return ROUTES


class _NoModels:
    async def refresh(self, workspace: int | None = None) -> None: ...


class OfflineApp:
    """Answers requests of the operator, on a store that may be open for reading only."""

    def __init__(self, store: Store | ReadStore) -> None:
        whole = cast("Store", store)
        engine = cast("Engine", StoredEngine(whole))
        self._app = App(engine, whole, cast("WorkspaceCatalogs", _NoModels()), (), operator_routes=_operator_routes)
        self._loaded: dict[str, tuple[Route, ...]] = {}

    async def answer(self, method: str, target: str, body: bytes, *, operator: str) -> Answer:
        path = target.partition("?")[0]
        if not path.startswith(PATHS):
            self._load(path.split("/")[4:])
        return await ask(self._app, method, target, body, operator=operator)

    def _load(self, below: list[str]) -> None:
        """Loads the routes for a path below the workspaces."""
        names = _modules(below)
        if missing := [name for name in names if name not in self._loaded]:
            for name in missing:
                self._loaded[name] = import_module(f"weftline.server.routes.{name}").ROUTES
            self._app.router = Router(route for routes in self._loaded.values() for route in routes)


def _modules(below: list[str]) -> tuple[str, ...]:
    match below:
        case []:
            return ("workspaces",)
        case [_, "agent-runs"]:
            return ("lists",)
        case [_, "agent-runs", _, verb, *_] if verb in _OF_RUN:
            return (_OF_RUN[verb],)
        case [_, "agent-runs", *_]:
            return ("runs",)
        case [_, page, *_]:
            return _PAGES.get(page, ())
        case _:
            return ()
