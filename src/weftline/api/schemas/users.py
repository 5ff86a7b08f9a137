"""Users as JSON, for administrators."""

from __future__ import annotations

from msgspec import Struct

from weftline.wire.responses import iso
from weftline.workspace.users import Profile


class User(Struct, frozen=True, rename="camel"):
    id: str
    email: str
    workspaces: tuple[str, ...]
    created_at: str


def user_json(profile: Profile) -> User:
    return User(profile.user.id, profile.user.email, profile.workspaces, iso(profile.user.created_at))
