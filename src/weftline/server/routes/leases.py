"""Exclusive leases of clients on calls: claims, heartbeats, releases."""

from __future__ import annotations

from weftline.cases import leases
from weftline.server.case import case
from weftline.server.router import Route
from weftline.server.routes.awaits import BODY_BYTES
from weftline.server.routes.runs import PATH

ROUTES = (
    Route(
        "POST",
        f"{PATH}/{{runId}}/tool-leases",
        **case(leases.claim, limit_bytes=BODY_BYTES, optional_body=True),
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        live=True,
        summary="Claim a client-side tool call",
        errors=(409,),
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/tool-leases/heartbeat",
        **case(leases.heartbeat, limit_bytes=BODY_BYTES, optional_body=True),
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        live=True,
        summary="Keep a claimed call",
        errors=(409,),
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/tool-leases/release",
        **case(leases.release, limit_bytes=BODY_BYTES, optional_body=True, may_end_waits=True),
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        live=True,
        summary="Give a claimed call back",
        errors=(409,),
    ),
)
