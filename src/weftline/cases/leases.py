"""Exclusive leases of clients on calls: claimed, kept and given back."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import UNSET
from pydantic import Field, StringConstraints

from weftline.api.principal import Principal
from weftline.cases.base import Host, Sent, locate_run
from weftline.kernel.control import LEASE_US, MAX_LEASE_US, MIN_LEASE_US
from weftline.runtime.engine import Leased
from weftline.wire.limits import MAX_TOOL_USE_ID_CHARS
from weftline.wire.models import Part
from weftline.wire.responses import Ok, Time, Warnings, iso

MAX_NAME_CHARS = 255
_Call: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TOOL_USE_ID_CHARS)]
_Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]


class ClaimModel(Part):
    """`claimId` is the client's own name for the claim: the same one gets the same token again."""

    toolUseId: _Call
    leaseMs: Annotated[int, Field(ge=MIN_LEASE_US // 1000, le=MAX_LEASE_US // 1000)] = LEASE_US // 1000
    claimId: _Name | None = None


class LeaseModel(Part):
    """A claimed call, and the token that came with the claim."""

    toolUseId: _Call
    token: _Name


class Lease(Ok, frozen=True, rename="camel", kw_only=True):
    """A call that a client has to itself until `expiresAt`."""

    tool_use_id: str
    token: str
    lease_ms: int
    expires_at: Time
    attempt: int
    """How often the call was offered."""
    warnings: Warnings = UNSET


class Released(Ok, frozen=True, rename="camel", kw_only=True):
    tool_use_id: str
    warnings: Warnings = UNSET


async def claim(on: Host, by: Principal, run_id: str, sent: Sent[ClaimModel]) -> Lease:
    key = await locate_run(on, by, run_id)
    body = await sent.read()
    fields, warnings = body.fields, sent.warn(body.unknown)
    lease_us, claim_id = fields.leaseMs * 1000, fields.claimId or ""
    leased = await on.engine.claim(key, fields.toolUseId, lease_us=lease_us, claim_id=claim_id, by=by.who)
    return _lease(fields.toolUseId, leased, warnings)


async def heartbeat(on: Host, by: Principal, run_id: str, sent: Sent[LeaseModel]) -> Lease:
    key = await locate_run(on, by, run_id)
    body = await sent.read()
    fields, warnings = body.fields, sent.warn(body.unknown)
    return _lease(fields.toolUseId, await on.engine.heartbeat(key, fields.toolUseId, fields.token), warnings)


async def release(on: Host, by: Principal, run_id: str, sent: Sent[LeaseModel]) -> Released:
    key = await locate_run(on, by, run_id)
    body = await sent.read()
    fields, warnings = body.fields, sent.warn(body.unknown)
    await on.engine.release(key, fields.toolUseId, fields.token)
    return Released(tool_use_id=fields.toolUseId, warnings=warnings)


def _lease(call: str, leased: Leased, warnings: Warnings) -> Lease:
    return Lease(
        tool_use_id=call,
        token=leased.token,
        lease_ms=leased.lease_us // 1000,
        expires_at=iso(leased.until),
        attempt=leased.attempt,
        warnings=warnings,
    )
