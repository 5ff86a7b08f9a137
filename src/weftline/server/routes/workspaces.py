"""The workspaces of a credential, for callers that do not know the slug for the other paths."""

from __future__ import annotations

from msgspec import Struct
from msgspec.json import encode

from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.workspace import workspaces


class Workspace(Struct):
    slug: str


class WorkspaceList(Struct):
    """A credential belongs to exactly one; the operator has all of them."""

    workspaces: list[Workspace]


async def list_workspaces(app: App, request: Request, principal: Principal) -> Response:
    slugs = await workspaces.slugs(app.workspaces) if principal.operator else [principal.slug]
    return Response(encode(WorkspaceList([Workspace(slug) for slug in slugs])))


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
