"""Stored agents: what is sent and shown of them, and their definitions."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import encode
from msgspec.structs import replace as replaced
from pydantic import Field, StringConstraints

from weftline.api.creating import Warn
from weftline.api.planning import runnable
from weftline.api.principal import Principal
from weftline.cases.base import Host, Page, Sent, SentBody
from weftline.errors import Conflict, InvalidRequest, Issue, NotFound, invalid, invalid_field
from weftline.net.address import same_origin
from weftline.plan import RunPlan
from weftline.spec.door import parse_session
from weftline.spec.plan import plan_from_spec
from weftline.spec.tools import dialled_urls
from weftline.store.database import Query
from weftline.store.records import agents as records
from weftline.store.records.agents import AgentColumns, AgentRow
from weftline.store.sealing import Headers
from weftline.text.redaction import REDACTED, SEALED_URL, redact_url
from weftline.text.suggestions import did_you_mean
from weftline.wire.errors import error_code
from weftline.wire.json_text import decode_fields
from weftline.wire.limits import MAX_AGENT_SPEC_BYTES
from weftline.wire.models import NO_NUL, Metadata, Part
from weftline.wire.responses import JsonObject, Time, Warnings, Words, iso
from weftline.wire.unknown_fields import UnknownField
from weftline.work.heavy import parsed
from weftline.workspace import agents
from weftline.workspace.agents import SLUG, existing
from weftline.workspace.code_agents import is_code, read_only
from weftline.workspace.context import Workspaces

MAX_PER_WORKSPACE = 1_000
_MAX_NAME_CHARS, _MAX_DESCRIPTION_CHARS = 128, 4096
_MAX_SLUG_BASE_CHARS = 48


class AgentModel(Part):
    """The body that creates or replaces an agent."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=_MAX_NAME_CHARS, pattern=NO_NUL)]
    slug: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$")] | None = None
    description: Annotated[str, StringConstraints(max_length=_MAX_DESCRIPTION_CHARS, pattern=NO_NUL)] | None = None
    spec: Annotated[dict[str, Any], Field(description="A run's spec without prompt, messages and agentId.")]
    metadata: Metadata | None = None
    system: bool | None = None


