"""A workspace's agents as an MCP server."""

from __future__ import annotations

from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.declared import Body, OtherProtocol
from weftline.server.http import Request
from weftline.server.router import Route

PATH = "/api/mcp/{slug}"
_MESSAGE = Body[bytes](OtherProtocol, limit_bytes=4 * 1024 * 1024)


async def answer(app: App, request: Request, principal: Principal) -> None:
    app.names.check(request)
    await app.mcp.answer(request, principal)


ROUTES = tuple(
    Route(
        method,
        PATH,
        answer,
        scopes=("mcp:connect",),
        usages=("mcp", "developer_api"),
        narrowed="its agents",
        has_metadata=True,
        limited=method == "POST",
        summary=summary,
        body=_MESSAGE if method == "POST" else None,
        returns=OtherProtocol,
    )
    for method, summary in (
        ("POST", "Send an MCP message"),
        ("GET", "Listen for messages of an MCP session"),
        ("DELETE", "End an MCP session"),
    )
)
