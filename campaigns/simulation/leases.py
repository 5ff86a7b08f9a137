"""L1 and L2: what a lease promises, checked from the log alone and without the kernel's own code.

L1: a call under a live lease gets its result from the client that holds it, or none: by its own deadline, or with its
run.
L2: a lease ends when it is released or expires, and not before. A client-side call times out when its own deadline has
passed, when its lease has expired and the run's rule ends it then, or when the run's time budget is used up.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from campaigns.simulation.policies import Logged
from campaigns.simulation.trace import require
from weftline.kernel.control import CallClaimed, CallUnclaimed, LeaseRule
from weftline.kernel.entries import CallAsked, CallClosed, CallOpened, Limits, RunCreated, TimerFired, TurnCompleted
from weftline.kernel.policy import CapReached


class _Held(Struct):
    """What is known about one call."""

    once: bool = False
    deadline: int | None = None
    token: str = ""
    """The token of the last claim."""
    until: int | None = None
    """None if no client holds it."""
    offers: int = 1


class _Log(Struct):
    limits: Limits = Limits()
    now: int = 0
    out_of_time: bool = False
    """The time budget is used up. Client-side calls without an answer are closed then; no later turn has calls."""
    calls: dict[str, _Held] = field(default_factory=dict[str, _Held])


def check_leases(log: Sequence[Logged]) -> None:
    """Raises `Violation` if a claimed call was answered by anyone but its holder, or the lease was ended early."""
    seen = _Log()
    for entry in log:
        match entry.head:
            case RunCreated() as head:
                seen.limits = head.limits
            case TimerFired() as head:
                seen.now = max(seen.now, head.now)
            case TurnCompleted() as head:
                seen.calls = {call.id: _Held(call.effect == "once") for call in head.calls}
            case CallAsked() as head:
                seen.calls[head.call.id] = _Held(head.call.effect == "once")
            case CallOpened(client=str()) as head:
                if head.timeout_us is not None:
                    seen.calls[head.id].deadline = entry.at + head.timeout_us
            case CallClaimed() as head:
                _claimed(seen.calls[head.id], head, entry.at)
            case CallUnclaimed() as head:
                _unclaimed(seen, seen.calls[head.id], head)
            case CapReached(reason="time_budget"):
                seen.out_of_time = True  # P3 checks whether it is
            case CallClosed() as head if head.id in seen.calls:
                _closed(seen, seen.calls[head.id], head)
            case _:
                pass


def _claimed(held: _Held, head: CallClaimed, at: int) -> None:
    if head.renewed:
        require("L1", held.token == head.token, f"{head.id} was renewed by a client that does not have it")
    else:
        free = held.until is None or held.token == head.token
        require("L1", free, f"{head.id} was claimed by two clients at once")
    held.token, held.until = head.token, at + head.lease_us


def _unclaimed(seen: _Log, held: _Held, head: CallUnclaimed) -> None:
    require("L2", held.until is not None, f"{head.id} was taken from nobody")
    if head.cause == "released":
        held.token = ""
    else:
        require("L2", held.until is not None and held.until <= seen.now, f"{head.id} was taken away too early")
        require("L2", not held.once, f"{head.id} may happen once, and is offered again")
    held.until = None
    rule = seen.limits.leases or LeaseRule()
    if head.fallback:
        known = rule.on_lost == "fallback" and head.fallback in rule.fallbacks.values()
        require("L2", known, f"{head.id} fell to {head.fallback}, which the run does not name")
        held.token = ""
    else:
        require(
            "L2", head.attempt == held.offers + 1, f"offer {held.offers} of {head.id} is followed by {head.attempt}"
        )
        held.offers = head.attempt


def _closed(seen: _Log, held: _Held, head: CallClosed) -> None:
    if head.lease:
        require("L1", held.token == head.lease, f"{head.id} was answered with a token that is not its holder's")
    elif held.until is not None and head.how in ("returned", "failed"):
        require("L1", False, f"{head.id} was answered by somebody else than the client that has it")
    elif head.client is not None and head.how == "timeout":
        late = held.deadline is not None and held.deadline <= seen.now
        gone = held.until is not None and held.until <= seen.now
        gone = gone and seen.limits.leases is not None and seen.limits.leases.on_lost == "error"
        require("L2", late or gone or seen.out_of_time, f"{head.id} was closed before its time was up")
