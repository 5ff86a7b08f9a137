"""Exclusive leases of clients on calls: claims, heartbeats, releases."""

from __future__ import annotations

from msgspec.json import encode

from weftline.runtime.engine import Leased
from weftline.server.access import locate_run
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.bodies import model_body
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.server.routes.awaits import BODY_BYTES
from weftline.server.routes.runs import PATH
from weftline.wire.leases import ClaimModel, Lease, LeaseModel, Released
from weftline.wire.responses import Warnings, iso

_CLAIM = model_body(ClaimModel, limit_bytes=BODY_BYTES, optional=True)
_LEASE = model_body(LeaseModel, limit_bytes=BODY_BYTES, optional=True)


async def claim(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, request, principal)
    sent, unknown = await request.read(_CLAIM)
    warnings = app.unknown_fields.warnings(request, unknown)
    leased = await app.engine.claim(
        key, sent.toolUseId, lease_us=sent.leaseMs * 1000, claim_id=sent.claimId or "", by=principal.who
    )
    return _lease(sent.toolUseId, leased, warnings)


async def heartbeat(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, request, principal)
    sent, unknown = await request.read(_LEASE)
    warnings = app.unknown_fields.warnings(request, unknown)
    return _lease(sent.toolUseId, await app.engine.heartbeat(key, sent.toolUseId, sent.token), warnings)


async def release(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, request, principal)
    sent, unknown = await request.read(_LEASE)
    warnings = app.unknown_fields.warnings(request, unknown)
    await app.engine.release(key, sent.toolUseId, sent.token)
    return Response(encode(Released(tool_use_id=sent.toolUseId, warnings=warnings)))


def _lease(call: str, leased: Leased, warnings: Warnings) -> Response:
    lease = Lease(
        tool_use_id=call,
        token=leased.token,
        lease_ms=leased.lease_us // 1000,
        expires_at=iso(leased.until),
        attempt=leased.attempt,
        warnings=warnings,
    )
    return Response(encode(lease))


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
