"""API keys. A key itself is shown once, when it is created, and stored nowhere."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weftline.api.principal import Principal
from weftline.cases.base import Host, Page, Sent
from weftline.errors import InvalidRequest, Issue, NotFound, invalid, invalid_field
from weftline.store.database import Query
from weftline.store.records import agents, keys
from weftline.store.records.keys import ApiKey
from weftline.wire.errors import client_names, error_code
from weftline.wire.responses import Time, iso, iso_or_none
from weftline.workspace.code_agents import CodeAgents
from weftline.workspace.context import Change, Workspaces
from weftline.workspace.people import maker
from weftline.workspace.scopes import checked_agents
from weftline.workspace.workspaces import ensured

PREFIX = "weft_"
USAGES = ("developer_api", "mcp", "a2a")
MAX_NAME_CHARS = 256
_VISIBLE_CHARS = len(PREFIX) + 4
_ACCESS_TOKEN = "mantyx_at_"


class NewKey(Struct, rename="camel"):
    """The body that creates a key."""

    name: str | None = None
    usage: str | None = None
    agent_ids: list[str] | None = None


class Key(Struct, rename="camel"):
    id: str
    workspace: str
    name: str
    prefix: str
    usage: str
    agent_ids: tuple[str, ...]
    created_at: Time
    revoked_at: Time | None
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable, so that it does not work; left out otherwise."""


class CreatedKey(Key, rename="camel", kw_only=True):
    key: str


class Keys(Struct, rename="camel"):
    keys: list[Key]
    next_cursor: str | None


class Added(NamedTuple):
    key: ApiKey
    secret: str
    """Shown only once; it is not stored."""


async def create(on: Host, by: Principal, sent: Sent[NewKey]) -> CreatedKey:
    fields = (await sent.read()).fields
    if fields.agent_ids is not None and not fields.agent_ids:
        # Somebody who computes the list and finds no agents must not get a key for all of them.
        raise InvalidRequest("agentIds: must name an agent. Leave it out for a key that may use all agents.")
    with client_names():
        key, secret = await add(
            on.workspaces,
            by.slug,
            name=fields.name or "",
            usage=fields.usage or "developer_api",
            agents=fields.agent_ids or (),
            agents_exist=not by.operator,
            made_by="" if by.operator else by.who,
        )
    return CreatedKey(*_fields(key), key=secret)


async def index(
    on: Host, by: Principal, page: Page, *, revoked: Annotated[bool, "`true`: revoked keys too."] = False
) -> Keys:
    """Lists the keys, oldest first."""
    query = keys.page(workspace=by.workspace, after=page.after, limit=page.limit, revoked=revoked)
    found = await on.workspaces.records.read(query, heavy=True)
    return Keys([shown(key) for key in found.rows], page.next_cursor(found))


async def read(on: Host, by: Principal, key_id: str) -> Key:
    return shown(await find(on.workspaces, key_id, workspace=by.workspace))


async def revoke(on: Host, by: Principal, key_id: str) -> None:
    await remove(on.workspaces, key_id, workspace=by.workspace)


