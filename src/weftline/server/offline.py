"""The app for a command that has the store open itself, because no server has.

What is stored can be read and changed, but nothing here starts or continues a run. It has the routes of a server. What
needs an engine is refused, with a sentence that says what to do: a route that is `live` before anything is done, and
others as soon as they need what `StoredEngine` lacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import CoroutineType
from typing import Any, NamedTuple, NoReturn

from msgspec.structs import replace

from weftline.errors import Conflict
from weftline.plan import RunPlan
from weftline.providers.catalog import Catalog
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.clock import SystemClock
from weftline.runtime.engine import Resumed
from weftline.runtime.reads.finding import StoredNames
from weftline.runtime.reads.reading import StoredRuns
from weftline.server.app import App
from weftline.server.heads import path_and_query, readable
from weftline.server.http import PEER, Application
from weftline.server.router import Route
from weftline.server.routes import FIRST, every_route, operator_routes
from weftline.store.base import ReadStore, owned
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


def _needs_engine(then: str) -> Callable[..., CoroutineType[Any, Any, NoReturn]]:
    async def refuse(engine: StoredEngine, *_: Any, **__: Any) -> NoReturn:
        raise engine.refusal(then)

    return refuse


def _needs_engine_now(then: str) -> Callable[..., NoReturn]:
    """The same for what is not awaited."""

    def refuse(engine: StoredEngine, *_: Any, **__: Any) -> NoReturn:
        raise engine.refusal(then)

    return refuse


class StoredEngine:
    """The `weftline.runtime.engine.Engine` of a store that has none, which may be open for reading only.

    Whatever needs runs that go on raises `Conflict`.
    """

    def __init__(self, store: ReadStore) -> None:
        self._store = store
        self.clock = SystemClock()
        self.stored = StoredRuns(store.log, StoredNames(store.records))

    def refusal(self, then: str) -> Conflict:
        """Returns the refusal of what only runs that go on can do; `then` is what the person wants, in their words."""
        return Conflict(
            "Nothing has this store open, so no run goes on: start"
            f" `weftline serve{db_option(self._store.folder)}`, or the script with the run's engine, then {then}."
        )

    @property
    def messages(self) -> NoReturn:
        raise self.refusal("ask for the messages")

    def require_accepting(self) -> None: ...

    def require_writable(self) -> None: ...

    async def locate(self, run_id: str, *, workspace: int) -> int:
        return (await self.stored.find(run_id, workspace=workspace)).key

    async def check(self, plan: RunPlan, *, workspace: int, runs_now: bool = True) -> None:
        """Does nothing, as only a server knows its models and tools."""

    async def created_before(self, workspace: int, idempotency: IdempotencyKey) -> str | None:
        return None

    async def budgets_changed(self, workspace: int, *, by: str = "") -> None:
        """Does nothing, as no run has to be told."""

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        return await owned(self._store).log.trim(before=before, after=after, workspace=workspace)

    async def add_ended(self, write: Write, *, last_key: int) -> Written:
        from weftline.runtime.creating import add_ended  # with half of the engine

        return await add_ended(owned(self._store).log, write)

    async def resume_all(self) -> Resumed:
        log = owned(self._store).log
        held = log.held
        if held:
            await log.lift_hold()
        return Resumed(held, await log.unfinished())

    create = _needs_engine("start the run")
    steer = _needs_engine("send the message")
    follow_up = _needs_engine("send the message")
    pause = _needs_engine("pause the run")
    resume = _needs_engine("resume the run")
    cancel = _needs_engine("cancel the run")
    end_thread = _needs_engine("end the session")
    answer_await = _needs_engine("answer")
    answer = _needs_engine("answer the call")
    provide = _needs_engine("answer the calls")
    claim = _needs_engine("claim the call")
    heartbeat = _needs_engine("keep the call")
    release = _needs_engine("give the call back")
    accept = _needs_engine("try again")
    waits_for_people = _needs_engine("try again")
    wait_released = _needs_engine("try again")
    follow = _needs_engine_now("follow the run")
    reserve_stream = _needs_engine_now("follow the run")
    observe = _needs_engine_now("follow its runs")
    watch_ends = _needs_engine_now("follow its runs")
    beat = _needs_engine_now("follow its runs")
    measure = _needs_engine_now("read its metrics")


class OfflineApp:
    """Answers requests of the operator, on a store that may be open for reading only."""

    def __init__(self, store: ReadStore) -> None:
        def offline(routes: Iterable[Route]) -> list[Route]:
            return [replace(one, handler=refuse) if _is_live(one) else one for one in routes]

        async def refuse(*_: object) -> NoReturn:
            raise engine.refusal("try again")

        engine = StoredEngine(store)
        self._app = App(
            engine,
            store,
            WorkspaceCatalogs(Catalog()),
            offline(FIRST),
            every_route=lambda: offline(every_route()),
            operator_routes=lambda: offline(operator_routes()),
        )

    async def answer(self, method: str, target: str, body: bytes, *, operator: str) -> Answer:
        return await ask(self._app, method, target, body, operator=operator)


def _is_live(route: Route) -> bool:
    """Public pages are those of a server that listens."""
    return route.live or route.access == "public"
