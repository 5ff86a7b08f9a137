"""The names that people know credentials by."""

from __future__ import annotations

from weftline.cases import keys
from weftline.workspace import users
from weftline.workspace.apps import checked_app, delete_app, register_app
from weftline.workspace.context import Workspaces
from weftline.workspace.people import display_names


async def test_name_in_log_is_shown_as_people_know_it(at: Workspaces, acme: int) -> None:
    key = (await keys.add(at, "acme", name="ci")).key
    nameless = (await keys.add(at, "acme")).key
    user = await users.create_user(at, email="Ann@example.com", password="a long password", slugs=["acme"])
    desk = checked_app(name="Desk", redirect_uris=["https://desk.example/cb"], scopes=["runs:read"])
    app, _ = await register_app(at, desk, slug="acme")
    logged = (f"key:{key.id}", f"user:{user}", f"app:{app.client_id}")
    others = (f"key:{nameless.id}", "key:gone", "user:gone", "app:gone", "hook:gate", "runtime", "")
    assert await display_names(at, logged + others) == {
        logged[0]: "ci",
        logged[1]: "ann@example.com",
        logged[2]: "Desk",
    }
    await keys.remove(at, key.id)
    await users.delete_user(at, email="ann@example.com")
    await delete_app(at, client_id=app.client_id)
    assert await display_names(at, logged) == {logged[0]: "ci"}
