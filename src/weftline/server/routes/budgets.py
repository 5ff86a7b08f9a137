"""Budgets: limits, and what was spent."""

from __future__ import annotations

from weftline.cases import budgets
from weftline.server.case import case
from weftline.server.router import Route
from weftline.server.routes.runs import PATH as RUNS

_BASE = "/api/v1/workspaces/{slug}/budgets"
ROUTES = (
    Route(
        "GET",
        _BASE,
        **case(budgets.index),
        scopes=("budgets:read",),
        narrowed="its agents",
        summary="List the budgets, with what is spent and reserved",
    ),
    Route(
        "PUT",
        _BASE,
        **case(budgets.change, limit_bytes=64 * 1024),
        scopes=("budgets:write",),
        summary="Set the limits of a workspace, an agent, a session or a run",
    ),
    Route(
        "GET",
        f"{RUNS}/{{runId}}/budgets",
        **case(budgets.of_run),
        scopes=("runs:read",),
        narrowed="its agents",
        summary="Read the budgets that a run is under",
    ),
)
