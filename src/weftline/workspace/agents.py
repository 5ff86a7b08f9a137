"""Stored agents, and who may see and use them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct
from msgspec.json import encode

from weftline.errors import (
    LOG_DAMAGED,
    Conflict,
    Forbidden,
    InvalidRequest,
    Issue,
    NotFound,
    StoreError,
    invalid,
    invalid_field,
)
from weftline.net.address import InvalidAddress, origin_of
from weftline.store.database import Query
from weftline.store.records import agents, prompt_overrides
from weftline.store.records.agents import AgentColumns, AgentRow, AgentSummary
from weftline.store.records.pages import RowPage
from weftline.store.records.prompt_overrides import PromptOverrideRow
from weftline.store.sealing import Headers
from weftline.text.redaction import REDACTED, SEALED_URL, redact_url
from weftline.workspace.code_agents import read_only
from weftline.workspace.context import Caller, Workspaces


def kept_secrets(
    headers: Headers, *, urls: Mapping[str, str], earlier: Headers, earlier_urls: Mapping[str, str]
) -> Headers:
    """The secrets of a new spec, with the earlier ones where it is redacted. `urls` are those of its tools, by name.

    Raises `InvalidRequest` for a mark without an earlier secret, or for a secret given for a different origin.
    """
    kept = {name: dict(values) for name, values in headers.items()}
    issues: list[Issue] = []
    for name, url in urls.items():
        old, own = earlier.get(name, {}), kept.get(name, {})
        if REDACTED in url:
            if redact_url(old.get(SEALED_URL, "")) == url:
                kept.setdefault(name, {})[SEALED_URL] = old[SEALED_URL]
            else:
                issues.append(Issue(f"spec.tools.{name}.url", "must be sent in full when it changes"))
        for header in [header for header, value in own.items() if value == REDACTED]:
            if header in old and _same_origin(earlier_urls.get(name, ""), url):
                own[header] = old[header]
            else:
                issues.append(
                    Issue(f"spec.tools.{name}.headers.{header}", "must be sent again when the tool's origin changes")
                )
    if issues:
        raise invalid(issues)
    return kept


def _same_origin(before: str, after: str) -> bool:
    try:
        return origin_of(before) == origin_of(after)
    except InvalidAddress:
        return False


_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_SLUG_BASE_CHARS = 48
MAX_PER_WORKSPACE = 1_000

DialledUrls: TypeAlias = Callable[[bytes], Mapping[str, str]]
"""Reads the addresses of the tools that the server calls, by tool name, from an agent's spec."""


class AgentDraft(Struct, frozen=True, kw_only=True):
    """A definition to store."""

    name: str
    slug: str = ""
    """Its name in URLs. If empty, made from the name, or kept when an agent is replaced."""
    description: str = ""
    spec: bytes
    """JSON in the form of a run's spec, checked, without input and with header values `[redacted]`."""
    headers: Headers = {}
    """The header values."""
    metadata: dict[str, str] = {}
    system: bool = False
    """Usable only with credentials whose allow-list names it."""


async def create(at: Workspaces, workspace: int, draft: AgentDraft) -> AgentRow:
    """Raises `Conflict` if the workspace already has an agent with that slug."""
    sealed = at.vault.seal_headers(draft.headers, workspace=workspace)

    def query() -> Query[AgentRow]:
        slugs = yield from agents.slugs(workspace)
        if len(slugs) >= MAX_PER_WORKSPACE:
            raise InvalidRequest(f"A workspace can have at most {MAX_PER_WORKSPACE:,} agents.")
        slug = _valid(draft.slug) if draft.slug else _free_slug(draft.name, slugs | at.code.slugs)
        _require_free(at, slug)
        identity = "agent_" + secrets.token_hex(10)
        columns = _columns(draft, slug=slug, sealed=sealed)
        row = yield from agents.insert(identity, columns, workspace=workspace, now=at.clock.now_us())
        return row or (yield from _taken(slug, workspace=workspace))

    return await at.records.write(query())


