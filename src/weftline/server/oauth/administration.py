"""Administration of users, OAuth apps and grants by command: the use cases, with JSON for values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from msgspec import to_builtins

from weftline.server.schemas.oauth import app_json, created_app_json, grant_json
from weftline.server.schemas.users import user_json
from weftline.workspace import apps, grants, users
from weftline.workspace.context import Workspaces

UseCase: TypeAlias = Callable[..., Awaitable[Any]]
"""Called with the `Workspaces` and the command's own arguments; returns JSON's own types."""


async def create_user(context: Workspaces, *, email: str, password: str, workspaces: list[str]) -> Any:
    return await users.create_user(context, email=email, password=password, slugs=workspaces)


async def join_workspace(context: Workspaces, *, email: str, workspace: str) -> None:
    await users.join_workspace(context, email=email, slug=workspace)


async def leave_workspace(context: Workspaces, *, email: str, workspace: str) -> None:
    await users.leave_workspace(context, email=email, slug=workspace)


async def list_users(context: Workspaces, *, workspace: str | None = None) -> Any:
    return to_builtins([user_json(one) for one in await users.list_users(context, slug=workspace)])


async def show_user(context: Workspaces, *, email: str) -> Any:
    return to_builtins(user_json(await users.show_user(context, email=email)))


async def create_app(context: Workspaces, *, workspace: str, **fields: Any) -> Any:
    app, secret = await apps.register_app(context, apps.checked_app(**fields), slug=workspace)
    return to_builtins(created_app_json(app, secret))


async def list_apps(context: Workspaces, *, workspace: str) -> Any:
    return to_builtins([app_json(one) for one in await apps.list_apps(context, slug=workspace)])


async def show_app(context: Workspaces, *, client_id: str) -> Any:
    return to_builtins(app_json(await apps.show_app(context, client_id=client_id)))


async def delete_app(context: Workspaces, *, client_id: str) -> Any:
    return to_builtins(app_json(await apps.delete_app(context, client_id=client_id)))


async def list_grants(context: Workspaces, *, email: str) -> Any:
    return to_builtins([grant_json(one) for one in await grants.list_grants(context, email=email)])


OPERATIONS: dict[str, UseCase] = {
    "users.create": create_user,
    "users.list": list_users,
    "users.show": show_user,
    "users.join": join_workspace,
    "users.leave": leave_workspace,
    "users.set_password": users.set_password,
    "users.delete": users.delete_user,
    "oauth.apps.create": create_app,
    "oauth.apps.list": list_apps,
    "oauth.apps.show": show_app,
    "oauth.apps.delete": delete_app,
    "oauth.grants.list": list_grants,
    "oauth.grants.delete": grants.delete_grant,
}