def hash_secret(secret: str) -> bytes:
    """Keys are long and random, so a plain hash is enough to find and protect them."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


async def has_credentials(at: Workspaces) -> bool:
    """Returns True if this store has a credential that works, or an OAuth app that could get one."""
    return await at.records.read(keys.has_credentials())


async def add(
    at: Workspaces,
    slug: str,
    *,
    name: str = "",
    usage: str = "developer_api",
    agents: Sequence[str] = (),
    agents_exist: bool = False,
    made_by: str = "",
) -> Added:
    """Creates a key, and its workspace if that is new. `agents` restricts the key to these agents, by id or slug.

    `made_by` is who requested it over the API, by the name used in logs; empty for an operator's keys.

    With `agents_exist`, an agent that the workspace does not have is rejected. A command does not know the agents that
    are defined in the server's code, and accepts any.
    """
    if usage not in USAGES:
        raise invalid_field("usage", f"{usage!r} is not a usage; use one of {', '.join(USAGES)}.")
    if len(name) > MAX_NAME_CHARS:
        raise invalid_field("name", f"must have at most {MAX_NAME_CHARS} characters.")
    secret = PREFIX + secrets.token_urlsafe(32)
    new = keys.NewKey(
        id=_new_id(),
        hash=hash_secret(secret),
        prefix=secret[:_VISIBLE_CHARS],
        name=name,
        usage=usage,
        agents=tuple(checked_agents(agents)),
        made_by=await maker(at, made_by),
    )
    return Added(
        await at.records.write(_insert(new, slug, code=at.code, now=at.clock.now_us(), agents_exist=agents_exist)),
        secret,
    )


async def import_key(at: Workspaces, slug: str, secret: str, *, name: str = "") -> ApiKey:
    """Imports a key that clients already hold. Its length is its only protection."""
    if not 20 <= len(secret) <= 512 or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise invalid_field("secret", "must have 20 to 512 printable ASCII characters without spaces.")
    if secret.startswith(_ACCESS_TOKEN):
        raise invalid_field("secret", f"the prefix {_ACCESS_TOKEN} is for OAuth access tokens.")
    new = keys.NewKey(
        id=_new_id(), hash=hash_secret(secret), prefix=secret[:8], name=name, usage="developer_api", agents=()
    )
    return await at.records.write(_insert(new, slug, code=at.code, now=at.clock.now_us()))


async def by_secret_hash(at: Workspaces, hash: bytes) -> ApiKey | None:
    """The key whose secret has this hash, revoked or not."""
    return await at.records.read(keys.by_hash(hash))


async def find(at: Workspaces, id: str, *, workspace: int | None = None) -> ApiKey:
    """Raises `NotFound`, including for a key of another workspace if one is given."""
    return await at.records.read(_existing(id, workspace=workspace))


async def remove(at: Workspaces, id: str, *, workspace: int | None = None) -> ApiKey:
    """Revokes a key for good; revoking it again changes nothing."""

    def query() -> Query[ApiKey]:
        yield from _existing(id, workspace=workspace)
        yield from keys.revoke(id, now=at.clock.now_us())
        return (yield from _existing(id))

    revoked = await at.records.write(query())
    await at.changed(Change("credentials", revoked.workspace))
    return revoked


def _new_id() -> str:
    return "key_" + secrets.token_hex(8)


def _insert(new: keys.NewKey, slug: str, *, code: CodeAgents, now: int, agents_exist: bool = False) -> Query[ApiKey]:
    workspace = yield from ensured(slug, now=now)
    ids = yield from _ids_of(new.agents, code, workspace=workspace, agents_exist=agents_exist)
    if not (yield from keys.insert(replace(new, agents=ids), workspace=workspace, now=now)):
        raise invalid_field("secret", "this store already has that key.")
    return (yield from _existing(new.id))


def _ids_of(names: Sequence[str], code: CodeAgents, *, workspace: int, agents_exist: bool) -> Query[tuple[str, ...]]:
    """Allow-lists hold ids, because a slug may later belong to another agent."""
    ids: dict[str, None] = {}
    issues: list[Issue] = []
    for name in names:
        known = code.id_of(name) or (yield from agents.id_by_slug(name, workspace=workspace))
        ids[known or name] = None
        if agents_exist and not known and (yield from agents.by_id(name, workspace=workspace)) is None:
            issues.append(Issue("agent_ids", f"there is no agent {name!r}"))
    if issues:
        raise invalid(issues)
    return tuple(ids)


def _existing(id: str, *, workspace: int | None = None) -> Query[ApiKey]:
    key = yield from keys.by_id(id)
    if key is None or workspace not in (None, key.workspace):
        raise NotFound("There is no such API key.")
    return key


def shown(key: ApiKey) -> Key:
    return Key(*_fields(key), error_code(key.damaged))


def _fields(key: ApiKey) -> tuple[str, str, str, str, str, tuple[str, ...], str, str | None]:
    return (
        key.id,
        key.slug,
        key.name,
        key.prefix,
        key.usage,
        key.agents,
        iso(key.created_at),
        iso_or_none(key.revoked_at),
    )
