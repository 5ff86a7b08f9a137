"""The workspaces of a credential, for callers that do not know the slug for the other paths."""

from __future__ import annotations

from msgspec import Struct
from msgspec.json import encode

from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request, Response
from weftline.server.router import Route


class Workspace(Struct):
    slug: str


class WorkspaceList(Struct):
    """A credential belongs to exactly one."""

    workspaces: list[Workspace]


async def list_workspaces(app: App, request: Request, principal: Principal) -> Response:
    return Response(encode(WorkspaceList([Workspace(principal.slug)])))


ROUTES = (
    Route(
        "GET",
        "/api/v1/workspaces",
        list_workspaces,
        scopes=("models:read",),
        narrowed="yes",
        summary="The workspace that the credential belongs to",
        returns=WorkspaceList,
    ),
)
