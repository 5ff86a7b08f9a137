"""Stored agents: list, create, read, replace, delete."""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec.json import encode

from weftline.api.parsing import parsed
from weftline.api.planning import runnable
from weftline.api.schemas.agents import Agent, AgentModel, Agents, agent_json, parse_agent
from weftline.errors import NotFound
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.declared import Body
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.server.routes.lists import CURSOR, STORED_LIMIT, next_cursor, stored_page
from weftline.spec.plan import plan_from_spec
from weftline.spec.tools import dialled_urls
from weftline.store.records.agents import AgentRow
from weftline.text.suggestions import did_you_mean
from weftline.wire.responses import Ok
from weftline.workspace import agents
from weftline.workspace.code_agents import is_code, read_only

_BASE = "/api/v1/workspaces/{slug}/agents"
_AGENT = Body(AgentModel, parse_agent)


async def create(app: App, request: Request, principal: Principal) -> Response:
    draft, unknown = await request.read(_AGENT)
    plan = await parsed(plan_from_spec, draft.spec)
    warnings = await runnable(
        app.engine, principal, plan, unknown, warn=partial(app.unknown_fields.warnings, request), runs_now=False
    )
    row = await agents.create(app.workspaces, principal.workspace, draft)
    return Response(encode(agent_json(row, warnings)), status=201)


async def replace(app: App, request: Request, principal: Principal) -> Response:
    known = await _find(app, request, principal)
    if is_code(known):
        raise read_only(known.id)
    draft, unknown = await request.read(_AGENT)
    plan = await parsed(plan_from_spec, draft.spec)
    warnings = await runnable(
        app.engine, principal, plan, unknown, warn=partial(app.unknown_fields.warnings, request), runs_now=False
    )
    row = await agents.replace(app.workspaces, principal.workspace, known.id, draft, dialled_urls=dialled_urls)
    return Response(encode(agent_json(row, warnings)))


async def index(app: App, request: Request, principal: Principal) -> Response:
    after, limit = stored_page(app, request, principal)
    page = await agents.visible(app.workspaces, principal, after=after, limit=limit)
    return Response(encode(Agents([agent_json(row) for row in page.rows], next_cursor(app, page, principal))))


async def read(app: App, request: Request, principal: Principal) -> Response:
    row = await _find(app, request, principal)
    return Response(encode(agent_json(row)))


async def delete(app: App, request: Request, principal: Principal) -> Response:
    row = await _find(app, request, principal)
    app.engine.require_writable()
    await agents.delete(app.workspaces, principal.workspace, row.id)
    return Response(encode(Ok()))


async def _find(app: App, request: Request, principal: Principal) -> AgentRow:
    """Returns the agent in the path. For an unknown one, the operator is told the nearest slugs."""
    name = request.params["agentId"]
    try:
        return await agents.find_visible(app.workspaces, principal, name)
    except NotFound as error:
        if not principal.operator:
            raise
        slugs = [row.slug for row in await agents.of_workspace(app.workspaces, principal.workspace)]
        near = await asyncio.to_thread(did_you_mean, name, slugs)
        raise NotFound(f"{error.message}{near}", **error.details) from None


ROUTES = (
    Route(
        "GET",
        _BASE,
        index,
        scopes=("agents:read",),
        narrowed="its agents",
        summary="List the stored agents",
        query=(STORED_LIMIT, CURSOR),
        returns=Agents,
    ),
    Route(
        "POST",
        _BASE,
        create,
        scopes=("agents:write",),
        summary="Store an agent",
        body=_AGENT,
        warns=True,
        returns=Agent,
        status=201,
        errors=(409,),
    ),
    Route(
        "GET",
        f"{_BASE}/{{agentId}}",
        read,
        scopes=("agents:read",),
        narrowed="its agents",
        summary="Read an agent",
        returns=Agent,
    ),
    Route(
        "PUT",
        f"{_BASE}/{{agentId}}",
        replace,
        scopes=("agents:write",),
        summary="Replace an agent",
        body=_AGENT,
        warns=True,
        returns=Agent,
        errors=(409,),
    ),
    Route(
        "DELETE",
        f"{_BASE}/{{agentId}}",
        delete,
        scopes=("agents:write",),
        summary="Remove an agent",
        returns=Ok,
        errors=(409,),
    ),
)
