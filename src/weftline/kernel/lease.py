"""The part of the log's vocabulary that is about leases: a client has an offered call to itself for a while.

A call that nobody claims is answered by whoever is first. One that is claimed is answered by whoever has the token, by
its deadline or by a cancel; if its client stops sending heartbeats, the lease runs out and the run's rule says what
happens; see `weftline.kernel.leases`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

OnLost: TypeAlias = Literal["reoffer", "fallback", "error"]
"""What becomes of a call whose client is gone: it is offered again, a tool of the server carries it out, or the model
reads that nobody has.
"""

LEASE_US = 30_000_000
MIN_LEASE_US = 1_000_000
MAX_LEASE_US = 600_000_000


class LeaseRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Stored in full, as `Limits` are."""

    on_lost: OnLost = "reoffer"
    fallbacks: dict[str, str] = {}
    """By client tool: the server tool that takes its place. A call of any other tool is offered again."""


class Lease(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Who has a call to itself, as the state knows it."""

    token: str
    """The digest of the token."""
    until: int
    lease_us: int
    """How long one claim or heartbeat holds."""
    by: str = ""
    lost: bool = False
    """It ran out. Its token is good for as long as nobody else has claimed the call."""


class _Head(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """As `entries.Head`."""


class CallClaimed(_Head, frozen=True, tag="call.claimed"):
    """A client has the call to itself until `lease_us` after `at`. `renewed`: it had it already, and said so again."""

    turn: int
    index: int
    id: str
    name: str
    token: str
    """The digest of the token that it was given."""
    lease_us: int
    by: str = ""
    renewed: bool = False


class CallUnclaimed(_Head, frozen=True, tag="call.unclaimed"):
    """Its client gave the call back, or the lease ran out: it is offered to all clients again. Body: `OpenedBody`.

    With a `fallback` it is not: that tool of the server carries it out, with the same arguments and key.
    """

    turn: int
    index: int
    id: str
    name: str
    cause: Literal["released", "lost"]
    attempt: int
    """Of the offer, counted from 1."""
    client: str | None = None
    """How it is offered, as in `call.opened`."""
    fallback: str = ""
