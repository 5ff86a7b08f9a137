"""The lists of runs and sessions, with filters, newest first."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct
from msgspec.json import encode

from weftline.api.cursors import cursor_of, key_of
from weftline.api.sessions import listed_session
from weftline.api.views import listed_run
from weftline.cases.base import OF_AGENT, OF_SESSION, owners, unusable
from weftline.runtime.reads import finding
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.declared import QueryParameter
from weftline.server.http import Request, Response
from weftline.server.paging import CURSOR, LIMIT, MAX_NUMBER, number_of, one_of, page_limit, parameter
from weftline.server.router import Route
from weftline.store.records.pages import PAGE_BYTES
from weftline.store.records.threads import ThreadFilter
from weftline.store.rows import RunFilter
from weftline.wire.limits import MAX_METADATA_ENTRIES, MAX_METADATA_VALUE_CHARS, METADATA_KEY_PATTERN
from weftline.wire.run_responses import ListedRun, RunPage, Status
from weftline.wire.session_responses import SessionPage, SessionStatus
from weftline.workspace import threads

_BASE = "/api/v1/workspaces/{slug}"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
        one = await listed_run(app.engine.stored, row)
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
