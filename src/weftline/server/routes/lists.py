"""The lists of runs and sessions, with filters, newest first."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import UNSET, Meta, Struct
from msgspec.json import encode

from weftline.api.cursors import cursor_of, key_of
from weftline.api.sessions import listed_session
from weftline.api.views import run_summary
from weftline.cases.base import OF_AGENT, OF_SESSION, owners, unusable
from weftline.runtime.engine import Engine
from weftline.runtime.reads import finding
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.declared import QueryParameter
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.store.records.pages import PAGE_BYTES, RowPage
from weftline.store.records.threads import ThreadFilter
from weftline.store.rows import RunFilter, RunRow
from weftline.wire import run_responses
from weftline.wire.limits import MAX_METADATA_ENTRIES, MAX_METADATA_VALUE_CHARS, METADATA_KEY_PATTERN
from weftline.wire.run_responses import ListedRun, RunPage, Status
from weftline.wire.session_responses import SessionPage, SessionStatus
from weftline.workspace import threads

_BASE = "/api/v1/workspaces/{slug}"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEFAULT_LIMIT, MAX_LIMIT = 50, 200
MAX_NUMBER = 999_999_999
_AT_ONCE = 16
"""How many runs are looked up before other tasks get a turn: a millisecond's worth."""
_STATUS = QueryParameter("status", Status, "With this status.")
_SESSION_STATUS = QueryParameter("status", SessionStatus, "With this status.")
_CHILDREN = QueryParameter(
    "children",
    Literal["true", "false"],
    "`true`: with `sessionId`, also the runs of subagents below those of the session.",
)


async def runs(app: App, request: Request, principal: Principal) -> Response:
    status = one_of(request, _STATUS)
    wanted = await _common(app, request, principal)
    # Clients see a paused run as running; "paused" finds only paused ones.
    statuses = ("running", "paused") if status == "running" else (status,) if status else ()
    matching = RunFilter(
        workspace=principal.workspace or None,
        before=wanted.before,
        limit=wanted.limit + 1,
        statuses=statuses,
        thread=wanted.thread,
        with_children=one_of(request, _CHILDREN) == "true",
        agents=wanted.agents,
        metadata=wanted.metadata,
    )
    async with app.pages.place(principal.workspace):
        return await _page_of_runs(app, request, matching)


async def _page_of_runs(app: App, request: Request, matching: RunFilter) -> Response:
    prefix, limit = request.query_value("idPrefix"), matching.limit - 1
    if prefix is None:
        rows = await app.engine.stored.logs.runs(matching)
    elif finding.is_prefix(prefix):
        rows = await finding.runs_with_prefix(app.engine.stored.logs.runs, prefix, matching)
    else:
        raise unusable("idPrefix", "is not the beginning of a run's id")
    listed: list[ListedRun] = []
    size = 0
    for number, row in enumerate(rows[:limit]):
        if number % _AT_ONCE == 0:
            await app.list_queue.take(matching.workspace or 0)
        # Final texts may be large, so a page ends early rather than grow larger still.
        one = await listed_run(app.engine, row)
        size += len(one.final_text or "") + len(one.error or "")
        if listed and size > PAGE_BYTES:
            break
        listed.append(one)
    more = cursor_of(rows[len(listed) - 1].key) if len(rows) > len(listed) else None
    return Response(encode(RunPage(listed, more)))


async def sessions(app: App, request: Request, principal: Principal) -> Response:
    status = one_of(request, _SESSION_STATUS)
    wanted = await _common(app, request, principal)
    offset = number_of(request, _OFFSET, least=0) or 0
    matching = ThreadFilter(
        workspace=principal.workspace,
        before=wanted.before,
        offset=offset,
        limit=wanted.limit + 1,
        key=wanted.thread,
        ended=None if status is None else status == "ended",
        agents=wanted.agents,
        metadata=wanted.metadata,
    )
    rows = await threads.page(app.workspaces, matching)
    page = rows[: wanted.limit]
    more = cursor_of(page[-1].key) if len(rows) > wanted.limit else None
    # A client that follows a cursor had the total on its first page; counting again may cost more than the page.
    total = await threads.count(app.workspaces, matching) if wanted.before is None else UNSET
    listed = [listed_session(row) for row in page]
    return Response(encode(SessionPage(listed, more, limit=wanted.limit, offset=offset, total=total)))


def parameter(name: str, type: Any) -> QueryParameter:
    """Returns the parameter of this type, `Annotated` with its description; it may be optional."""
    described = next((one for one in get_args(type) if get_origin(one) is Annotated), type)
    *plain, about = get_args(described)
    if plain == [bool]:
        plain = [Literal["true", "false"]]
    return QueryParameter(name, plain[0] if len(plain) == 1 else Annotated[*plain], about)


