"""Input of people for runs: answers, pauses and messages."""

from __future__ import annotations

from secrets import token_hex

from msgspec.json import encode
from msgspec.structs import replace

from weftline import labels
from weftline.api.controlling import answer_run, pause_run, resume_run, send_message
from weftline.api.cursors import await_cursor, await_of
from weftline.api.schemas.awaits import (
    Acknowledged,
    AnsweredAwait,
    AnswerModel,
    MessageToRunModel,
    PauseModel,
    QueuedMessage,
    ResumeModel,
)
from weftline.api.views import await_views
from weftline.cases.base import locate_run
from weftline.errors import NotFound
from weftline.kernel.entries import AwaitKind
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.bodies import model_body
from weftline.server.declared import QueryParameter
from weftline.server.http import Request, Response, idempotency_key
from weftline.server.router import Route
from weftline.server.routes.lists import (
    CURSOR,
    LIMIT,
    OF_AGENT,
    OF_SESSION,
    one_of,
    owners,
    page_limit,
    time_of,
    unusable,
)
from weftline.server.routes.runs import PATH
from weftline.store.records.pages import PAGE_BYTES
from weftline.store.rows import AwaitFilter
from weftline.wire.awaits import AwaitPage
from weftline.wire.limits import MAX_RESULT_BYTES
from weftline.wire.responses import Time
from weftline.work.heavy import in_turn

_KIND = QueryParameter("kind", AwaitKind, "Of this kind.")
_BUILD_ON_LOOP_BYTES = 64 * 1024
BODY_BYTES = 2 * MAX_RESULT_BYTES
_ANSWER = model_body(AnswerModel, limit_bytes=BODY_BYTES)
_PAUSE = model_body(PauseModel, limit_bytes=BODY_BYTES, optional=True)
_RESUME = model_body(ResumeModel, limit_bytes=BODY_BYTES, optional=True)
_MESSAGE = model_body(MessageToRunModel, limit_bytes=BODY_BYTES)


async def inbox(app: App, request: Request, principal: Principal) -> Response:
    kind = one_of(request, _KIND)
    thread, agents = await owners(app, request, principal)
    wanted = AwaitFilter(
        workspace=principal.workspace,
        root=await _run_of(app, request, principal),
        thread=thread,
        agents=agents,
        kinds=() if kind is None else (kind,),
        tool=request.query_value("name"),
        opened_until=time_of(request, "waitingSince"),
    )
    return await _page(app, request, wanted)


async def _run_of(app: App, request: Request, principal: Principal) -> int | None:
    """Returns the run that the list is for; 0 for one that does not exist."""
    run_id = request.query_value("runId")
    if run_id is None:
        return None
    if not labels.is_possible(run_id):
        raise unusable("runId", "is not the id of a run")
    try:
        return await app.engine.locate(run_id, workspace=principal.workspace)
    except NotFound:
        return 0


async def of_run(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, principal, request.params["runId"])
    return await _page(app, request, AwaitFilter(workspace=principal.workspace, root=key))


async def _page(app: App, request: Request, wanted: AwaitFilter) -> Response:
    cursor = request.query_value("cursor")
    limit = page_limit(request)
    after = (0, "") if cursor is None else await_of(cursor)
    async with app.pages.place(wanted.workspace):
        found = await app.engine.stored.awaits(replace(wanted, after=after, limit=limit + 1, max_bytes=PAGE_BYTES))
        page = [one for one in found[:limit] if not one.unread]
        more = await_cursor(page[-1].run, page[-1].id) if len(page) < len(found) else None
        views = AwaitPage(await await_views(page, app.engine.stored.session_id), more)
        large = sum([len(one.body) for one in page]) > _BUILD_ON_LOOP_BYTES
        return Response(await in_turn(encode, views) if large else encode(views))


async def answer(app: App, request: Request, principal: Principal) -> Response:
    run_id, await_id = request.params["runId"], request.params["awaitId"]
    key = await _waiting(app, request, principal)
    once = idempotency_key(request)
    sent, unknown = await request.read(_ANSWER)
    warnings = app.unknown_fields.warnings(request, unknown)
    who = principal.who
    # The same answer from somebody else is a different one, so that it is clear whose answer counted. An operator
    # who repeats a command repeats the answer.
    request_id = f"{who} {once}" if once is not None else "" if principal.operator else token_hex(16)
    with request.may_end_waits():
        answered = await answer_run(
            app.workspaces,
            app.engine,
            key,
            sent,
            run_id=run_id,
            await_id=await_id,
            by=who,
            request=request_id,
            idempotency_key=once or "",
            warnings=warnings,
        )
    return Response(encode(answered))


async def _waiting(app: App, request: Request, principal: Principal) -> int:
    """Returns the run in the path, or one below it of an agent that the credential may use."""
    if principal.agents:
        row = await app.engine.stored.find(request.params["runId"], workspace=principal.workspace)
        below = AwaitFilter(workspace=principal.workspace, run=row.key, agents=principal.agents, limit=1, max_bytes=0)
        if await app.engine.stored.awaits(below):
            return row.key
    return await locate_run(app, principal, request.params["runId"])


async def pause(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, principal, request.params["runId"])
    sent, unknown = await request.read(_PAUSE)
    warnings = app.unknown_fields.warnings(request, unknown)
    return Response(encode(await pause_run(app.engine, key, sent, by=principal.who, warnings=warnings)))


async def resume(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, principal, request.params["runId"])
    sent, unknown = await request.read(_RESUME)
    warnings = app.unknown_fields.warnings(request, unknown)
    return Response(encode(await resume_run(app.engine, key, sent, by=principal.who, warnings=warnings)))


async def message(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, principal, request.params["runId"])
    once = idempotency_key(request) or ""
    sent, unknown = await request.read(_MESSAGE)
    warnings = app.unknown_fields.warnings(request, unknown)
    who = principal.who
    queued = await send_message(app.engine, key, sent, by=who, idempotency_key=once, warnings=warnings)
    return Response(encode(queued))


ROUTES = (
    Route(
        "GET",
        f"{PATH}/{{runId}}/awaits",
        of_run,
        scopes=("runs:read",),
        narrowed="its agents",
        summary="List what a run and its subagents ask people",
        query=(LIMIT, CURSOR),
        returns=AwaitPage,
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/awaits/{{awaitId}}",
        answer,
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Answer what a run asks people",
        body=_ANSWER,
        warns=True,
        idempotent=True,
        returns=AnsweredAwait,
        errors=(409,),
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/pause",
        pause,
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Pause a run",
        body=_PAUSE,
        warns=True,
        returns=Acknowledged,
        errors=(409,),
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/resume",
        resume,
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Resume a paused run",
        body=_RESUME,
        warns=True,
        returns=Acknowledged,
        errors=(409,),
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/messages",
        message,
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Send a message to a running run",
        body=_MESSAGE,
        warns=True,
        idempotent=True,
        returns=QueuedMessage,
        errors=(409,),
    ),
    Route(
        "GET",
        "/api/v1/workspaces/{slug}/awaits",
        inbox,
        scopes=("runs:read",),
        narrowed="its agents",
        summary="List what people are asked",
        query=(
            _KIND,
            QueryParameter("runId", str, "Of this run and its subagents."),
            OF_SESSION,
            OF_AGENT,
            QueryParameter("name", str, "About calls of this tool."),
            QueryParameter("waitingSince", Time, "Only what was already open at this time."),
            LIMIT,
            CURSOR,
        ),
        returns=AwaitPage,
    ),
)
