"""The routes of the server, one file per resource.

A server knows `FIRST` when it begins to listen; `weftline.server.routes.every` has all of them and is loaded right
after, since what they need, models of requests and other protocols, takes longer to load than all the rest.
"""

from __future__ import annotations

from weftline.server.router import Route
from weftline.server.routes import calls, health, lists, models, runs, workspaces

FIRST: tuple[Route, ...] = (
    *runs.ROUTES,
    *calls.ROUTES,
    *lists.ROUTES,
    *models.ROUTES,
    *workspaces.ROUTES,
    *health.ROUTES,
)
"""What clients of an earlier process ask for at once: how their runs are, and that they continue."""


def every_route() -> tuple[Route, ...]:
    from weftline.server.routes.every import ROUTES  # takes as long as the whole start of a server

    return ROUTES


def operator_routes() -> tuple[Route, ...]:
    from weftline.server.routes.operator import ROUTES  # only a command of an administrator needs them

    return ROUTES