def number_of(request: Request, parameter: QueryParameter, *, least: int = 1) -> int | None:
    """Returns a parameter that is a number of things."""
    text = request.query_value(parameter.name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < least:
        raise unusable(parameter.name, f"must be a whole number from {least} to {MAX_NUMBER}")
    return int(text)


async def listed_run(engine: Engine, row: RunRow) -> ListedRun:
    return run_responses.listed_run(await run_summary(engine.stored, row), agent_id=row.agent)


def stored_page(app: App, request: Request, principal: Principal) -> tuple[int, int]:
    """Returns the key after which a page of stored records begins, and its limit."""
    cursor = request.query_value("cursor")
    after = 0 if cursor is None else app.cursors.open(cursor, workspace=principal.workspace)
    return after, page_limit(request, default=MAX_LIMIT)


def next_cursor(app: App, page: RowPage[Any], principal: Principal) -> str | None:
    return None if page.more_after is None else app.cursors.seal(page.more_after, workspace=principal.workspace)


def page_limit(request: Request, *, default: int = DEFAULT_LIMIT) -> int:
    text = request.query_value("limit")
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= MAX_LIMIT:
        raise unusable("limit", f"must be a whole number from 1 to {MAX_LIMIT}")
    return int(text)


class _Common(Struct, frozen=True):
    """The filters that both lists have."""

    before: int | None
    limit: int
    thread: int | None
    """0 for a session that does not exist."""
    agents: tuple[str, ...]
    """Any of these; empty for all."""
    metadata: tuple[tuple[str, str], ...]


async def _common(app: App, request: Request, principal: Principal) -> _Common:
    cursor = request.query_value("cursor")
    session, agent = (request.query_value(name) for name in ("sessionId", "agentId"))
    thread, of_agents = await owners(app.workspaces, principal, session_id=session, agent_id=agent)
    before = None if cursor is None else key_of(cursor)
    return _Common(before, page_limit(request), thread, of_agents, _metadata(request))


def _metadata(request: Request) -> tuple[tuple[str, str], ...]:
    pairs: dict[tuple[str, str], None] = {}
    for text in request.query_values("metadata"):
        key, colon, value = text.partition(":")
        if not colon or not re.fullmatch(METADATA_KEY_PATTERN, key) or len(value) > MAX_METADATA_VALUE_CHARS:
            raise unusable("metadata", "must be key:value with a key and a value that metadata can have")
        if "\x00" in value or any(0xD800 <= ord(char) < 0xE000 for char in value):
            raise unusable("metadata", "has characters that metadata cannot have")
        pairs[key, value] = None
    if len(pairs) > MAX_METADATA_ENTRIES:
        raise unusable("metadata", f"may be given at most {MAX_METADATA_ENTRIES} times")
    return tuple(pairs)


def one_of(request: Request, parameter: QueryParameter) -> str | None:
    """Returns a parameter whose type is a `Literal`."""
    value, words = request.query_value(parameter.name), get_args(parameter.type)
    if value is not None and value not in words:
        raise unusable(parameter.name, f"must be one of {', '.join(words)}")
    return value


LIMIT = QueryParameter(
    "limit",
    Annotated[int, Meta(ge=1, le=MAX_LIMIT, extra_json_schema={"default": DEFAULT_LIMIT})],
    "The maximum number of items on a page.",
)
STORED_LIMIT = QueryParameter(
    "limit",
    Annotated[int, Meta(ge=1, le=MAX_LIMIT, extra_json_schema={"default": MAX_LIMIT})],
    "The maximum number of items on a page. There are fewer when they are large.",
)
CURSOR = QueryParameter("cursor", str, "`nextCursor` of the page before.")
_OFFSET = QueryParameter(
    "offset",
    Annotated[int, Meta(ge=0, le=MAX_NUMBER, extra_json_schema={"default": 0})],
    "How many to leave out at the beginning. `cursor` is faster, and new sessions do not shift it.",
)
_FILTERS = (
    parameter("sessionId", OF_SESSION),
    parameter("agentId", OF_AGENT),
    QueryParameter("metadata", list[str], "`key:value`; may be repeated, and all must match."),
    LIMIT,
    CURSOR,
)


ROUTES = (
    Route(
        "GET",
        f"{_BASE}/agent-runs",
        runs,
        scopes=("runs:read",),
        narrowed="its agents",
        every_workspace=True,
        summary="List runs",
        query=(
            _STATUS,
            QueryParameter(
                "idPrefix",
                Annotated[str, Meta(pattern=f"^{finding.PATTERN}$")],
                "Only runs whose id begins with this.",
            ),
            _CHILDREN,
            *_FILTERS,
        ),
        returns=RunPage,
    ),
    Route(
        "GET",
        f"{_BASE}/agent-sessions",
        sessions,
        scopes=("sessions:read",),
        narrowed="its agents",
        summary="List sessions",
        query=(_SESSION_STATUS, *_FILTERS, _OFFSET),
        returns=SessionPage,
    ),
)