async def replace(at: Workspaces, workspace: int, id: str, draft: AgentDraft, *, dialled_urls: DialledUrls) -> AgentRow:
    """Replaces a definition. Existing runs and threads keep what they began with.

    A secret that is sent back as it was read, `[redacted]`, is kept, unless its tool gets a different origin.
    """

    if id in at.code:
        raise read_only(id)

    def query() -> Query[AgentRow]:
        row = yield from _by_id_or_slug(id, workspace=workspace)
        earlier = at.vault.open_headers(row.secrets, workspace=workspace)
        headers = kept_secrets(
            draft.headers, urls=dialled_urls(draft.spec), earlier=earlier, earlier_urls=dialled_urls(row.spec)
        )
        sealed = at.vault.seal_headers(headers, workspace=workspace)
        slug = _valid(draft.slug) if draft.slug else row.slug
        if slug != row.slug:
            _require_free(at, slug)
        twin = yield from agents.by_slug(slug, workspace=workspace)
        if twin is not None and twin.key != row.key:
            yield from _taken(slug, workspace=workspace)
        columns = _columns(draft, slug=slug, sealed=sealed)
        changed = yield from agents.update(row.key, columns, now=at.clock.now_us())
        assert changed is not None
        return changed

    return await at.records.write(query())


async def delete(at: Workspaces, workspace: int, id: str) -> None:
    if id in at.code:
        raise read_only(id)

    def query() -> Query[None]:
        row = yield from _by_id_or_slug(id, workspace=workspace)
        yield from agents.delete(row.key)

    await at.records.write(query())


async def of_workspace(at: Workspaces, workspace: int) -> list[AgentSummary]:
    """All agents: stored ones first, oldest first, then those defined in code."""
    return [*await at.records.read(agents.of_workspace(workspace)), *at.code.rows(workspace)]


async def ids_by_slug(at: Workspaces, slug: str) -> tuple[str, ...]:
    """The ids of the agents with this slug, in all workspaces."""
    return await at.records.read(agents.ids_by_slug(slug))


async def page(at: Workspaces, workspace: int, *, after: int = 0, limit: int) -> RowPage[AgentRow]:
    """The next agents with a key above `after`, oldest first: as many as fit, and at least one."""
    stored = await at.records.read(agents.page(workspace=workspace, after=after, limit=limit), heavy=True)
    return at.code.after(stored, workspace=workspace, after=after, limit=limit)


async def find(at: Workspaces, workspace: int, name: str) -> AgentRow:
    """The agent with this id or slug. Raises `NotFound`."""
    return at.code.find(name, workspace=workspace) or await at.records.read(_by_id_or_slug(name, workspace=workspace))


# What a caller may see and use


async def visible(at: Workspaces, caller: Caller, *, after: int = 0, limit: int) -> RowPage[AgentRow]:
    """A page of the agents that the caller can see: those of its allow-list, or else all, including system agents."""
    ids = tuple(caller.agents)
    stored = await at.records.read(
        agents.page(workspace=caller.workspace, after=after, limit=limit, ids=ids), heavy=True
    )
    return at.code.after(stored, workspace=caller.workspace, after=after, limit=limit, ids=ids)


async def find_visible(at: Workspaces, caller: Caller, name: str) -> AgentRow:
    """Like `find`, for agents that the caller can see."""
    row = await find(at, caller.workspace, name)
    if not _is_visible(caller, row):
        raise no_such_agent(name)
    return row


async def usable(at: Workspaces, caller: Caller) -> list[AgentSummary]:
    return [row for row in await of_workspace(at, caller.workspace) if _is_usable(caller, row)]


async def read(at: Workspaces, agent: AgentSummary) -> AgentRow | None:
    """The whole agent; None if it was deleted in the meantime."""
    if agent.id in at.code:
        return at.code.find(agent.id, workspace=agent.workspace)
    return await at.records.read(agents.by_id(agent.id, workspace=agent.workspace))


async def id_of(at: Workspaces, workspace: int, name: str) -> str:
    """The id of the agent that a request names by its id or slug; anything else is returned unchanged.

    The caller is not checked here: a caller that may use an agent may use it by its id.
    """
    if (known := at.code.id_of(name)) is not None:
        return known
    if not _SLUG.fullmatch(name):  # ids have an underscore, slugs do not
        return name
    return await at.records.read(agents.id_by_slug(name, workspace=workspace)) or name


