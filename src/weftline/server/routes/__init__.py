"""Every route of the server, one file per resource."""

from __future__ import annotations

from weftline.server.router import Route
from weftline.server.routes import (
    a2a,
    agents,
    awaits,
    budgets,
    calls,
    forks,
    health,
    keys,
    leases,
    lists,
    mcp,
    models,
    oauth,
    openapi,
    providers,
    root,
    runs,
    schedules,
    sessions,
    tools,
    webhooks,
    workspaces,
)

ROUTES: tuple[Route, ...] = (
    *runs.ROUTES,
    *awaits.ROUTES,
    *budgets.ROUTES,
    *leases.ROUTES,
    *calls.ROUTES,
    *forks.ROUTES,
    *sessions.ROUTES,
    *lists.ROUTES,
    *agents.ROUTES,
    *webhooks.ROUTES,
    *schedules.ROUTES,
    *a2a.ROUTES,
    *mcp.ROUTES,
    *models.ROUTES,
    *workspaces.ROUTES,
    *providers.ROUTES,
    *tools.ROUTES,
    *keys.ROUTES,
    *oauth.ROUTES,
    *root.ROUTES,
    *health.ROUTES,
    *openapi.ROUTES,
)
