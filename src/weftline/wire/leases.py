"""Leases of client-side calls, in the protocol's format."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import UNSET
from pydantic import Field, StringConstraints

from weftline.kernel.control import LEASE_US, MAX_LEASE_US, MIN_LEASE_US
from weftline.wire.limits import MAX_TOOL_USE_ID_CHARS
from weftline.wire.models import Part
from weftline.wire.responses import Ok, Time, Warnings

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
