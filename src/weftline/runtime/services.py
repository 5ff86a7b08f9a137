"""The needs of a command from an engine, and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct, field

from weftline.plan import RunPlan
from weftline.runtime.clock import Clock
from weftline.runtime.live import Draft
from weftline.runtime.tasks import LargeSteps
from weftline.work.deadlines import Deadlines

SLOW_TURN_S = 60.0
"""Model and tool calls that take longer are logged."""


class Services(Struct, frozen=True):
    store_id: str
    """Part of every idempotency key: another store means another timeline."""
    clock: Clock
    deadlines: Deadlines
    model_timeout_s: float
    model_retries_timeout_s: float
    """For all attempts of a turn at one model together."""
    slow_turn_us: float = SLOW_TURN_S * 1_000_000
    large: LargeSteps = field(default_factory=LargeSteps)
    public_errors: Mapping[str, str] = {}
    """What clients read about runs that failed, by error code, instead of the original message."""


class Outcome(Struct, frozen=True):
    """The outcome of a command, for the engine to append if the run still waits for it.

    `attempt` is that of a server-side call (see `accepts`); `notes` are observations that precede the fact.
    """

    draft: Draft
    attempt: int = 0
    notes: tuple[tuple[str, list[bytes]], ...] = ()
    child: RunPlan | None = None
    """The plan of the run that executes the call, if the fact begins one."""


class NotStarted(asyncio.CancelledError):
    """The cancellation of a command that has done nothing yet. `outcome` is for a run that does not try it again."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class Sink(Protocol):
    """Where a command sends its output while it runs."""

    async def permit(self, *, all: bool = False) -> None:
        """Returns when a model may be called: everything that a request must not run ahead of is durable, or `all` that
        was appended to the run.
        """
        ...

    async def durable(self) -> None:
        """Returns when everything appended to the run so far is durable."""
        ...

    def emit(self, kind: str, lines: bytes, count: int = 1) -> None:
        """Appends observations of one kind. `lines` are their bodies, joined by newlines."""
        ...

    def wanted(self) -> bool:
        """Returns True if the command's outcome is still wanted."""
        ...

    def take(self, outcome: Outcome) -> bool:
        """Appends a request of a running command. Returns False if the run does not accept it."""
        ...

    def full(self) -> bool:
        """Returns True if so much is waiting to be written that the source should wait for `durable`."""
        ...
