"""Sessions: threads of runs, as the protocol calls them."""

from __future__ import annotations

from functools import partial

from msgspec.json import decode, encode

from weftline.api.agent_specs import RunSpec, effective
from weftline.api.creating import Created, Warn
from weftline.api.parsing import off_loop, parsed
from weftline.api.planning import plan_of
from weftline.api.views import session_usage
from weftline.errors import Conflict, InvalidRequest
from weftline.kernel import bodies
from weftline.kernel.damage import UNREADABLE
from weftline.runtime import ids
from weftline.server.access import find_session
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.creating import answer_created
from weftline.server.http import Request, Response, StreamedResponse
from weftline.server.large import LARGE_BYTES
from weftline.server.router import EventStream, Route
from weftline.server.routes.runs import idempotency
from weftline.store.base import IdempotencyKey
from weftline.store.records.threads import ThreadRow
from weftline.wire.bodies import SessionBody
from weftline.wire.damage import session_damaged
from weftline.wire.requests import parse_message, parse_session
from weftline.wire.responses import (
    CreatedRun,
    CreatedSession,
    Ok,
    Session,
    SessionView,
    created_session,
    session_info,
)
from weftline.wire.run_spec import MessageModel, SessionModel
from weftline.wire.sessions import effective_spec
from weftline.wire.unknown_fields import with_typos
from weftline.workspace import agents, threads
from weftline.workspace.threads import ThreadDraft

PATH = "/api/v1/workspaces/{slug}/agent-sessions"
_MAX_REMEMBERED = 10_000


async def create(app: App, request: Request, principal: Principal) -> Response:
    raw = await request.body()
    once = await idempotency(request, "agent-sessions", raw)
    body = await parsed(parse_session, raw)
    warnings = app.unknown_fields.warnings(request, body.unknown)
    agent_id = body.agent_id
    if agent_id is not None:
        agent_id = await agents.id_of(app.workspaces, principal.workspace, agent_id)
    agents.require_named(principal, agent_id)
    row = once and await threads.created_before(app.workspaces, principal.workspace, once)
    if not row:  # otherwise it is the same one, whatever has become of its agent, models and tools since
        row = await _create(app, principal, agent_id, body, once)
    identity = ids.session_id(row.key, row.salt)
    created = created_session(identity, name=row.name, created_us=row.created_at, warnings=warnings)
    return Response(created, status=201)


async def _create(
    app: App, principal: Principal, agent_id: str | None, body: SessionBody, once: IdempotencyKey | None
) -> ThreadRow:
    app.engine.require_accepting()
    own = RunSpec(body.spec, body.secrets)
    whole = await effective(app.workspaces, principal, agent_id, own, replaces=principal.may_change_agents)
    plan = await parsed(partial(plan_of, app.workspaces), whole.spec)
    try:
        await app.engine.check(plan, workspace=principal.workspace)
    except InvalidRequest as error:
        raise with_typos(error, body.unknown) from None
    draft = ThreadDraft(name=plan.name, agent=agent_id, spec=whole.spec, headers=whole.headers, metadata=body.metadata)
    return await threads.create(app.workspaces, principal.workspace, draft, idempotency=once)


async def read(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    row = await find_session(app, request, principal)
    size = row.spec_bytes + await app.engine.thread_size(row.key)
    make = partial(_snapshot, app, row, size=size)
    if size > LARGE_BYTES:
        return partial(app.large.make_and_send, request, principal.slug, size=size, make=make)
    return await make()


async def _snapshot(app: App, row: ThreadRow, *, size: int) -> Response:
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
    stored = await app.engine.thread_messages(row.key)

    def made() -> bytes:
        try:
            return session_info(view, [bodies.decode_message(message) for message in stored])
        except UNREADABLE:
            raise session_damaged(view.id, "a message of it") from None

    return Response(await off_loop(made, size=size))


async def message(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    row = await find_session(app, request, principal)
    raw = await request.body()
    once = await idempotency(request, f"agent-sessions/{row.key}/messages", raw)
    warn = partial(app.unknown_fields.warnings, request)
    work = partial(_send, app, principal, row, raw, idempotency=once, warn=warn)
    return await answer_created(app, request, principal, work)


async def _send(
    app: App,
    principal: Principal,
    row: ThreadRow,
    raw: bytes,
    *,
    idempotency: IdempotencyKey | None,
    warn: Warn,
) -> Created:
    body = await parsed(parse_message, raw)
    warnings = warn(body.unknown)
    earlier = idempotency and await app.engine.created_before(principal.workspace, idempotency)
    if earlier:
        return Created(earlier, warnings)
    if row.ended_at is not None:
        raise Conflict("This session has ended.", code="thread_ended")
    if row.damaged:
        raise session_damaged(ids.session_id(row.key, row.salt), f"its {row.damaged}")
    await _check_history(app, row)
    own = await threads.spec(app.workspaces, row)
    spec = await off_loop(partial(effective_spec, own, body), size=len(own) + len(body.spec))
    plan = await parsed(partial(plan_of, app.workspaces, requested_by=principal.who), spec)
    # The secret headers come from where the tools come from.
    secrets = (
        app.workspaces.vault.seal_headers(body.secrets, workspace=principal.workspace)
        if body.replaces_tools
        else await threads.sealed_headers(app.workspaces, row)
    )
    try:
        run_id = await app.engine.create(
            principal.workspace,
            plan,
            sent=spec,
            thread=row.key,
            metadata=encode(plan.metadata).decode(),
            idempotency=idempotency,
            secrets=secrets,
            blobs=body.blobs,
            run_id=body.run_id,
        )
    except InvalidRequest as error:
        raise with_typos(error, body.unknown) from None
    return Created(run_id, warnings)


async def _check_history(app: App, row: ThreadRow) -> None:
    """Refuses a message that no run could answer. Once per session and process: what was read once is readable."""
    if row.key in app.read_sessions:
        return
    stored = await app.engine.thread_messages(row.key)

    def read() -> None:
        for message in stored:
            bodies.decode_message(message)

    try:
        await off_loop(read, size=sum(map(len, stored)))
    except UNREADABLE:
        raise session_damaged(ids.session_id(row.key, row.salt), "a message of it") from None
    if len(app.read_sessions) >= _MAX_REMEMBERED:
        app.read_sessions.clear()
    app.read_sessions.add(row.key)


async def end(app: App, request: Request, principal: Principal) -> Response:
    row = await find_session(app, request, principal)
    if row.ended_at is None:
        app.engine.require_well()
        await threads.end(app.workspaces, row)
    await app.engine.end_thread(row.key, requested_by=principal.who)
    return Response(b'{"ok":true}')


ROUTES = (
    Route(
        "POST",
        PATH,
        create,
        scopes=("sessions:write",),
        narrowed="its agents",
        summary="Create a session",
        body=SessionModel,
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
        returns=Session,
    ),
    Route(
        "DELETE",
        f"{PATH}/{{sessionId}}",
        end,
        scopes=("sessions:write",),
        narrowed="its agents",
        summary="End a session",
        returns=Ok,
    ),
    Route(
        "POST",
        f"{PATH}/{{sessionId}}/messages",
        message,
        scopes=("sessions:write",),
        narrowed="its agents",
        summary="Send a message, and follow the events of its run if the client accepts those",
        body=MessageModel,
        warns=True,
        idempotent=True,
        returns=CreatedRun | EventStream,
        status=202,
        errors=(409,),
    ),
)
