"""People who sign in to give OAuth apps access to their workspaces."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from msgspec import Struct

from weftline.errors import Conflict, InvalidRequest, NotFound
from weftline.store.database import Query
from weftline.store.records import grants, users
from weftline.store.records.users import User
from weftline.workspace.context import Change, Workspaces
from weftline.workspace.passwords import PasswordChecker
from weftline.workspace.workspaces import ensured, existing

SESSION = "weft_us_"
SESSION_S = 12 * 3600
_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,190}")


class Profile(Struct, frozen=True):
    """A user and the slugs of the workspaces they belong to."""

    user: User
    workspaces: tuple[str, ...]


async def create_user(at: Workspaces, *, email: str, password: str, slugs: Sequence[str]) -> str:
    """Creates a user and returns the id. `password` is an argon2 hash; workspaces that are new are created."""
    address = normalized(email)
    if not _EMAIL.fullmatch(address):
        raise InvalidRequest(f"{email[:200]!r} is not an e-mail address.")
    now = at.clock.now_us()
    id = f"usr_{secrets.token_hex(8)}"

    def query() -> Query[str]:
        user = yield from users.insert(id=id, email=address, password=password, now=now)
        if user is None:
            raise Conflict(f"There is already a user {address!r}.")
        for slug in slugs:
            yield from users.join(user, (yield from ensured(slug, now=now)))
        return id

    return await at.records.write(query())


async def join_workspace(at: Workspaces, *, email: str, slug: str) -> None:
    """Makes a user a member of a workspace, which is created if it does not exist."""

    def query() -> Query[None]:
        user = yield from _existing(email)
        yield from users.join(user.key, (yield from ensured(slug, now=at.clock.now_us())))

    await at.records.write(query())


async def leave_workspace(at: Workspaces, *, email: str, slug: str) -> None:
    """Removes a user from a workspace and ends what they allowed apps to do there."""

    def query() -> Query[None]:
        user = yield from _existing(email)
        workspace = yield from existing(slug)
        yield from users.leave(user.key, workspace)
        yield from grants.end_grants_of(user.key, workspace=workspace)

    await at.records.write(query())
    await at.changed(Change("credentials"))


async def set_password(at: Workspaces, *, email: str, password: str) -> None:
    """Replaces the password, given as an argon2 hash, and signs the user out everywhere."""

    def query() -> Query[None]:
        user = yield from _existing(email)
        yield from users.set_password(user.key, password)
        yield from users.end_sessions(user.key)

    await at.records.write(query())


async def delete_user(at: Workspaces, *, email: str) -> None:
    """Deletes a user with all sessions, grants and tokens."""

    def query() -> Query[None]:
        user = yield from _existing(email)
        yield from grants.end_grants_of(user.key)
        yield from users.delete(user.key)

    await at.records.write(query())
    await at.changed(Change("credentials"))


async def show_user(at: Workspaces, *, email: str) -> Profile:
    def query() -> Query[Profile]:
        return (yield from _profile((yield from _existing(email))))

    return await at.records.read(query())


async def list_users(at: Workspaces, *, slug: str | None = None) -> list[Profile]:
    """All users by address, or the members of one workspace."""

    def query() -> Query[list[Profile]]:
        found = yield from users.all_users() if slug is None else users.of_workspace(slug)
        profiles: list[Profile] = []
        for user in found:
            profile = yield from _profile(user)
            profiles.append(profile)
        return profiles

    return await at.records.read(query(), heavy=True)


# Sessions


async def sign_in(
    at: Workspaces, passwords: PasswordChecker, *, email: str, password: str, sender: str = ""
) -> str | None:
    """Checks a password and starts a session; returns its secret, or None if the address or the password is wrong.

    An unknown address takes as long as a wrong password. Raises what `PasswordChecker.check` does.
    """
    user = await at.records.read(users.by_email(normalized(email)))
    stored = None if user is None else user.password
    if not await passwords.check(stored, password, sender=sender) or user is None:
        return None
    session = at.hasher.mint(SESSION)
    now = at.clock.now_us()
    await at.records.write(
        users.start_session(user.key, secret=session.stored, now=now, expires_at=now + SESSION_S * 1_000_000)
    )
    return session.secret


async def signed_in(at: Workspaces, *, session: str) -> User | None:
    """The user of a session that has not expired."""
    stored = at.hasher.stored(session, label=SESSION)
    return await at.records.read(users.by_session(stored, now=at.clock.now_us()))


async def sign_out(at: Workspaces, *, session: str) -> None:
    await at.records.write(users.end_session(at.hasher.stored(session, label=SESSION)))


async def workspace_name(at: Workspaces, workspace: int) -> str:
    return await at.records.read(users.workspace_name(workspace)) or ""


def normalized(email: str) -> str:
    """The address as it is stored and compared."""
    return email.strip().lower()


def _existing(email: str) -> Query[User]:
    user = yield from users.by_email(normalized(email))
    if user is None:
        raise NotFound(f"There is no user {email!r}.")
    return user


def _profile(user: User) -> Query[Profile]:
    memberships = yield from users.memberships(user.key)
    return Profile(user, tuple(one.slug for one in memberships))
