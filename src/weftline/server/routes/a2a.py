"""A workspace's agents for A2A callers: the JSON-RPC endpoint of each, its card, and the list of cards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import UNSET
from msgspec.json import encode

from weftline.errors import Unauthorized, WeftlineError
from weftline.framing import one_line
from weftline.server.a2a import cards, rpc
from weftline.server.a2a.dialect import Dialect
from weftline.server.a2a.rpc import Call, NotACall, RpcError
from weftline.server.a2a.serving import STREAMS, Serving
from weftline.server.a2a.tasks import Task
from weftline.server.a2a.v0_3 import V03
from weftline.server.a2a.v1_0 import V1
from weftline.server.app import App
from weftline.server.auth import Principal, invalid_credential
from weftline.server.declared import Body, Header, QueryParameter
from weftline.server.http import NO_SNIFFING, Request, Response
from weftline.server.large import LARGE_BYTES, LargeResponses, RequestRoom
from weftline.server.open_streams import OpenStream
from weftline.server.router import EventStream, Route
from weftline.server.sse import HEADERS, KEEP_ALIVE
from weftline.store.records.agents import AgentRow, AgentSummary
from weftline.workspace import agents

DISCOVERY = "/api/a2a/{slug}/discovery"
_AGENT = "/api/a2a/{slug}/agents/{agentSlug}"
_INVOKE = ("a2a:invoke", "agents:invoke")
_USAGES = ("a2a", "developer_api")
_V03, _V1 = V03(), V1()
_CALL = Body(rpc.RpcCall, rpc.parse_call)
_VERSION = "A2A-Version"
_VERSION_HEADER = Header(_VERSION, str, "The version of A2A that the caller speaks, such as `1.0`.")
_VERSION_QUERY = QueryParameter(_VERSION, str, "The same, for callers that cannot set headers.")


async def call(app: App, request: Request, principal: Principal) -> Response | None:
    agent = await agents.use_by_slug(app.workspaces, principal, request.params["agentSlug"])
    asked = _version(request)
    dialect: Dialect = _V1 if asked == _V1.version else _V03
    try:
        sent = await request.read(_CALL)
    except NotACall as refused:
        return _refusal(dialect, refused.id, _not_json(request, dialect) or refused.error)
    request.body_is_read()
    try:
        if not asked and sent.method in _V1.methods:
            dialect = _V1  # no method has the same name in both
        if asked not in ("", _V03.version, _V1.version):
            raise _unknown_version(asked)
        return await _carry_out(app, request, principal, agent, dialect, sent)
    except Unauthorized:
        raise  # reported as it is before a call is read
    except (RpcError, WeftlineError) as error:
        if sent.id is UNSET:
            return Response(b"", status=204)
        refused = rpc.as_rpc(error)
        streams = dialect is _V03 and dialect.methods.get(sent.method) in STREAMS
        if streams and refused.status == 200 and _wants_events(request):
            # Callers of version 0.3 that ask for events cannot read anything else.
            body = rpc.error_body(sent.id, dialect.fault(refused))
            return Response(_event(body), headers=tuple(one for one in HEADERS if one != NO_SNIFFING))
        return _refusal(dialect, sent.id, refused)


async def _carry_out(
    app: App, request: Request, principal: Principal, agent: AgentRow, dialect: Dialect, sent: Call
) -> Response | None:
    operation = dialect.methods.get(sent.method)
    if operation is None:
        message = f"A2A {dialect.version} has no method {sent.method[:100]!r}."
        raise RpcError(rpc.METHOD_NOT_FOUND, message)
    room = RequestRoom(app.large, principal.slug)
    serving = Serving(app, app.deliveries, agent, dialect, sender=principal.who, room=room)
    try:
        if sent.id is UNSET:
            await serving.notify(operation, sent.params)
            return Response(b"", status=204)
        if operation in STREAMS:
            events = await serving.stream(operation, sent.params)
            frames = _Frames(app.large, room, request, sent.id)
            # Errors must be raised before the response begins.
            first = [await anext(events)]  # it may be large, and is released once it is sent
            await app.streams.carry(principal, lambda: _send_events(request, first.pop(), events, frames))
            return None

        async def unless_gone(work: Coroutine[Any, Any, Task]) -> Task:
            stream = OpenStream(principal)
            try:
                return await app.streams.carry(principal, lambda: request.unless_gone(work), stream=stream)
            except ConnectionResetError:
                if stream.revoked:
                    raise invalid_credential() from None
                raise

        result = await serving.result(operation, sent.params, unless_gone=unless_gone)
        if room.held is None:
            return Response(rpc.result_body(sent.id, result))
        async with app.large.making:
            answer = Response(await asyncio.to_thread(rpc.result_body, sent.id, result))
        del result
        room.held.resize(len(answer.body))
        await app.large.send(request, answer, room.held)
        return None
    finally:
        room.free()


def _version(request: Request) -> str:
    """Returns the requested version, without its patch number; empty if there is none."""
    asked = request.header(b"a2a-version") or request.query_value(_VERSION) or ""
    return ".".join(asked.strip().split(".")[:2])


def _wants_events(request: Request) -> bool:
    # Some callers send two such headers, the first of which accepts anything.
    return any("text/event-stream" in value.lower() for value in request.header_lines(b"accept"))


def _unknown_version(asked: str) -> RpcError:
    message = f"A2A {asked[:40]} is not supported; use {' or '.join(cards.VERSIONS)}."
    return RpcError(rpc.VERSION_NOT_SUPPORTED, message)


def _not_json(request: Request, dialect: Dialect) -> RpcError | None:
    """Returns the error for an unreadable body that the caller declared as something other than JSON."""
    kind = (request.header(b"content-type") or "").partition(";")[0].strip().lower()
    if dialect is not _V1 or not kind or kind.endswith("json"):
        return None
    message = f"Incompatible content types: the body must be application/json, not {kind[:100]}."
    return RpcError(rpc.CONTENT_TYPE_NOT_SUPPORTED, message)


def _refusal(dialect: Dialect, identity: Any, error: RpcError) -> Response:
    return Response(rpc.error_body(identity, dialect.fault(error)), status=error.status)


class _Frames:
    """Sends the events of a stream. A large one needs room, and the client must read it in time."""

    def __init__(self, large: LargeResponses, room: RequestRoom, request: Request, identity: Any) -> None:
        self._large = large
        self._room = room
        self._send = request.send
        self._identity = identity

    async def send(self, events: Sequence[Any]) -> None:
        try:
            if not events:
                await self._send(_chunk(KEEP_ALIVE))
            for event in events:
                await self._one(event)
        finally:
            self._room.free()

    async def _one(self, event: Any) -> None:
        if self._room.held is None:
            data = self._frame(event)
        else:
            async with self._large.making:
                data = await asyncio.to_thread(self._frame, event)
        if len(data) <= LARGE_BYTES:
            await self._send(_chunk(data))
            return
        if self._room.held is None:
            await self._room.need(len(data))
        else:
            self._room.held.resize(len(data))
        await self._large.send_frame(self._send, data)

    def _frame(self, event: Any) -> bytes:
        return _event(rpc.result_body(self._identity, event))


async def _send_events(
    request: Request, first: Sequence[Any], events: AsyncGenerator[Sequence[Any]], frames: _Frames
) -> None:
    headers = [*HEADERS, (b"x-request-id", request.about.id.encode())]
    await request.send({"type": "http.response.start", "status": 200, "headers": headers})
    sending = asyncio.ensure_future(_send_all(request, first, events, frames))
    del first  # it may be large
    gone = asyncio.ensure_future(request.disconnected())
    try:
        await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    except WeftlineError:
        raise ConnectionResetError from None  # too late to explain
    finally:
        gone.cancel()
        sending.cancel()


async def _send_all(
    request: Request, first: Sequence[Any], events: AsyncGenerator[Sequence[Any]], frames: _Frames
) -> None:
    async with aclosing(events):
        await frames.send(first)
        del first
        async for some in events:
            await frames.send(some)
    await request.send({"type": "http.response.body", "body": b""})


def _event(body: bytes) -> bytes:
    return b"data: " + one_line(body) + b"\n\n"


def _chunk(data: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def card(app: App, request: Request, principal: Principal) -> Response:
    agent = await agents.use_by_slug(app.workspaces, principal, request.params["agentSlug"])
    make = cards.card_1 if _version(request) == _V1.version else cards.card
    return Response(encode(make(agent, url=_url(app, principal, agent))))


async def discovery(app: App, request: Request, principal: Principal) -> Response:
    rows = await agents.usable(app.workspaces, principal)
    return Response(encode(cards.AgentCards([cards.card(row, url=_url(app, principal, row)) for row in rows])))


def _url(app: App, principal: Principal, agent: AgentSummary) -> str:
    return f"{app.oauth.url}/api/a2a/{principal.slug}/agents/{agent.slug}"


ROUTES = (
    Route(
        "POST",
        _AGENT,
        call,
        scopes=_INVOKE,
        usages=_USAGES,
        narrowed="its agents",
        summary="Call an agent over A2A (JSON-RPC)",
        query=(_VERSION_QUERY,),
        headers=(_VERSION_HEADER,),
        body=_CALL,
        returns=rpc.RpcReply | EventStream,
        silent=True,
    ),
    *(
        Route(
            "GET",
            f"{_AGENT}/.well-known/{name}",
            card,
            scopes=("a2a:discovery",),
            usages=_USAGES,
            narrowed="its agents",
            summary="The agent's card",
            query=(_VERSION_QUERY,),
            headers=(_VERSION_HEADER,),
            returns=cards.AgentCard,
        )
        for name in ("agent-card.json", "agent.json")
    ),
    Route(
        "GET",
        DISCOVERY,
        discovery,
        scopes=("a2a:discovery",),
        usages=_USAGES,
        narrowed="its agents",
        summary="The cards of the agents that the credential may use",
        returns=cards.AgentCards,
    ),
)
