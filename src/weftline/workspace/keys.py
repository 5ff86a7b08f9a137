"""API keys: created, imported, listed, revoked."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from weftline.errors import Issue, NotFound, invalid, invalid_field
from weftline.store.database import Query
from weftline.store.records import agents, keys
from weftline.store.records.keys import ApiKey, NewKey
from weftline.store.records.pages import RowPage
from weftline.workspace.code_agents import CodeAgents
from weftline.workspace.context import Change, Workspaces
from weftline.workspace.people import maker
from weftline.workspace.workspaces import ensured

PREFIX = "weft_"
USAGES = ("developer_api", "mcp", "a2a")
MAX_NAME_CHARS = 256
_VISIBLE_CHARS = len(PREFIX) + 4
_AGENT = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_AGENTS = 1000
_ACCESS_TOKEN = "mantyx_at_"


class CreatedKey(NamedTuple):
    key: ApiKey
    secret: str
    """Shown only once; it is not stored."""


def hash_secret(secret: str) -> bytes:
    """Keys are long and random, so a plain hash is enough to find and protect them."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


async def has_credentials(at: Workspaces) -> bool:
    """Returns True if this store has a credential that works, or an OAuth app that could get one."""
    return await at.records.read(keys.has_credentials())


async def create(
    at: Workspaces,
    slug: str,
    *,
    name: str = "",
    usage: str = "developer_api",
    agents: Sequence[str] = (),
    agents_exist: bool = False,
    made_by: str = "",
) -> CreatedKey:
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
    new = NewKey(
        id=_new_id(),
        hash=hash_secret(secret),
        prefix=secret[:_VISIBLE_CHARS],
        name=name,
        usage=usage,
        agents=tuple(checked_agents(agents)),
        made_by=await maker(at, made_by),
    )
    return CreatedKey(
        await at.records.write(_insert(new, slug, code=at.code, now=at.clock.now_us(), agents_exist=agents_exist)),
        secret,
    )


async def import_key(at: Workspaces, slug: str, secret: str, *, name: str = "") -> ApiKey:
    """Imports a key that clients already hold. Its length is its only protection."""
    if not 20 <= len(secret) <= 512 or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise invalid_field("secret", "must have 20 to 512 printable ASCII characters without spaces.")
    if secret.startswith(_ACCESS_TOKEN):
        raise invalid_field("secret", f"the prefix {_ACCESS_TOKEN} is for OAuth access tokens.")
    new = NewKey(id=_new_id(), hash=hash_secret(secret), prefix=secret[:8], name=name, usage="developer_api", agents=())
    return await at.records.write(_insert(new, slug, code=at.code, now=at.clock.now_us()))


async def by_secret_hash(at: Workspaces, hash: bytes) -> ApiKey | None:
    """The key whose secret has this hash, revoked or not."""
    return await at.records.read(keys.by_hash(hash))


async def find(at: Workspaces, id: str, *, workspace: int | None = None) -> ApiKey:
    """Raises `NotFound`, including for a key of another workspace if one is given."""
    return await at.records.read(_existing(id, workspace=workspace))


async def page(at: Workspaces, workspace: int, *, after: int = 0, limit: int, revoked: bool = False) -> RowPage[ApiKey]:
    """The next keys, oldest first: as many as fit. With `revoked`, including revoked ones."""
    query = keys.page(workspace=workspace, after=after, limit=limit, revoked=revoked)
    return await at.records.read(query, heavy=True)


async def revoke(at: Workspaces, id: str, *, workspace: int | None = None) -> ApiKey:
    """Revokes a key for good; revoking it again changes nothing."""

    def query() -> Query[ApiKey]:
        yield from _existing(id, workspace=workspace)
        yield from keys.revoke(id, now=at.clock.now_us())
        return (yield from _existing(id))

    revoked = await at.records.write(query())
    await at.changed(Change("credentials", revoked.workspace))
    return revoked


def checked_agents(agents: Sequence[str]) -> list[str]:
    """An allow-list without duplicates, in the order given."""
    listed = list(dict.fromkeys(agents))
    if len(listed) > _MAX_AGENTS:
        raise invalid_field("agents", f"at most {_MAX_AGENTS} can be listed.")
    for agent in listed:
        if not _AGENT.fullmatch(agent):
            raise invalid_field("agents", f"{agent[:200]!r} is not an agent id.")
    return listed


def _new_id() -> str:
    return "key_" + secrets.token_hex(8)


def _insert(new: NewKey, slug: str, *, code: CodeAgents, now: int, agents_exist: bool = False) -> Query[ApiKey]:
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
