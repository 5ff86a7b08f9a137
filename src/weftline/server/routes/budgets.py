"""Budgets: limits, and what was spent."""

from __future__ import annotations

from functools import partial

from msgspec.json import encode

from weftline.api import budget_views
from weftline.api.schemas.budgets import BudgetLimitsModel, Budgets, BudgetUse, budget_json, parse_budget
from weftline.cases.base import require_accepting
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.declared import Body
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.server.routes.runs import PATH as RUNS
from weftline.server.routes.runs import locate_run
from weftline.workspace import budgets

_BASE = "/api/v1/workspaces/{slug}/budgets"
_LIMITS = Body(BudgetLimitsModel, parse_budget, 64 * 1024)


async def index(app: App, request: Request, principal: Principal) -> Response:
    found = await budget_views.of_workspace(app.workspaces, principal, app.engine.stored)
    return Response(encode(Budgets([budget_json(one) for one in found])))


async def change(app: App, request: Request, principal: Principal) -> Response:
    sent = await request.read(_LIMITS)
    warnings = app.unknown_fields.warnings(request, sent.unknown)
    require_accepting(app, principal)
    room = partial(app.large.room_to_work, principal.slug)
    about = await budget_views.subject(
        app.workspaces, principal, app.engine.stored, level=sent.level, id=sent.id, room=room
    )
    budget = await budgets.set_limits(app.workspaces, principal, about, sent.limits, by=principal.who)
    return Response(encode(budget_json(budget, warnings)))


async def of_run(app: App, request: Request, principal: Principal) -> Response:
    await locate_run(app, request, principal)
    row = await app.engine.stored.find(request.params["runId"], workspace=principal.workspace)
    room = partial(app.large.room_to_work, principal.slug)
    found = await budget_views.of_run(app.workspaces, app.engine.stored, row, room=room)
    return Response(encode(Budgets([budget_json(one) for one in found])))


ROUTES = (
    Route(
        "GET",
        _BASE,
        index,
        scopes=("budgets:read",),
        narrowed="its agents",
        summary="List the budgets, with what is spent and reserved",
        returns=Budgets,
    ),
    Route(
        "PUT",
        _BASE,
        change,
        scopes=("budgets:write",),
        summary="Set the limits of a workspace, an agent, a session or a run",
        body=_LIMITS,
        warns=True,
        returns=BudgetUse,
    ),
    Route(
        "GET",
        f"{RUNS}/{{runId}}/budgets",
        of_run,
        scopes=("runs:read",),
        narrowed="its agents",
        summary="Read the budgets that a run is under",
        returns=Budgets,
    ),
)
