"""Stored agents: what a workspace calls them, and what a run that names one becomes."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any

from msgspec import Raw, Struct
from msgspec.json import decode, encode
from pydantic import Field, StringConstraints, ValidationError

from weftline.errors import Forbidden, InvalidRequest
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Answer, Request
from weftline.server.router import Route
from weftline.store.secrets import Headers
from weftline.store.sqlite import agents
from weftline.store.sqlite.agents import AgentRow
from weftline.wire.agents import agent_spec_merge
from weftline.wire.bodies import SessionBody, SpecBody
from weftline.wire.json_text import decode_fields, decode_object
from weftline.wire.limits import ID_PATTERN
from weftline.wire.plan import NULL, plan_from_spec
from weftline.wire.requests import parse_session
from weftline.wire.responses import iso
from weftline.wire.run_spec import NO_NUL, Metadata, Part

_BASE = "/api/v1/workspaces/{slug}/agents"
_NAME_CHARS, _DESCRIPTION_CHARS = 128, 4096


class AgentModel(Part):
    """The body that creates or replaces an agent."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=_NAME_CHARS, pattern=NO_NUL)]
    slug: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$")] | None = None
    description: Annotated[str, StringConstraints(max_length=_DESCRIPTION_CHARS, pattern=NO_NUL)] | None = None
    spec: Annotated[dict[str, Any], Field(description="A run's spec without prompt, messages and agentId.")]
    metadata: Metadata | None = None
    system: bool | None = None


class AgentBody(Struct, frozen=True):
    """A checked definition."""

    name: str
    slug: str
    description: str
    spec: SessionBody
    metadata: str
    system: bool


def parse_agent(body: bytes) -> AgentBody:
    """The definition in a request's body or in a file. Raises `InvalidRequest`."""
    fields = decode_object(body)
    try:
        sent = AgentModel.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"] if step != "[key]")
        raise InvalidRequest(f"{where}: {first['msg']}", issues=[{"path": where, "message": first["msg"]}]) from None
    try:
        spec = parse_session(bytes(decode_fields(body)["spec"]))
    except InvalidRequest as error:
        raise InvalidRequest(f"spec: {error.message}", **error.details) from None
    if spec.agent_id is not None:
        raise InvalidRequest("spec.agentId: an agent cannot be made of another agent.")
    return AgentBody(
        sent.name,
        sent.slug or "",
        sent.description or "",
        spec,
        encode(sent.metadata or {}).decode(),
        bool(sent.system),
    )


class _Shown(Struct, rename="camel"):
    id: str
    slug: str
    name: str
    description: str
    spec: Raw
    metadata: Raw
    system: bool
    created_at: str
    updated_at: str


def shown(row: AgentRow) -> bytes:
    """An agent as JSON. Header values of its tools are `[redacted]`."""
    return encode(
        _Shown(
            row.id,
            row.slug,
            row.name,
            row.description,
            Raw(row.spec),
            Raw(row.metadata.encode()),
            bool(row.system),
            iso(row.created_at),
            iso(row.updated_at),
        )
    )


# What a run that names an agent becomes


def is_allowed(principal: Principal, row: AgentRow) -> bool:
    """An empty allow-list stands for every agent but those of the system."""
    return row.id in principal.agents if principal.agents else not row.system


def usable(app: App, principal: Principal, agent_id: str) -> AgentRow:
    """The agent, for a credential that may use it.

    Raises:
        Forbidden: the same for an agent that is not allowed, that is unknown, and that another workspace has.
    """
    if not re.fullmatch(ID_PATTERN, agent_id):
        raise InvalidRequest("agentId: is no agent id.")
    if principal.agents and agent_id not in principal.agents:
        raise _forbidden()
    row = agents.by_id(app.engine.read.db, agent_id, workspace=principal.workspace)
    if row is None or not is_allowed(principal, row):
        raise _forbidden()
    return row


def usable_by_slug(app: App, principal: Principal, slug: str) -> AgentRow:
    """Like `usable`, for an agent that is named by its slug."""
    row = agents.by_slug(app.engine.read.db, slug, workspace=principal.workspace)
    if row is None or not is_allowed(principal, row):
        raise _forbidden()
    return row


def effective(app: App, principal: Principal, body: SpecBody) -> tuple[bytes, Headers]:
    """The spec to run and its tools' secret headers: the request's own, laid over the agent's when it names one."""
    if body.agent_id is None:
        return body.spec, body.secrets
    row = usable(app, principal, body.agent_id)
    return merged(app, row, body.spec, body.secrets)


