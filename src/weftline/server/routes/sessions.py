"""Sessions: threads of runs, as the protocol calls them."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.json import decode, encode

from weftline.api.sessions import create_session, origins, send_message
from weftline.api.views import session_unreadable, session_usage
from weftline.cases.base import find_session
from weftline.kernel import bodies
from weftline.kernel.damage import UNREADABLE
from weftline.runtime import ids
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.creating import FOLLOWED, respond_created
from weftline.server.declared import Body, QueryParameter
from weftline.server.http import Request, Response, StreamedResponse, idempotency
from weftline.server.large import LARGE_BYTES
from weftline.server.paging import MAX_NUMBER, number_of, one_of
from weftline.server.router import EventStream, Route
from weftline.server.sse import LAST_EVENT_ID
from weftline.spec.fields import MessageModel, SessionModel
from weftline.store.records.threads import ThreadRow
from weftline.wire.errors import session_damaged
from weftline.wire.limits import MAX_BODY_BYTES_WITH_FILES
from weftline.wire.responses import Ok
from weftline.wire.run_responses import CreatedRun
from weftline.wire.session_responses import (
    CreatedSession,
    Session,
    SessionEvents,
    SessionView,
    created_session,
    session_events,
    session_info,
)
from weftline.work.heavy import off_loop
from weftline.workspace import threads

PATH = "/api/v1/workspaces/{slug}/agent-sessions"
_SESSION = Body[bytes](SessionModel)
_MESSAGE = Body[bytes](MessageModel, limit_bytes=MAX_BODY_BYTES_WITH_FILES)

_COUNT = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
_LAST = QueryParameter("lastMessages", _COUNT, "Only so many, the latest ones.")
_BEFORE = QueryParameter("beforeSeq", _COUNT, "Only those before this number: `nextBeforeSeq` of a later page.")
_CALLS = QueryParameter("calls", Literal["true", "false"], "`true`: with the calls of the runs that answered.")
_FULL = QueryParameter("full", Literal["1"], "All of them, whatever else is given.")


async def create(app: App, request: Request, principal: Principal) -> Response:
    raw = await request.body()
    once = await idempotency(request, "agent-sessions", raw)
    warn = partial(app.unknown_fields.warnings, request)
    created = await create_session(app, principal, raw, idempotency=once, warn=warn)
    row = created.row
    session_id = ids.session_id(row.key, row.salt)
    body = created_session(session_id, name=row.name, created_us=row.created_at, warnings=created.warnings)
    return Response(body, status=201)


async def read(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    row = await find_session(app, principal, request.params["sessionId"])
    size = row.spec_bytes + await app.engine.stored.logs.thread_size(row.key)
    make = partial(_snapshot, app, row, size=size, calls=one_of(request, _CALLS) == "true")
    if size > LARGE_BYTES:
        return partial(app.large.make_and_send, request, principal.slug, size=size, make=make)
    return await make()


async def _snapshot(app: App, row: ThreadRow, *, size: int, calls: bool) -> Response:
    if row.damaged:
        raise session_damaged(ids.session_id(row.key, row.salt), f"its {row.damaged}")
    view = SessionView(
        id=ids.session_id(row.key, row.salt),
        created_us=row.created_at,
        last_used_us=row.last_used_at,
        spec=await threads.spec(app.workspaces, row),
        name=row.name,
        ended_us=row.ended_at,
        metadata=decode(row.metadata, type=dict[str, str]),
        usage=await session_usage(app.engine, row.key),
    )
    stored = await app.engine.stored.logs.thread_messages(row.key)
    find, calls_of = app.engine.stored.logs.runs, app.engine.stored.calls if calls else None
    said_in = await origins(find, app.workspaces, row, calls=calls_of)

    def made() -> bytes:
        return session_info(view, zip_longest(map(bodies.decode_message, stored), said_in[: len(stored)]))

    try:
        return Response(await off_loop(made, size=size))
    except UNREADABLE:
        raise await session_unreadable(app.engine, row.key, session_damaged(view.id, "a message of it")) from None


async def events(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    row = await find_session(app, principal, request.params["sessionId"])
    last, before = number_of(request, _LAST), number_of(request, _BEFORE)
    if one_of(request, _FULL):
        last = before = None
    size = await app.engine.stored.logs.thread_size(row.key)
    identity = ids.session_id(row.key, row.salt)

    async def make() -> Response:
        stored = await app.engine.stored.logs.thread_messages(row.key)
        said_in = await origins(app.engine.stored.logs.runs, app.workspaces, row)

        def made() -> bytes:
            messages = zip_longest(map(bodies.decode_message, stored), said_in[: len(stored)])
            return session_events(identity, messages, last=last, before=before)

        try:
            return Response(await off_loop(made, size=size))
        except UNREADABLE:
            raise await session_unreadable(app.engine, row.key, session_damaged(identity, "a message of it")) from None

    if size > LARGE_BYTES:
        return partial(app.large.make_and_send, request, principal.slug, size=size, make=make)
    return await make()


async def message(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    row = await find_session(app, principal, request.params["sessionId"])
    raw = await request.body()
    once = await idempotency(request, f"agent-sessions/{row.key}/messages", raw)
    warn = partial(app.unknown_fields.warnings, request)
    work = partial(send_message, app, principal, row, raw, idempotency=once, warn=warn)
    return await respond_created(app, request, principal, work)


async def end(app: App, request: Request, principal: Principal) -> Response:
    row = await find_session(app, principal, request.params["sessionId"])
    await threads.end(app.workspaces, app.engine, row, requested_by=principal.who)
    return Response(encode(Ok()))


ROUTES = (
    Route(
        "POST",
        PATH,
        create,
        scopes=("sessions:write",),
        narrowed="its agents",
        summary="Create a session",
        body=_SESSION,
        warns=True,
        idempotent=True,
        returns=CreatedSession,
        status=201,
        errors=(409,),
    ),
    Route(
        "GET",
        f"{PATH}/{{sessionId}}",
        read,
        scopes=("sessions:read",),
        narrowed="its agents",
        summary="Read a session",
        query=(_CALLS,),
        returns=Session,
    ),
    Route(
        "GET",
        f"{PATH}/{{sessionId}}/events",
        events,
        scopes=("sessions:read",),
        narrowed="its agents",
        summary="Read the messages of a session in the form of events",
        query=(_LAST, _BEFORE, _FULL),
        returns=SessionEvents,
    ),
    Route(
        "DELETE",
        f"{PATH}/{{sessionId}}",
        end,
        scopes=("sessions:write",),
        narrowed="its agents",
        live=True,
        summary="End a session",
        returns=Ok,
    ),
    Route(
        "POST",
        f"{PATH}/{{sessionId}}/messages",
        message,
        scopes=("sessions:write",),
        narrowed="its agents",
        live=True,
        summary="Send a message, and follow the events of its run if the client accepts those",
        query=FOLLOWED,
        headers=(LAST_EVENT_ID,),
        body=_MESSAGE,
        warns=True,
        idempotent=True,
        returns=CreatedRun | EventStream,
        status=202,
        errors=(409,),
    ),
)
