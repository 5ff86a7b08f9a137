"""Named points at which a process can be made to die as if by SIGKILL; public in `weftline.testing.crash`.

There is one point before and one after each durable write, named after what is written: `turn.completed:before`
is hit when a transaction with such an entry is about to begin, `turn.completed:after` when it is durable and not yet
reported. `WEFTLINE_CRASH=point` kills at the first hit, `WEFTLINE_CRASH=point#3` at the third.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from weftline.kernel.entries import FACTS

WRITES: tuple[str, ...] = (
    *FACTS,
    "deltas",
    "job",
    "recovery.marked",
    "thread.created",
    "thread.ended",
    "value.set",
    "env.set",
    "effect.scheduled",
    "effect.begun",
    "effect.settled",
    "file.chunk",
    "file.linked",
    "key.created",
    "store.opened",
    "store.closed",
)
"""Every kind of durable write. `job` is anything else the writer commits, so that no write can be forgotten."""

POINTS: tuple[str, ...] = tuple(f"{write}:{side}" for write in WRITES for side in ("before", "after"))


class _Armed:
    point: str | None = None
    hits_left: int = 0
    begun: frozenset[str] = frozenset()
    """What the current transaction writes, as declared so far."""


def arm(spec: str | None) -> None:
    """Makes the process die at `spec` (`point` or `point#n`); None disarms."""
    if not spec:
        _Armed.point = None
        return
    point, _, count = spec.partition("#")
    if point not in POINTS:
        raise ValueError(f"there is no crash point named {point!r}")
    _Armed.point, _Armed.hits_left = point, int(count or 1)


def armed() -> bool:
    return _Armed.point is not None


def hit(writes: Iterable[str], side: str) -> None:
    if _Armed.point is None:
        return
    writes = frozenset(writes)
    _Armed.begun = _Armed.begun | writes if side == "before" else frozenset()
    if _Armed.point in {f"{write}:{side}" for write in writes}:
        _Armed.hits_left -= 1
        if _Armed.hits_left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def job_begins() -> None:
    """Called when a job of the writer is about to run; the job may hit further `before` points itself."""
    _Armed.begun = frozenset()
    hit(("job",), "before")


def job_committed() -> None:
    """Called when what the job wrote is durable."""
    hit(_Armed.begun, "after")


arm(os.environ.get("WEFTLINE_CRASH"))