def merged(app: App, row: AgentRow, spec: bytes, secrets: Headers) -> tuple[bytes, Headers]:
    """A request's spec over an agent's."""
    own = decode_fields(row.spec)
    if own.get("name", NULL) == NULL:
        own["name"] = Raw(encode(row.name))
    whole = agent_spec_merge(encode(own), spec)
    headers = app.engine.store.vault.open_headers(row.secrets, workspace=row.workspace)
    if headers:
        # A tool that the request replaces brings its own headers, or none.
        replaced = {ref["name"] for ref in decode(spec).get("tools") or () if "name" in ref}
        headers = {name: values for name, values in headers.items() if name not in replaced}
    return whole, {**headers, **secrets}


def _forbidden() -> Forbidden:
    return Forbidden("This credential may not use that agent.", hint="Check the agent's id and the allow-list.")


# Routes


async def create(app: App, request: Request, principal: Principal) -> Answer:
    body = parse_agent(await request.body())
    _require_unnarrowed(principal)
    row = await _written(app, principal, agents.create_agent, body)
    return Answer(shown(row), status=201)


async def replace(app: App, request: Request, principal: Principal) -> Answer:
    known = find(app, request, principal)
    body = parse_agent(await request.body())
    _require_unnarrowed(principal)
    row = await _written(app, principal, partial(agents.update_agent, id=known.id), body)
    return Answer(shown(row))


async def _written(app: App, principal: Principal, operation: Any, body: AgentBody) -> AgentRow:
    app.engine.require_accepting()
    plan = plan_from_spec(body.spec.spec)
    if plan.model is not None:
        app.engine.check_models(plan, workspace=principal.workspace)
    app.engine.tools.check(plan, workspace=principal.workspace)
    return await app.engine.store.job(
        partial(
            operation,
            workspace=principal.workspace,
            slug=body.slug,
            name=body.name,
            description=body.description,
            spec=body.spec.spec,
            sealed=app.engine.store.vault.seal_headers(body.spec.secrets, workspace=principal.workspace),
            metadata=body.metadata,
            system=body.system,
            now=app.engine.clock.now_us(),
        )
    )


async def index(app: App, request: Request, principal: Principal) -> Answer:
    rows = agents.of_workspace(app.engine.read.db, principal.workspace)
    return Answer(b'{"agents":[' + b",".join(shown(row) for row in rows if is_seen(principal, row)) + b"]}")


async def read(app: App, request: Request, principal: Principal) -> Answer:
    return Answer(shown(find(app, request, principal)))


async def delete(app: App, request: Request, principal: Principal) -> Answer:
    row = find(app, request, principal)
    _require_unnarrowed(principal)
    app.engine.log.require_well()
    await app.engine.store.job(partial(agents.delete_agent, id=row.id, workspace=principal.workspace))
    return Answer(b'{"ok":true}')


def is_seen(principal: Principal, row: AgentRow) -> bool:
    """A credential that was narrowed to some agents sees those; any other sees all, those of the system too."""
    return not principal.agents or row.id in principal.agents


def find(app: App, request: Request, principal: Principal) -> AgentRow:
    """The agent of the path, by id or slug; `NotFound` when the credential cannot see one."""
    name, workspace, db = request.params["agentId"], principal.workspace, app.engine.read.db
    row = agents.by_id(db, name, workspace=workspace) or agents.by_slug(db, name, workspace=workspace)
    if row is None or not is_seen(principal, row):
        raise agents.no_such_agent()
    return row


def _require_unnarrowed(principal: Principal) -> None:
    if principal.agents:
        raise Forbidden("A credential with an agent allow-list cannot change agents.")


ROUTES = (
    Route("GET", _BASE, index, scopes=("agents:read",), summary="List the stored agents"),
    Route("POST", _BASE, create, scopes=("agents:write",), summary="Store an agent"),
    Route("GET", f"{_BASE}/{{agentId}}", read, scopes=("agents:read",), summary="Read an agent"),
    Route("PUT", f"{_BASE}/{{agentId}}", replace, scopes=("agents:write",), summary="Replace an agent"),
    Route("DELETE", f"{_BASE}/{{agentId}}", delete, scopes=("agents:write",), summary="Remove an agent"),
)
