"""A workspace's agents as the tools of an MCP server, over Streamable HTTP.

The official `mcp` package implements the protocol; it is imported on the first request. One server object serves all
workspaces: the credential of each request determines whose agents it lists and calls.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct, ValidationError, convert

from weftline._version import __version__
from weftline.api import following
from weftline.api.cancelling import cancel_run
from weftline.api.creating import Host, start_agent
from weftline.api.following import EventKind
from weftline.api.principal import Principal
from weftline.api.views import run_summary
from weftline.errors import Forbidden, InvalidRequest, NotFound, RateLimited, Unavailable, WeftlineError
from weftline.runtime.engine import Follower, StreamPlace
from weftline.server.http import NO_SNIFFING, Receive, Request
from weftline.server.large import LARGE_BYTES, LargeResponses, RequestRoom
from weftline.server.open_streams import OpenStream, OpenStreams
from weftline.server.request_log import RefusedRequests
from weftline.store.rows import LargeEntry, RunRow
from weftline.text.json_size import excess
from weftline.trace_context import current_request, incoming_traceparent
from weftline.wire.attachments import AttachmentRefused, TakenAttachment, take_content
from weftline.wire.limits import MAX_ATTACHMENTS
from weftline.wire.run_responses import TERMINAL, RunView
from weftline.wire.unknown_fields import Items, Shape, unknown_fields, with_typos
from weftline.wire.validation import json_words
from weftline.workspace import agents
from weftline.workspace.agents import UnattendedAgents

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams


_MAX_PROBLEMS = 5
_EXCERPT_CHARS = 100
INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "The whole task, in one message."},
        "attachments": {
            "type": "array",
            "description": "Images (PNG, JPEG, GIF, WebP), PDF and text files that belong to the task.",
            "maxItems": MAX_ATTACHMENTS,
            "items": {
                "type": "object",
                "properties": {
                    "data": {"type": "string", "description": "The content in base64."},
                    "mediaType": {"type": "string"},
                    "name": {"type": "string"},
                },
                "required": ["data"],
            },
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}


_SHAPE = Shape(
    frozenset(INPUT["properties"]),
    {"attachments": Items(Shape(frozenset(INPUT["properties"]["attachments"]["items"]["properties"])))},
)
"""To tell which arguments are misspelt."""


def explained(refusal: str, arguments: dict[str, Any] | None) -> str:
    """Returns the refusal, with the arguments that look misspelt."""
    return with_typos(InvalidRequest(refusal), unknown_fields(arguments or {}, _SHAPE)).message


class _Attachment(Struct, rename="camel"):
    data: str | None = None
    media_type: str | None = None
    name: str | None = None
    url: str | None = None


class McpInput(NamedTuple):
    message: str
    attachments: Sequence[TakenAttachment]


async def read_input(given: Mapping[str, Any]) -> McpInput:
    """Reads the input. Raises `InvalidRequest` with everything that the caller should correct."""
    problems = [f"{name[:_EXCERPT_CHARS]}: is not an argument." for name in given if name not in INPUT["properties"]]
    message = given.get("message")
    if not isinstance(message, str) or not message.strip():
        problems.insert(0, "message: must be a non-empty string.")
    if problems:
        raise InvalidRequest(" ".join(problems[:_MAX_PROBLEMS]))
    assert isinstance(message, str)
    return McpInput(message, await _read_attachments(given.get("attachments")))


async def _read_attachments(given: object) -> list[TakenAttachment]:
    """Reads the attachments. Raises `InvalidRequest` for invalid ones."""
    try:
        sent = convert(given or [], list[_Attachment])
    except ValidationError as error:
        raise InvalidRequest(f"attachments: {json_words(error)}") from None
    if len(sent) > MAX_ATTACHMENTS:
        raise InvalidRequest(f"attachments: at most {MAX_ATTACHMENTS} are accepted.")
    return [await asyncio.to_thread(_taken, f"attachments[{index}]", one) for index, one in enumerate(sent)]


def _taken(path: str, sent: _Attachment) -> TakenAttachment:
    if sent.data is None and sent.url is None:
        raise InvalidRequest(f"{path}.data: is missing.")
    if sent.data is None or sent.url is not None:
        raise InvalidRequest(f"{path}: files given by an address are not fetched; give the content as `data`.")
    try:
        return take_content(sent.data, media_type=sent.media_type, name=sent.name)
    except AttachmentRefused as refused:
        raise InvalidRequest(f"{path}.{refused.field}: {refused.message}.") from None


_PRINCIPAL = "weftline.principal"
_ROOM = "weftline.room"
_ABOUT = "weftline.about"
_STREAM = "weftline.stream"
_MAX_LISTED_TOOLS = 5
_ARGUMENT_ERRORS_IN_RESULTS = "2025-11-25"
"""From this revision on, invalid arguments are reported in a result (SEP-1303) rather than as a protocol error."""
SESSION_IDLE_S = 1800.0
"""How long a session lives without requests."""
MAX_SESSIONS_PER_WORKSPACE = 500
_CLOSE_NOTICE_S = 1.0
"""How long `close` waits until callers are told that their calls end."""


class McpHost(Host, Protocol):
    """The server, as this module needs it."""

    @property
    def large(self) -> LargeResponses: ...
    @property
    def refused(self) -> RefusedRequests: ...
    @property
    def streams(self) -> OpenStreams: ...


class HostedMcp:
    """Answers MCP requests of authenticated callers. `close` ends the sessions but not their runs."""

    def __init__(self, app: McpHost) -> None:
        self._app = app
        self._unattended = UnattendedAgents(app.workspaces)
        self._opening = asyncio.Lock()
        self._managers: dict[int, StreamableHTTPSessionManager] = {}
        """By workspace, so that the sessions of one do not crowd out the others."""
        self._tasks: list[asyncio.Task[None]] = []
        self._answering: set[asyncio.Task[Any]] = set()
        """The tasks of requests that get an answer, unlike streams that only listen."""
        self._followers: set[Follower] = set()
        """The followers of runs whose calls are in progress."""
        self._closing = False
        self._stop = asyncio.Event()

    async def answer(self, request: Request, principal: Principal) -> None:
        """Handles one request; the package sends the response itself. Raises `Unavailable` once this is closing."""
        self._check_open()
        manager = self._managers.get(principal.workspace) or await self._open(principal.workspace)
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken

        # The package binds a session to the caller that opened it; it does not exist for others.
        user = AuthenticatedUser(AccessToken(token="", client_id=principal.id, scopes=[]))
        room = RequestRoom(self._app.large, principal.slug)
        stream = OpenStream(principal)
        # Events are not stored for resuming, so a client that asks for missed events listens from now on.
        headers = [header for header in request.scope["headers"] if header[0] != b"last-event-id"]
        scope = {
            **request.scope,
            "headers": headers,
            "user": user,
            _PRINCIPAL: principal,
            _ROOM: room,
            _ABOUT: request.about,
            _STREAM: stream,
        }
        receive = await _checked(request) if request.method == "POST" else request.receive
        # A stream that only listens stays open as long as the client likes.
        place = self._app.engine.reserve_stream(principal.workspace) if request.method == "GET" else None
        sending = _Sending(self._app, room, request)
        task = asyncio.current_task()
        assert task is not None

        async def handle() -> None:
            self._check_open()
            if place is None:
                self._answering.add(task)
            await manager.handle_request(scope, receive, sending.send)

        try:
            await self._app.streams.carry(principal, handle, stream=stream)
            if not sending.started:
                raise WeftlineError("The MCP package left this request without an answer.")
        except ExceptionGroup as group:
            # The package wraps the exception that `send` raises when the client is too slow.
            if group.split(ConnectionResetError)[1] is not None:
                raise
            raise ConnectionResetError from None
        finally:
            self._answering.discard(task)
            room.free()
            if place is not None:
                place.release()

    async def close(self) -> None:
        self._closing = True
        for follower in self._followers:
            follower.leave()
        if self._answering:
            # Without an error, a caller of an older revision would wait for an answer until its own timeout.
            await asyncio.wait(self._answering, timeout=_CLOSE_NOTICE_S)
        self._stop.set()
        await asyncio.gather(*self._tasks)

    def _check_open(self) -> None:
        if self._closing:
            raise Unavailable("The server is stopping.", retry_after_s=1)

    async def _open(self, workspace: int) -> StreamableHTTPSessionManager:
        async with self._opening:
            if (manager := self._managers.get(workspace)) is not None:
                return manager
            self._check_open()
            if importlib.util.find_spec("mcp") is None:
                raise Unavailable(
                    "This server has no MCP support.",
                    hint="Install it with the extra `mcp`: pip install '.[mcp]' in a checkout of Weftline.",
                )
            await asyncio.to_thread(_load)
            from mcp.server.lowlevel.server import Server
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

            server: Server[Any] = Server(
                "weftline", version=__version__, on_list_tools=self._list, on_call_tool=self._call
            )
            manager = StreamableHTTPSessionManager(
                server, session_idle_timeout=SESSION_IDLE_S, max_sessions=MAX_SESSIONS_PER_WORKSPACE
            )
            opened = asyncio.Event()
            self._tasks.append(asyncio.create_task(self._run(manager, opened)))
            await opened.wait()
            self._managers[workspace] = manager
            return manager

    async def _run(self, manager: StreamableHTTPSessionManager, opened: asyncio.Event) -> None:
        async with manager.run():
            opened.set()
            await self._stop.wait()

    async def _list(self, context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        from mcp_types import ListToolsResult, Tool

        return ListToolsResult(
            tools=[
                Tool(name=row.slug, title=row.name, description=row.description or row.name, input_schema=INPUT)
                for row in await self._unattended.usable(_principal(context))
            ]
        )

    async def _call(self, context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, CallToolResult, TextContent

        principal = _principal(context)
        assert context.request is not None
        current_request.set(context.request.scope[_ABOUT])  # the package calls this in another task
        incoming_traceparent.set(context.request.headers.get("traceparent"))
        try:
            agent = await agents.use_by_slug(self._app.workspaces, principal, params.name)
        except (NotFound, Forbidden):
            agent = None
        if agent is None:
            raise MCPError(INVALID_PARAMS, f"There is no tool {params.name[:100]!r}.")
        if for_client := await self._unattended.client_side_tools(agent):
            # A call of such a tool would wait for a result that an MCP client cannot give.
            text = (
                f"{agent.slug} cannot be used over MCP: its tools {_listed(for_client)} are run by a client of the API."
            )
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        try:
            given = await read_input(params.arguments or {})
        except InvalidRequest as error:
            if context.protocol_version < _ARGUMENT_ERRORS_IN_RESULTS:
                raise MCPError(INVALID_PARAMS, explained(error.message, params.arguments)) from None
            # As a result, so that the model that made the call can correct itself.
            text = explained(error.message, params.arguments)
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        place: StreamPlace | None = None
        try:
            # Reserved before the run is created, as a run that cannot be followed must not begin.
            place = self._app.engine.reserve_stream(principal.workspace)
            run_id = await start_agent(
                self._app, agent, given.message, attachments=given.attachments, requested_by=principal.who
            )
            row = await self._app.engine.stored.find(run_id, workspace=principal.workspace)
            follower = place.follow(row.key, run_id)
        except BaseException as error:
            if place is not None:
                place.release()
            if not isinstance(error, WeftlineError):
                raise
            text = explained(error.message, params.arguments)
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        reported = 0
        self._followers.add(follower)
        if self._closing:
            follower.leave()
        try:
            async for event in following.run_events(follower):
                if event.kind is EventKind.TEXT:
                    reported += 1
                    await context.session.report_progress(reported, message=event.text)
        except asyncio.CancelledError:
            await self._cancel(row.key, _stream(context))
            raise
        finally:
            self._followers.discard(follower)
        after = await self._app.engine.stored.row(row.key)
        assert after is not None
        try:
            run = await self._ended(after, _room(context))
        except RateLimited as error:
            meta = {"weftline/runId": run_id}
            return CallToolResult(content=[TextContent(text=error.message)], is_error=True, _meta=meta)
        if run.status not in TERMINAL:
            raise MCPError(
                CONNECTION_CLOSED,
                f"The server is stopping. The run {run_id} continues when the server starts again; a new call starts"
                " a new run.",
                {"retryable": True, "weftline/runId": run_id},
            )
        text = run.final_text if run.status == "succeeded" else run.error or f"The run is {run.status}."
        return CallToolResult(
            content=[TextContent(text=text or "")],
            is_error=run.status != "succeeded",
            _meta={"weftline/runId": run.id, **(following.usage(run) or {})},
        )

    async def _ended(self, row: RunRow, room: RequestRoom) -> RunView:
        try:
            return await run_summary(self._app.engine.stored, row, max_bytes=LARGE_BYTES)
        except LargeEntry as large:
            await room.need(large.size)
            return await run_summary(self._app.engine.stored, row)

    async def _cancel(self, key: int, stream: OpenStream) -> None:
        """Cancels the run, if the caller cancelled the call.

        If the server is stopping, the run continues at its next start; if the credential was revoked, it simply
        continues.
        """
        import anyio

        if not self._closing and not stream.revoked:
            with anyio.CancelScope(shield=True):
                await cancel_run(self._app.engine, key, by=stream.principal.who)


class _Sending:
    """Sends the package's response. A large one needs room, and the client must read it in time."""

    def __init__(self, app: McpHost, room: RequestRoom, request: Request) -> None:
        self._large = app.large
        self._refused = app.refused
        self._room = room
        self._request = request
        self._send = request.send
        self.started = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            request = self._request
            own = (NO_SNIFFING, (b"x-request-id", request.about.id.encode()))
            message = {**message, "headers": [*message.get("headers", ()), *own]}
            if message["status"] >= 400:
                self._refused.note(
                    status=message["status"],
                    code="mcp",
                    method=request.method,
                    path=request.path,
                    workspace=request.about.workspace,
                )
        body: bytes = message.get("body", b"")
        if len(body) <= LARGE_BYTES:
            await self._send(message)
            return
        try:
            await self._room.need(len(body))
        except RateLimited:
            raise ConnectionResetError from None  # too late to explain
        await self._large.send_frame(self._send, body)
        self._room.free()
        if not message.get("more_body"):
            await self._send({"type": "http.response.body", "body": b""})


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(names[:_MAX_LISTED_TOOLS])
    return f"{text} and {len(names) - _MAX_LISTED_TOOLS} more" if len(names) > _MAX_LISTED_TOOLS else text


