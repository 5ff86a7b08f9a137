"""Who is behind a name in a log: the keys and apps that somebody makes over the API count as that somebody.

Without this, the holder of one key could be two people: he makes a second key, and approves with it what he requested
with the first.
"""

from __future__ import annotations

from collections.abc import Iterable

from weftline.store.records import apps, keys, users
from weftline.workspace.context import Workspaces


async def person_of(at: Workspaces, name: str) -> str | None:
    """The name that stands for the person: that of who made the key or the app, and of who made that.

    None if it is not known any more. Keys that an operator made by command, and users, stand for themselves.
    """
    kind, _, id = name.partition(":")
    match kind:
        case "key":
            key = await at.records.read(keys.by_id(id))
            return None if key is None or key.damaged else key.made_by or name
        case "app":
            app = await at.records.read(apps.by_client_id(id))
            return None if app is None else app.made_by or name
        case _:
            return name


async def display_names(at: Workspaces, names: Iterable[str]) -> dict[str, str]:
    """What people know these names by: the name of the key or the app, the user's address.

    Names of which nothing is known any more, or that stand for no credential, are left out.
    """
    found: dict[str, str] = {}
    for name in set(names):
        kind, _, id = name.partition(":")
        match kind:
            case "key":
                key = await at.records.read(keys.by_id(id))
                text = "" if key is None or key.damaged else key.name
            case "app":
                app = await at.records.read(apps.by_client_id(id))
                text = "" if app is None else app.name
            case "user":
                user = await at.records.read(users.by_id(id))
                text = "" if user is None else user.email
            case _:
                text = ""
        if text:
            found[name] = text
    return found


async def maker(at: Workspaces, name: str) -> str:
    """What is stored with what somebody makes. It is the person: a key or an app in between may be deleted."""
    return (await person_of(at, name)) or name
