"""Exclusive leases of clients on calls: claimed, kept and given back."""

from __future__ import annotations

from msgspec import UNSET

from weftline.runtime.engine import Engine, Leased
from weftline.wire.leases import ClaimModel, Lease, LeaseModel, Released
from weftline.wire.responses import Warnings, iso


async def claim_call(calls: Engine, key: int, sent: ClaimModel, *, by: str, warnings: Warnings = UNSET) -> Lease:
    lease_us, claim_id = sent.leaseMs * 1000, sent.claimId or ""
    leased = await calls.claim(key, sent.toolUseId, lease_us=lease_us, claim_id=claim_id, by=by)
    return _lease(sent.toolUseId, leased, warnings)


async def keep_call(calls: Engine, key: int, sent: LeaseModel, *, warnings: Warnings = UNSET) -> Lease:
    return _lease(sent.toolUseId, await calls.heartbeat(key, sent.toolUseId, sent.token), warnings)


async def release_call(calls: Engine, key: int, sent: LeaseModel, *, warnings: Warnings = UNSET) -> Released:
    await calls.release(key, sent.toolUseId, sent.token)
    return Released(tool_use_id=sent.toolUseId, warnings=warnings)


def _lease(call: str, leased: Leased, warnings: Warnings) -> Lease:
    return Lease(
        tool_use_id=call,
        token=leased.token,
        lease_ms=leased.lease_us // 1000,
        expires_at=iso(leased.until),
        attempt=leased.attempt,
        warnings=warnings,
    )