async def _checked(request: Request) -> Receive:
    """Returns a `receive` with the body for the package, if it does not have too many values."""
    body = await request.body()
    if too_much := excess(body):
        raise InvalidRequest(f"The body has {too_much}.")
    request.body_is_read()
    pieces = iter([body])

    async def receive() -> MutableMapping[str, Any]:
        piece = next(pieces, None)
        if piece is None:
            return await request.receive()
        return {"type": "http.request", "body": piece, "more_body": False}

    return receive


def _principal(context: ServerRequestContext[Any]) -> Principal:
    assert context.request is not None
    principal = context.request.scope[_PRINCIPAL]
    assert isinstance(principal, Principal)
    return principal


def _stream(context: ServerRequestContext[Any]) -> OpenStream:
    assert context.request is not None
    stream = context.request.scope[_STREAM]
    assert isinstance(stream, OpenStream)
    return stream


def _room(context: ServerRequestContext[Any]) -> RequestRoom:
    assert context.request is not None
    room = context.request.scope[_ROOM]
    assert isinstance(room, RequestRoom)
    return room


def _load() -> None:
    """Imports the package in a thread, as it takes most of a second."""
    importlib.import_module("mcp.server.lowlevel.server")
    importlib.import_module("mcp.server.auth.middleware.bearer_auth")
