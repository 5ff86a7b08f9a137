"""The log's vocabulary for leases: a client claims an offered call for a while.

A call that nobody has claimed is answered by whichever client is first. A claimed call is answered by the client with
the token, by its deadline or by a cancel. If the client stops sending heartbeats, the lease expires and the run's rule
determines what happens; see `weftline.kernel.leases`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

OnLost: TypeAlias = Literal["reoffer", "fallback", "error"]
"""What happens to a call whose client is gone: it is offered again, a server tool executes it, or the model reads that
nobody has answered.
"""

LEASE_US = 30_000_000
MIN_LEASE_US = 1_000_000
MAX_LEASE_US = 600_000_000


class LeaseRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The rule for a lost lease. Stored in full, like `Limits`."""

    on_lost: OnLost = "reoffer"
    fallbacks: dict[str, str] = {}
    """For each client tool, the server tool that takes its place. A call of any other tool is offered again."""


class Lease(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Which client has claimed a call, as far as the state knows."""

    token: str
    """The digest of the token."""
    until: int
    lease_us: int
    """How long one claim or heartbeat holds."""
    by: str = ""
    lost: bool = False
    """It has expired. Its token remains valid until another client claims the call."""


class _Head(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Like `entries.Head`."""


class CallClaimed(_Head, frozen=True, tag="call.claimed"):
    """A client has claimed the call until `lease_us` after `at`. `renewed`: it extends a lease that it already held."""

    turn: int
    index: int
    id: str
    name: str
    token: str
    """The digest of the token that the client received."""
    lease_us: int
    by: str = ""
    renewed: bool = False


class CallUnclaimed(_Head, frozen=True, tag="call.unclaimed"):
    """The client released the call, or the lease expired: it is offered to all clients again. Body: `OpenedBody`.

    With a `fallback`, it is not offered again: that server tool executes it, with the same arguments and key.
    """

    turn: int
    index: int
    id: str
    name: str
    cause: Literal["released", "lost"]
    attempt: int
    """The number of the offer, counted from 1."""
    client: str | None = None
    """How it is offered, as in `call.opened`."""
    fallback: str = ""
