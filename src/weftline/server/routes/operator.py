"""Routes that only the operator may use, over the store's own socket: users, features, logins, and the store as a
whole.

Over TCP these paths do not exist. Paths of files are read by the server, which has the files, and must be absolute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import encode

from weftline.api.schemas.oauth import OAuthApps, OAuthGrants, app_json, grant_json
from weftline.api.thread_imports import import_export
from weftline.api.upkeep import Trimmed, UnsupportedRun, shrink, trim, unsupported_runs
from weftline.cases import keys
from weftline.errors import InvalidRequest
from weftline.replay.importing import Imported
from weftline.replay.reading import read_export
from weftline.runtime.engine import Resumed
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.bodies import struct_body
from weftline.server.declared import QueryParameter
from weftline.server.http import Request, Response
from weftline.server.operators import PATHS
from weftline.server.router import Handler, Route
from weftline.store.base import owned
from weftline.store.rows import Copied
from weftline.tools.loader import LoadedTool
from weftline.tools.mcp.login import Login
from weftline.wire.responses import Ok, iso
from weftline.workspace import apps, grants, mcp_logins, users, workspaces
from weftline.workspace.workspaces import Feature

_BODY_BYTES = 1024 * 1024
_FEATURES: Mapping[str, Feature] = {"apiKeys": "api_keys", "oauthApps": "oauth_apps"}
"""The features of a workspace, by the names that operators use."""
_WORKSPACE = QueryParameter("workspace", str, "Of this workspace only.")
_URL = QueryParameter("url", str, "The MCP server's.")


# Workspaces


class Features(Struct):
    """Which kinds of credential a workspace accepts."""

    features: dict[str, bool]


class ImportedKey(Struct):
    secret: str
    name: str = ""


class McpLogin(Struct, frozen=True, rename="camel"):
    """A login, without its secrets."""

    url: str
    created_at: str
    renewed_at: str


class McpLogins(Struct):
    logins: list[McpLogin]


class Granted(Struct):
    """The grant of a login; null if there is none, or its server did not say."""

    scope: str | None


_CHANGED_FEATURES = struct_body(Features, limit_bytes=_BODY_BYTES)
_IMPORTED_KEY = struct_body(ImportedKey, limit_bytes=_BODY_BYTES)
_LOGIN = struct_body(Login, limit_bytes=_BODY_BYTES)


async def ensure_workspace(app: App, request: Request, principal: Principal) -> Response:
    slug = request.params["slug"]
    await workspaces.ensure(app.workspaces, slug)
    return _features(await workspaces.features(app.workspaces, slug))


async def read_workspace(app: App, request: Request, principal: Principal) -> Response:
    return _features(await workspaces.features(app.workspaces, request.params["slug"]))


async def switch_features(app: App, request: Request, principal: Principal) -> Response:
    sent, slug = await request.read(_CHANGED_FEATURES), request.params["slug"]
    for name in sent.features:
        if name not in _FEATURES:
            raise InvalidRequest(f"{name!r} is not a feature; the features are {' and '.join(_FEATURES)}.")
    for name, on in sent.features.items():
        await workspaces.set_feature(app.workspaces, slug, _FEATURES[name], on=on)
    return _features(await workspaces.features(app.workspaces, slug))


def _features(accepted: Mapping[Feature, bool]) -> Response:
    return Response(encode(Features({name: accepted[feature] for name, feature in _FEATURES.items()})))


async def import_key(app: App, request: Request, principal: Principal) -> Response:
    sent = await request.read(_IMPORTED_KEY)
    key = await keys.import_key(app.workspaces, request.params["slug"], sent.secret, name=sent.name)
    return Response(encode(keys.shown(key)), status=201)


async def list_logins(app: App, request: Request, principal: Principal) -> Response:
    found = await mcp_logins.list_logins(app.workspaces, slug=request.params["slug"])
    return Response(encode(McpLogins([McpLogin(one.url, iso(one.created_at), iso(one.updated_at)) for one in found])))


async def login_scope(app: App, request: Request, principal: Principal) -> Response:
    scope = await mcp_logins.scope(app.workspaces, url=_required(request, _URL), slug=request.params["slug"])
    return Response(encode(Granted(scope)))


async def save_login(app: App, request: Request, principal: Principal) -> Response:
    await mcp_logins.save(app.workspaces, await request.read(_LOGIN), slug=request.params["slug"])
    return Response(encode(Ok()))


async def delete_login(app: App, request: Request, principal: Principal) -> Response:
    await mcp_logins.delete(app.workspaces, url=_required(request, _URL), slug=request.params["slug"])
    return Response(encode(Ok()))


# People


class NewUser(Struct):
    email: str
    password: str
    """An argon2 hash."""
    workspaces: list[str]


class CreatedUser(Struct):
    id: str


class User(Struct, frozen=True, rename="camel"):
    id: str
    email: str
    workspaces: tuple[str, ...]
    created_at: str


class Users(Struct):
    users: list[User]


class NewPassword(Struct):
    password: str
    """An argon2 hash."""


_NEW_USER = struct_body(NewUser, limit_bytes=_BODY_BYTES)
_NEW_PASSWORD = struct_body(NewPassword, limit_bytes=_BODY_BYTES)


def _shown_user(profile: users.Profile) -> User:
    return User(profile.user.id, profile.user.email, profile.workspaces, iso(profile.user.created_at))


async def create_user(app: App, request: Request, principal: Principal) -> Response:
    sent = await request.read(_NEW_USER)
    made = await users.create_user(app.workspaces, email=sent.email, password=sent.password, slugs=sent.workspaces)
    return Response(encode(CreatedUser(made)), status=201)


async def list_users(app: App, request: Request, principal: Principal) -> Response:
    found = await users.list_users(app.workspaces, slug=request.query_value("workspace"))
    return Response(encode(Users([_shown_user(one) for one in found])))


async def read_user(app: App, request: Request, principal: Principal) -> Response:
    return Response(encode(_shown_user(await users.show_user(app.workspaces, email=request.params["email"]))))


async def set_password(app: App, request: Request, principal: Principal) -> Response:
    sent = await request.read(_NEW_PASSWORD)
    await users.set_password(app.workspaces, email=request.params["email"], password=sent.password)
    return Response(encode(Ok()))


async def delete_user(app: App, request: Request, principal: Principal) -> Response:
    await users.delete_user(app.workspaces, email=request.params["email"])
    return Response(encode(Ok()))


async def join_workspace(app: App, request: Request, principal: Principal) -> Response:
    await users.join_workspace(app.workspaces, email=request.params["email"], slug=request.params["slug"])
    return Response(encode(Ok()))


async def leave_workspace(app: App, request: Request, principal: Principal) -> Response:
    await users.leave_workspace(app.workspaces, email=request.params["email"], slug=request.params["slug"])
    return Response(encode(Ok()))


async def list_grants(app: App, request: Request, principal: Principal) -> Response:
    found = await grants.list_grants(app.workspaces, email=request.params["email"])
    return Response(encode(OAuthGrants([grant_json(one) for one in found])))


async def delete_grant(app: App, request: Request, principal: Principal) -> Response:
    await grants.delete_grant(app.workspaces, id=request.params["grantId"])
    return Response(encode(Ok()))


async def list_registered(app: App, request: Request, principal: Principal) -> Response:
    return Response(encode(OAuthApps([app_json(one) for one in await apps.list_registered(app.workspaces)])))


# The store


class Backup(Struct):
    to: str
    """The new directory."""


class Shrunk(Struct):
    bytes: int


class Trim(Struct):
    """Removes the logs of the next runs after the key `after` that ended before a time in microseconds."""

    before: int
    after: int = 0
    workspace: str | None = None


class Import(Struct):
    path: str
    workspace: str


class UnsupportedRuns(Struct):
    runs: list[UnsupportedRun]


class LoadedTools(Struct):
    """The tools that runs may name because this process has loaded them."""

    tools: list[LoadedTool]


_BACKUP = struct_body(Backup, limit_bytes=_BODY_BYTES)
_TRIM = struct_body(Trim, limit_bytes=_BODY_BYTES)
_IMPORT = struct_body(Import, limit_bytes=_BODY_BYTES)


async def back_up(app: App, request: Request, principal: Principal) -> Response:
    sent = await request.read(_BACKUP)
    return Response(encode(await owned(app.store).back_up(Path(sent.to))))


async def shrink_store(app: App, request: Request, principal: Principal) -> Response:
    return Response(encode(Shrunk(await shrink(owned(app.store)))))


async def resume_store(app: App, request: Request, principal: Principal) -> Response:
    return Response(encode(await app.engine.resume_all()))


async def trim_store(app: App, request: Request, principal: Principal) -> Response:
    sent = await request.read(_TRIM)
    trimmed = await trim(app.workspaces, app.engine, before=sent.before, after=sent.after, workspace=sent.workspace)
    return Response(encode(trimmed))


async def import_file(app: App, request: Request, principal: Principal) -> Response:
    sent = await request.read(_IMPORT)
    export = await asyncio.to_thread(read_export, Path(sent.path))
    workspace = await workspaces.ensure(app.workspaces, sent.workspace)
    done = await import_export(app.store.log, app.engine, app.workspaces, export, workspace=workspace)
    return Response(encode(done))


async def list_unsupported(app: App, request: Request, principal: Principal) -> Response:
    slug = request.query_value("workspace")
    return Response(encode(UnsupportedRuns(await unsupported_runs(app.workspaces, app.engine.stored, workspace=slug))))


async def list_tools(app: App, request: Request, principal: Principal) -> Response:
    return Response(encode(LoadedTools(app.own_tools())))


def _required(request: Request, parameter: QueryParameter) -> str:
    value = request.query_value(parameter.name)
    if value is None:
        raise InvalidRequest(f"{parameter.name}: is missing.")
    return value


def _route(method: str, path: str, handler: Handler, **more: Any) -> Route:
    return Route(method, f"{PATHS}{path}", handler, access="operator", limited=False, **more)


_ONE_WORKSPACE, _LOGINS = "workspaces/{slug}", "workspaces/{slug}/mcp-logins"
_ONE_USER, _MEMBER = "users/{email}", "users/{email}/workspaces/{slug}"
ROUTES = (
    _route("PUT", _ONE_WORKSPACE, ensure_workspace, summary="Create a workspace if it is new", returns=Features),
    _route("GET", _ONE_WORKSPACE, read_workspace, summary="Which credentials a workspace accepts", returns=Features),
    _route(
        "PATCH",
        _ONE_WORKSPACE,
        switch_features,
        summary="Change which credentials a workspace accepts",
        body=_CHANGED_FEATURES,
        returns=Features,
    ),
    _route(
        "POST",
        f"{_ONE_WORKSPACE}/imported-keys",
        import_key,
        summary="Add a key that clients already hold",
        body=_IMPORTED_KEY,
        returns=keys.Key,
        status=201,
    ),
    _route("GET", _LOGINS, list_logins, summary="List the logins at MCP servers", returns=McpLogins),
    _route("PUT", _LOGINS, save_login, summary="Store a login at an MCP server", body=_LOGIN, returns=Ok),
    _route("DELETE", _LOGINS, delete_login, summary="Delete a login at an MCP server", query=(_URL,), returns=Ok),
    _route("GET", f"{_LOGINS}/scope", login_scope, summary="What a login was granted", query=(_URL,), returns=Granted),
    _route("POST", "users", create_user, summary="Create a user", body=_NEW_USER, returns=CreatedUser, status=201),
    _route("GET", "users", list_users, summary="List the users", query=(_WORKSPACE,), returns=Users),
    _route("GET", _ONE_USER, read_user, summary="Read a user", returns=User),
    _route("PATCH", _ONE_USER, set_password, summary="Set a user's password", body=_NEW_PASSWORD, returns=Ok),
    _route("DELETE", _ONE_USER, delete_user, summary="Delete a user", returns=Ok),
    _route("PUT", _MEMBER, join_workspace, summary="Make a user a member of a workspace", returns=Ok),
    _route("DELETE", _MEMBER, leave_workspace, summary="Remove a user from a workspace", returns=Ok),
    _route("GET", f"{_ONE_USER}/grants", list_grants, summary="List a user's grants", returns=OAuthGrants),
    _route("DELETE", "grants/{grantId}", delete_grant, summary="End a grant with all its tokens", returns=Ok),
    _route(
        "GET", "registered-apps", list_registered, summary="List apps that registered themselves", returns=OAuthApps
    ),
    _route("POST", "store/backup", back_up, summary="Copy the store", body=_BACKUP, returns=Copied),
    _route("POST", "store/shrink", shrink_store, summary="Return unused space to the disk", returns=Shrunk),
    _route("POST", "store/resume", resume_store, summary="Let the runs of a restored store go on", returns=Resumed),
    _route("POST", "store/trim", trim_store, summary="Remove old logs", body=_TRIM, returns=Trimmed),
    _route("POST", "imports", import_file, summary="Add the runs of a file", body=_IMPORT, returns=Imported),
    _route(
        "GET",
        "unsupported-runs",
        list_unsupported,
        summary="List unfinished runs of a newer version",
        query=(_WORKSPACE,),
        returns=UnsupportedRuns,
    ),
    _route("GET", "tools", list_tools, summary="List the tools that this process has loaded", returns=LoadedTools),
)
