"""Who is behind a name in a log: keys and apps that somebody creates over the API count as that person.

Without this, the holder of one key could act as two people: create a second key, and approve with it what was requested
with the first.
"""

from __future__ import annotations

from collections.abc import Iterable

from weftline.store.records import apps, keys, users
from weftline.workspace.context import Workspaces


async def person_of(at: Workspaces, name: str) -> str | None:
    """The name of the person behind a name: for a key or an app, whoever created it over the API.

    None if that is no longer known. Users, and keys that an operator created with a command, stand for themselves.
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
    """The display names of these names: the name of the key or the app, or the user's address.

    Names that are no longer known, or that are not credentials, are left out.
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
    """The name stored as the creator of something. It is the person, because a key or an app in between may be
    deleted.
    """
    return (await person_of(at, name)) or name
