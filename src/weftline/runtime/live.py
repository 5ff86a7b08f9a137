"""A run while it is in memory: its folded state, what of it is durable, and what is on its way to the store.

Only runs that are doing something are in memory. A parked run (waiting for a client, a person, a timer) is a row.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import Struct

from weftline.kernel.state import State
from weftline.messages import Usage
from weftline.plan import RunPlan
from weftline.runtime import ids
from weftline.store.base import NewRun, RunWrite

if TYPE_CHECKING:
    from weftline.runtime.toolbox import Toolbox
    from weftline.runtime.transcript import Transcript


def is_being_cancelled() -> bool:
    """Whether somebody cancelled the present task; if not, a `CancelledError` is the failure of what it called."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Waiter(Struct):
    seq: int
    future: asyncio.Future[None]
    requester: bool
    """Somebody outside waits, and is told when the store refuses."""


class LiveRun:
    """`next_seq` and `state` run ahead of the log; `durable` is the last seq that a crash cannot take back."""

    __slots__ = (
        "activated",
        "adopting",
        "attempt_usage",
        "created_at",
        "dropped",
        "due_at",
        "durable",
        "ended_at",
        "failure",
        "flight",
        "key",
        "metadata",
        "new",
        "next_seq",
        "partial",
        "plan",
        "prepared",
        "row_due",
        "row_seq",
        "row_version",
        "salt",
        "scheduled",
        "started_at",
        "state",
        "task",
        "tasks",
        "thread",
        "toolbox",
        "transcript",
        "waiters",
        "wake",
        "workspace",
        "write",
    )

    def __init__(self, key: int, salt: str, *, workspace: int, thread: int | None, created_at: int) -> None:
        self.key = key
        self.salt = salt
        self.workspace = workspace
        self.thread = thread
        self.created_at = created_at
        self.state = State()
        self.next_seq = 1
        self.durable = 0
        self.row_seq = 0
        self.row_version = 0
        self.row_due: int | None = 0
        self.due_at: int | None = 0
        self.started_at: int | None = None
        self.ended_at: int | None = None
        self.new: NewRun | None = None
        self.write: RunWrite | None = None
        self.flight: RunWrite | None = None
        self.waiters: list[Waiter] = []
        self.activated = thread is None
        """False while other runs of the thread are before it in the line."""
        self.adopting = False
        """Taken over from an earlier driver: what that had begun is to be marked as lost first."""
        self.dropped = False
        self.metadata: dict[str, str] = {}

        self.plan: RunPlan | None = None
        self.toolbox: Toolbox | None = None
        self.transcript: Transcript | None = None
        self.prepared: dict[int, Prepared] = {}
        """The calls of the present turn by index, with their final arguments."""
        self.failure = ""
        self.partial = ""
        self.attempt_usage: Usage | None = None
        """What the attempt under way has reported so far."""
        self.scheduled = False
        """Has a driver, or a place in the line for one."""
        self.task: asyncio.Task[None] | None = None
        self.tasks: dict[tuple[int, int, int], asyncio.Task[None]] = {}
        """Calls under way by (turn, index, attempt), when there are several."""
        self.wake: asyncio.Future[None] | None = None

    @property
    def id(self) -> str:
        return ids.run_id(self.key, self.salt)

    @property
    def status(self) -> str:
        state = self.state
        return "queued" if state.status == "running" and not state.attempts else state.status

    @property
    def idle(self) -> bool:
        """Nobody drives it and nothing of it is on its way to the store."""
        return not self.scheduled and self.write is None and self.flight is None

    def poke(self) -> None:
        """Wakes the driver when it waits for several calls at once."""
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


class Prepared(Struct):
    """A call's final arguments, or what is wrong with them."""

    args: bytes
    invalid: str = ""
    """The result that the model reads instead, when the arguments do not fit."""