async def use(at: Workspaces, caller: Caller, agent_id: str) -> AgentRow:
    """The agent, for a caller that may use it.

    Raises:
        NotFound: for an agent that the workspace does not have, even if another workspace does.
        Forbidden: for one that the caller may not use. A caller with an allow-list gets it for every
            other id, so that it learns nothing about other agents.
    """
    if not _ID.fullmatch(agent_id):
        raise invalid_field("agent_id", "this is not an agent id.")
    if caller.agents and agent_id not in caller.agents:
        raise _forbidden()
    if agent_id in at.code:
        return _require_usable(caller, at.code.find(agent_id, workspace=caller.workspace), agent_id)
    return _require_usable(caller, await at.records.read(agents.by_id(agent_id, workspace=caller.workspace)), agent_id)


async def use_by_slug(at: Workspaces, caller: Caller, slug: str) -> AgentRow:
    """Like `use`, for an agent that is addressed by its slug: one that the caller may not see does not exist."""
    row = at.code.by_slug(slug, workspace=caller.workspace)
    row = row or await at.records.read(agents.by_slug(slug, workspace=caller.workspace))
    if row is None or not _is_visible(caller, row):
        raise no_such_agent(slug)
    return _require_usable(caller, row, slug)


def _require_usable(caller: Caller, row: AgentRow | None, name: str) -> AgentRow:
    if row is None and not caller.agents:
        raise no_such_agent(name)
    if row is None or not _is_usable(caller, row):
        raise _forbidden()
    if row.damaged:  # it must not run in a different form
        raise StoreError(f"The agent {row.id} is damaged: its {row.damaged} cannot be read.", code=LOG_DAMAGED)
    return row


def require_named(caller: Caller, agent_id: str | None) -> None:
    """Raises `Forbidden` for a caller restricted to some agents that names none of them."""
    if not caller.agents or agent_id in caller.agents:
        return
    if agent_id is None:
        raise Forbidden("This credential is restricted to some agents.", hint="Name one of them in agent_id.")
    raise _forbidden()


def owns(caller: Caller, agent: str | None) -> bool:
    """Returns True if the caller may see what belongs to this agent, or to none."""
    return not caller.agents or agent in caller.agents


def no_such_agent(name: str) -> NotFound:
    return NotFound(f"This workspace has no agent {name[:128]!r}.", agent_id=name[:128])


def _is_visible(caller: Caller, row: AgentRow) -> bool:
    return owns(caller, row.id)


def _is_usable(caller: Caller, row: AgentSummary) -> bool:
    """An empty allow-list allows every agent except system agents."""
    return row.id in caller.agents if caller.agents else not row.system


def _forbidden() -> Forbidden:
    return Forbidden("This credential may not use that agent.", hint="Check the agent's id and the allow-list.")


def _columns(draft: AgentDraft, *, slug: str, sealed: bytes | None) -> AgentColumns:
    return AgentColumns(
        slug=slug,
        name=draft.name,
        description=draft.description,
        spec=draft.spec,
        secrets=sealed,
        metadata=encode(draft.metadata).decode(),
        system=draft.system,
    )


def _by_id_or_slug(name: str, *, workspace: int) -> Query[AgentRow]:
    row = yield from agents.by_id(name, workspace=workspace)
    if row is None:
        row = yield from agents.by_slug(name, workspace=workspace)
    if row is None:
        raise no_such_agent(name)
    return row


def _valid(slug: str) -> str:
    if not _SLUG.fullmatch(slug):
        raise invalid_field("slug", "use 1 to 64 lowercase letters, digits and -, with no - at either end.")
    return slug


def _free_slug(name: str, taken: set[str]) -> str:
    base = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_MAX_SLUG_BASE_CHARS].strip("-") or "agent"
    slug, number = base, 1
    while slug in taken:
        number += 1
        slug = f"{base}-{number}"
    return slug


def _require_free(at: Workspaces, slug: str) -> None:
    if slug in at.code.slugs:
        raise Conflict(f"This server has an agent {slug!r} in its code.")


def _taken(slug: str, *, workspace: int) -> Query[AgentRow]:
    twin = yield from agents.by_slug(slug, workspace=workspace)
    raise Conflict(f"This workspace already has an agent {slug!r}{f': {twin.id}' if twin else ''}.")


async def add_prompt_override(at: Workspaces, workspace: int, row: PromptOverrideRow) -> None:
    await at.records.write(prompt_overrides.insert(row, workspace=workspace))


async def prompt_overrides_of(at: Workspaces, workspace: int) -> list[PromptOverrideRow]:
    """Newest first."""
    return await at.records.read(prompt_overrides.of_workspace(workspace))
