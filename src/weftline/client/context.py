"""The call, as a tool handler sees it."""

from __future__ import annotations

import threading
from time import monotonic


class ToolContext:
    """The context of a call, for handlers with a parameter of this type; the model does not see that parameter.

    `cancelled` turns true when the answer is no longer wanted: the run has ended or the call's time is up. A handler in
    a thread cannot be stopped, so a long one should check it now and then.
    """

    __slots__ = ("_cancelled", "_until", "name", "run_id", "session_id", "tool_use_id")

    def __init__(
        self, *, run_id: str, tool_use_id: str, name: str, session_id: str | None = None, timeout_s: float | None = None
    ) -> None:
        self.run_id = run_id
        self.session_id = session_id
        self.tool_use_id = tool_use_id
        self.name = name
        self._cancelled = threading.Event()
        self._until = None if timeout_s is None else monotonic() + timeout_s

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def seconds_left(self) -> float | None:
        """The time until the tool's `timeout_s` is over; None if it has none."""
        return None if self._until is None else max(0.0, self._until - monotonic())

    def cancel(self) -> None:
        self._cancelled.set()