class Agent(Struct, rename="camel"):
    id: str
    slug: str
    name: str
    description: str
    spec: JsonObject
    """As it was sent, with header values of its tools as `[redacted]`."""
    metadata: Words
    system: bool
    created_at: Time
    updated_at: Time
    warnings: Warnings = UNSET
    code: bool | UnsetType = UNSET
    """True for a code agent of the server, which cannot be changed here."""
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable; left out otherwise."""


class Agents(Struct, rename="camel"):
    agents: list[Agent]
    next_cursor: str | None


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


async def create(on: Host, by: Principal, sent: Sent[AgentModel]) -> Agent:
    draft, warnings = await _draft(on, by, await sent.read(), sent.warn)
    return _shown(await add(on.workspaces, by.workspace, draft), warnings)


async def replace(on: Host, by: Principal, agent_id: str, sent: Sent[AgentModel]) -> Agent:
    known = await _find(on, by, agent_id)
    if is_code(known):
        raise read_only(known.id)
    draft, warnings = await _draft(on, by, await sent.read(), sent.warn)
    return _shown(await amend(on.workspaces, by.workspace, known.id, draft), warnings)


async def index(on: Host, by: Principal, page: Page) -> Agents:
    found = await agents.visible(on.workspaces, by, after=page.after, limit=page.limit)
    return Agents([_shown(row) for row in found.rows], page.next_cursor(found))


async def read(on: Host, by: Principal, agent_id: str) -> Agent:
    return _shown(await _find(on, by, agent_id))


async def delete(on: Host, by: Principal, agent_id: str) -> None:
    row = await _find(on, by, agent_id)
    on.engine.require_writable()
    await remove(on.workspaces, by.workspace, row.id)


async def _draft(on: Host, by: Principal, body: SentBody[AgentModel], warn: Warn) -> tuple[AgentDraft, Warnings]:
    draft, unknown, plan = await parsed(partial(_planned, body.fields), body.raw)
    return draft, await runnable(on.engine, by, plan, [*body.unknown, *unknown], warn=warn, runs_now=False)


def _planned(fields: AgentModel, body: bytes) -> tuple[AgentDraft, Sequence[UnknownField], RunPlan]:
    draft, unknown = draft_of(fields, body)
    return draft, unknown, plan_from_spec(draft.spec)


def draft_of(fields: AgentModel, body: bytes) -> tuple[AgentDraft, Sequence[UnknownField]]:
    """Returns the definition in a body, and the unknown fields of its spec. Raises `InvalidRequest`."""
    raw = bytes(decode_fields(body)["spec"])
    if len(raw) > MAX_AGENT_SPEC_BYTES:
        raise invalid([Issue("spec", f"has more than {MAX_AGENT_SPEC_BYTES:,} bytes of JSON")])
    try:
        spec = parse_session(raw)
    except InvalidRequest as error:
        raise InvalidRequest(f"spec: {error.message}", **error.details) from None
    if spec.agent_id is not None:
        raise InvalidRequest("spec.agentId: an agent cannot be based on another agent.")
    draft = AgentDraft(
        name=fields.name,
        slug=fields.slug or "",
        description=fields.description or "",
        spec=spec.spec,
        headers=spec.secrets,
        metadata=fields.metadata or {},
        system=bool(fields.system),
    )
    return draft, [replaced(field, path=f"spec.{field.path}") for field in spec.unknown]


async def _find(on: Host, by: Principal, name: str) -> AgentRow:
    """Returns the agent with this id or slug. For an unknown one, the operator is told the nearest slugs."""
    try:
        return await agents.find_visible(on.workspaces, by, name)
    except NotFound as error:
        if not by.operator:
            raise
        slugs = [row.slug for row in await agents.of_workspace(on.workspaces, by.workspace)]
        near = await asyncio.to_thread(did_you_mean, name, slugs)
        raise NotFound(f"{error.message}{near}", **error.details) from None


async def add(at: Workspaces, workspace: int, draft: AgentDraft) -> AgentRow:
    """Raises `Conflict` if the workspace already has an agent with that slug."""
    sealed = at.vault.seal_headers(draft.headers, workspace=workspace)

    def query() -> Query[AgentRow]:
        slugs = yield from records.slugs(workspace)
        if len(slugs) >= MAX_PER_WORKSPACE:
            raise InvalidRequest(f"A workspace can have at most {MAX_PER_WORKSPACE:,} agents.")
        slug = _valid(draft.slug) if draft.slug else _free_slug(draft.name, slugs | at.code.slugs)
        _require_free(at, slug)
        identity = "agent_" + secrets.token_hex(10)
        columns = _columns(draft, slug=slug, sealed=sealed)
        row = yield from records.insert(identity, columns, workspace=workspace, now=at.clock.now_us())
        return row or (yield from _taken(slug, workspace=workspace))

    return await at.records.write(query())


async def amend(at: Workspaces, workspace: int, id: str, draft: AgentDraft) -> AgentRow:
    """Replaces a definition. Existing runs and threads keep what they began with.

    A secret that is sent back as it was read, `[redacted]`, is kept, unless its tool gets a different origin.
    """

    if id in at.code:
        raise read_only(id)

    def query() -> Query[AgentRow]:
        row = yield from existing(id, workspace=workspace)
        earlier = at.vault.open_headers(row.secrets, workspace=workspace)
        headers = kept_secrets(
            draft.headers, urls=dialled_urls(draft.spec), earlier=earlier, earlier_urls=dialled_urls(row.spec)
        )
        sealed = at.vault.seal_headers(headers, workspace=workspace)
        slug = _valid(draft.slug) if draft.slug else row.slug
        if slug != row.slug:
            _require_free(at, slug)
        twin = yield from records.by_slug(slug, workspace=workspace)
        if twin is not None and twin.key != row.key:
            yield from _taken(slug, workspace=workspace)
        columns = _columns(draft, slug=slug, sealed=sealed)
        changed = yield from records.update(row.key, columns, now=at.clock.now_us())
        assert changed is not None
        return changed

    return await at.records.write(query())


async def remove(at: Workspaces, workspace: int, id: str) -> None:
    if id in at.code:
        raise read_only(id)

    def query() -> Query[None]:
        row = yield from existing(id, workspace=workspace)
        yield from records.delete(row.key)

    await at.records.write(query())


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
            if header in old and same_origin(earlier_urls.get(name, ""), url):
                own[header] = old[header]
            else:
                issues.append(
                    Issue(f"spec.tools.{name}.headers.{header}", "must be sent again when the tool's origin changes")
                )
    if issues:
        raise invalid(issues)
    return kept


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


def _valid(slug: str) -> str:
    if not SLUG.fullmatch(slug):
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
    twin = yield from records.by_slug(slug, workspace=workspace)
    raise Conflict(f"This workspace already has an agent {slug!r}{f': {twin.id}' if twin else ''}.")


def _shown(row: AgentRow, warnings: Warnings = UNSET) -> Agent:
    return Agent(
        row.id,
        row.slug,
        row.name,
        row.description,
        Raw(row.spec),
        Raw(row.metadata.encode()),
        row.system,
        iso(row.created_at),
        iso(row.updated_at),
        warnings,
        True if is_code(row) else UNSET,
        error_code(row.damaged),
    )
