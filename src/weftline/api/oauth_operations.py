"""Administration of users, OAuth apps and grants by command."""

from __future__ import annotations

from typing import Any

from weftline.api.control import Operation
from weftline.api.schemas.oauth import CreatedOAuthApp, OAuthApp, OAuthGrant, app_json, created_app_json, grant_json
from weftline.api.schemas.users import User, user_json
from weftline.wire.errors import client_names
from weftline.workspace import apps, grants, users
from weftline.workspace.context import Workspaces


async def create_user(at: Workspaces, *, email: str, password: str, workspaces: list[str]) -> str:
    return await users.create_user(at, email=email, password=password, slugs=workspaces)


async def join_workspace(at: Workspaces, *, email: str, workspace: str) -> None:
    await users.join_workspace(at, email=email, slug=workspace)


async def leave_workspace(at: Workspaces, *, email: str, workspace: str) -> None:
    await users.leave_workspace(at, email=email, slug=workspace)


async def list_users(at: Workspaces, *, workspace: str | None = None) -> list[User]:
    return [user_json(one) for one in await users.list_users(at, slug=workspace)]


async def show_user(at: Workspaces, *, email: str) -> User:
    return user_json(await users.show_user(at, email=email))


async def create_app(at: Workspaces, *, workspace: str, **fields: Any) -> CreatedOAuthApp:
    with client_names():
        new = apps.checked_app(**fields, schemes=at.redirect_schemes)
    app, secret = await apps.register_app(at, new, slug=workspace)
    return created_app_json(app, secret)


async def list_apps(at: Workspaces, *, workspace: str) -> list[OAuthApp]:
    return [app_json(one) for one in await apps.list_apps(at, slug=workspace)]


async def list_registered(at: Workspaces) -> list[OAuthApp]:
    return [app_json(one) for one in await apps.list_registered(at)]


async def show_app(at: Workspaces, *, client_id: str) -> OAuthApp:
    return app_json(await apps.show_app(at, client_id=client_id))


async def delete_app(at: Workspaces, *, client_id: str) -> OAuthApp:
    return app_json(await apps.delete_app(at, client_id=client_id))


async def list_grants(at: Workspaces, *, email: str) -> list[OAuthGrant]:
    return [grant_json(one) for one in await grants.list_grants(at, email=email)]


OPERATIONS: dict[str, Operation] = {
    "users.create": create_user,
    "users.list": list_users,
    "users.show": show_user,
    "users.join": join_workspace,
    "users.leave": leave_workspace,
    "users.set_password": users.set_password,
    "users.delete": users.delete_user,
    "oauth.apps.create": create_app,
    "oauth.apps.list": list_apps,
    "oauth.apps.registered": list_registered,
    "oauth.apps.show": show_app,
    "oauth.apps.delete": delete_app,
    "oauth.grants.list": list_grants,
    "oauth.grants.delete": grants.delete_grant,
}
