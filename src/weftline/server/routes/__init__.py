"""Every route of the server, one file per resource."""

from __future__ import annotations

from weftline.server.router import Route
from weftline.server.routes import health, models, runs, sessions

ROUTES: tuple[Route, ...] = (*runs.ROUTES, *sessions.ROUTES, *models.ROUTES, *health.ROUTES)
