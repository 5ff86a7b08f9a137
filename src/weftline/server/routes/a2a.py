"""A workspace's agents for A2A callers: the JSON-RPC endpoint of each, its card, and the list of cards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from msgspec.json import encode

from weftline.errors import NotFound, WeftlineError
from weftline.runtime import ids
from weftline.server import a2a, following
from weftline.server.a2a import RpcError
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request, Response
from weftline.server.parsing import parsed
from weftline.server.router import EventStream, Route
from weftline.server.sse import HEADERS, KEEP_ALIVE
from weftline.server.views import run_view
from weftline.store.base import RunRow
from weftline.store.records.agents import AgentRow
from weftline.wire.responses import RunView
from weftline.workspace import agents

_AGENT = "/api/a2a/{slug}/agents/{agentSlug}"
_INVOKE = ("a2a:invoke", "agents:invoke")
_USAGES = ("a2a", "developer_api")
_STREAMS = ("message/stream", "tasks/resubscribe")


async def call(app: App, request: Request, principal: Principal) -> Response | None:
    agent = await agents.use_by_slug(app.workspaces, principal, request.params["agentSlug"])
    identity: Any = None
    try:
        sent = await parsed(a2a.parse_call, await request.body())
        identity = sent.id
        if sent.method in _STREAMS:
            row = await _streamed(app, agent, sent)
            await _send_stream(app, request, row, identity)
            return None
        result = await _result(app, request, principal, agent, sent)
    except (RpcError, WeftlineError) as error:
        if isinstance(error, RpcError) and error.data is not None and "id" in error.data:
            identity, error.data = error.data["id"], None
        return Response(a2a.error_body(identity, error))
    return Response(a2a.result_body(identity, result))


async def _result(app: App, request: Request, principal: Principal, agent: AgentRow, sent: a2a.RpcCall) -> Any:
    match sent.method:
        case "message/send":
            params = a2a.message_params(sent)
            row = await _begin(app, agent, params)
            if params.configuration is not None and params.configuration.blocking is False:
                return a2a.task_of(await run_view(app.engine, row))
            return a2a.message_of(await _end(app, request, row))
        case "tasks/get":
            return a2a.task_of(await run_view(app.engine, await _task(app, agent, a2a.task_params(sent).id)))
        case "tasks/cancel":
            row = await _task(app, agent, a2a.task_params(sent).id)
            if row.ended_at is not None:
                raise RpcError(a2a.TASK_NOT_CANCELABLE, "The task has ended.")
            await app.engine.cancel(row.key, requested_by=principal.id)
            return a2a.task_of(await run_view(app.engine, await _task(app, agent, _id(row))))
        case _:
            raise RpcError(a2a.METHOD_NOT_FOUND, f"There is no method {sent.method[:100]!r}.")


async def _begin(app: App, agent: AgentRow, params: a2a.MessageParams) -> RunRow:
    """Starts the run of a message, on the session of its context."""
    context = params.message.context_id
    if context is None and params.message.task_id is not None:
        context = a2a.context_of(await run_view(app.engine, await _task(app, agent, params.message.task_id)))
    thread = await following.session_of_context(app, agent, context or a2a.new_context())
    run_id = await following.send(app, thread, params.text)
    return await app.engine.find(run_id, workspace=agent.workspace)


async def _end(app: App, request: Request, row: RunRow) -> RunView:
    """The run when it has ended. A caller that goes away leaves the run as it is: it is a task of its own."""
    ended = asyncio.ensure_future(following.ended(app, row, _id(row)))
    gone = asyncio.ensure_future(request.disconnected())
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            raise ConnectionResetError
        run = ended.result()
    finally:
        ended.cancel()
        gone.cancel()
    if run is None:
        data = {"taskId": _id(row)}
        raise RpcError(a2a.INTERNAL_ERROR, "The server is stopping; ask tasks/get for the result later.", data=data)
    return run


async def _streamed(app: App, agent: AgentRow, sent: a2a.RpcCall) -> RunRow:
    if sent.method == "message/stream":
        return await _begin(app, agent, a2a.message_params(sent))
    return await _task(app, agent, a2a.task_params(sent).id)


async def _send_stream(app: App, request: Request, row: RunRow, identity: Any) -> None:
    headers = [*HEADERS, (b"x-request-id", request.id.encode())]
    await request.send({"type": "http.response.start", "status": 200, "headers": headers})
    sending = asyncio.ensure_future(_frames(app, request, row, identity))
    gone = asyncio.ensure_future(request.disconnected())
    try:
        await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        gone.cancel()
        sending.cancel()


async def _frames(app: App, request: Request, row: RunRow, identity: Any) -> None:
    async for update in _updates(app, row):
        body = KEEP_ALIVE if update is None else b"data: " + a2a.result_body(identity, update) + b"\n\n"
        await request.send({"type": "http.response.body", "body": body, "more_body": True})
    await request.send({"type": "http.response.body", "body": b""})


async def _updates(app: App, row: RunRow) -> AsyncGenerator[Any]:
    """The task as it begins, the text of each turn as it is produced, the final status; None to keep alive."""
    run = await run_view(app.engine, row)
    yield a2a.task_of(run)
    turn, begun = 0, False
    async for event in following.events(app, row, run.id):
        if not event.type:
            yield None
        elif event.type == "assistant_delta":
            yield a2a.chunk(run, f"turn-{turn}", event.payload["text"], append=begun)
            begun = True
        elif event.type == "turn_restarted":
            begun = False
        elif event.type == "assistant_message":
            turn, begun = turn + 1, False
        elif event.is_terminal:
            after = await app.engine.row(row.key)
            assert after is not None
            yield a2a.final_update(await run_view(app.engine, after))


async def _task(app: App, agent: AgentRow, task: str) -> RunRow:
    try:
        row = await app.engine.find(task, workspace=agent.workspace)
    except NotFound:
        row = None
    if row is None or row.agent != agent.id:
        raise RpcError(a2a.TASK_NOT_FOUND, "There is no such task of this agent.")
    return row


def _id(row: RunRow) -> str:
    return ids.run_id(row.key, row.salt)


async def card(app: App, request: Request, principal: Principal) -> Response:
    agent = await agents.use_by_slug(app.workspaces, principal, request.params["agentSlug"])
    return Response(encode(_card(app, request, principal, agent)))


async def discovery(app: App, request: Request, principal: Principal) -> Response:
    cards = [_card(app, request, principal, row) for row in await agents.usable(app.workspaces, principal)]
    return Response(encode(a2a.AgentCards(cards)))


def _card(app: App, request: Request, principal: Principal, agent: AgentRow) -> a2a.AgentCard:
    return a2a.card(agent, url=f"{app.oauth.url}/api/a2a/{principal.slug}/agents/{agent.slug}")


ROUTES = (
    Route(
        "POST",
        _AGENT,
        call,
        scopes=_INVOKE,
        usages=_USAGES,
        summary="Call an agent over A2A (JSON-RPC)",
        body=a2a.RpcCall,
        returns=a2a.RpcReply | EventStream,
    ),
    *(
        Route(
            "GET",
            f"{_AGENT}/.well-known/{name}",
            card,
            scopes=("a2a:discovery",),
            usages=_USAGES,
            summary="The agent's card",
            returns=a2a.AgentCard,
        )
        for name in ("agent-card.json", "agent.json")
    ),
    Route(
        "GET",
        "/api/a2a/{slug}/discovery",
        discovery,
        scopes=("a2a:discovery",),
        usages=_USAGES,
        summary="The cards of the agents that the credential may use",
        returns=a2a.AgentCards,
    ),
)
