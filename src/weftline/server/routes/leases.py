"""Exclusive leases of clients on calls: claims, heartbeats, releases."""

from __future__ import annotations

from msgspec.json import encode

from weftline.api.leases import claim_call, keep_call, release_call
from weftline.cases.base import locate_run
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.bodies import model_body
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.server.routes.awaits import BODY_BYTES
from weftline.server.routes.runs import PATH
from weftline.wire.leases import ClaimModel, Lease, LeaseModel, Released

_CLAIM = model_body(ClaimModel, limit_bytes=BODY_BYTES, optional=True)
_LEASE = model_body(LeaseModel, limit_bytes=BODY_BYTES, optional=True)


async def claim(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, principal, request.params["runId"])
    sent, unknown = await request.read(_CLAIM)
    warnings = app.unknown_fields.warnings(request, unknown)
    return Response(encode(await claim_call(app.engine, key, sent, by=principal.who, warnings=warnings)))


async def heartbeat(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, principal, request.params["runId"])
    sent, unknown = await request.read(_LEASE)
    warnings = app.unknown_fields.warnings(request, unknown)
    return Response(encode(await keep_call(app.engine, key, sent, warnings=warnings)))


async def release(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, principal, request.params["runId"])
    sent, unknown = await request.read(_LEASE)
    warnings = app.unknown_fields.warnings(request, unknown)
    with request.may_end_waits():
        return Response(encode(await release_call(app.engine, key, sent, warnings=warnings)))


ROUTES = (
    Route(
        "POST",
        f"{PATH}/{{runId}}/tool-leases",
        claim,
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Claim a client-side tool call",
        body=_CLAIM,
        warns=True,
        returns=Lease,
        errors=(409,),
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/tool-leases/heartbeat",
        heartbeat,
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Keep a claimed call",
        body=_LEASE,
        warns=True,
        returns=Lease,
        errors=(409,),
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/tool-leases/release",
        release,
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Give a claimed call back",
        body=_LEASE,
        warns=True,
        returns=Released,
        errors=(409,),
    ),
)
