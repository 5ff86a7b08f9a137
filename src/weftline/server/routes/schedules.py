"""Schedules: runs that a workspace starts automatically."""

from __future__ import annotations

from weftline.cases import schedules
from weftline.server.case import case
from weftline.server.router import Route
from weftline.wire.limits import KB

_BASE = "/api/v1/workspaces/{slug}/schedules"
_ONE = f"{_BASE}/{{scheduleId}}"
_LIMIT_BYTES = 1024 * KB
_READ = ("schedules:read",)
_WRITE = ("schedules:write",)
_WRITE_AND_RUN = ("schedules:write", "runs:write")
"""Scheduling creates runs, so it takes the permission for that too."""
ROUTES = (
    Route(
        "GET",
        _BASE,
        **case(schedules.index),
        scopes=_READ,
        narrowed="its agents",
        summary="List the schedules",
    ),
    Route(
        "POST",
        _BASE,
        **case(schedules.create, status=201, limit_bytes=_LIMIT_BYTES),
        scopes=_WRITE_AND_RUN,
        narrowed="its agents",
        summary="Create a schedule",
        errors=(404, 409),
    ),
    Route("GET", _ONE, **case(schedules.read), scopes=_READ, narrowed="its agents", summary="Read a schedule"),
    Route(
        "PATCH",
        _ONE,
        **case(schedules.change, limit_bytes=_LIMIT_BYTES),
        scopes=_WRITE_AND_RUN,
        narrowed="its agents",
        summary="Change a schedule, or switch it on or off",
    ),
    Route("DELETE", _ONE, **case(schedules.delete), scopes=_WRITE, narrowed="its agents", summary="Remove a schedule"),
    Route(
        "POST",
        f"{_ONE}/run",
        **case(schedules.run, status=202),
        scopes=_WRITE_AND_RUN,
        narrowed="its agents",
        summary="Start a run of a schedule now",
        errors=(409,),
    ),
)
