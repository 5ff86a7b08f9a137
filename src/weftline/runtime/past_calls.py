"""The calls of a run that have a result, and what is counted about them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from weftline.failure import Hint
from weftline.kernel.bodies import ClosedBody
from weftline.kernel.entries import CallClosed, How
from weftline.messages import Assistant, Message
from weftline.runtime.agent_code.code import PastCall

_NOT_COUNTED = frozenset[How](
    {"blocked", "denied", "skipped", "not_run", "cancelled", "budget", "loop", "repeat_of_doubt", "excluded", "cap"}
)


class PastCalls(Struct, eq=False, gc=False):
    ids: dict[str, None] = {}
    """The ids of all calls in the conversation, with a result or without."""
    closed: int = 0
    """How many calls have a result."""
    counts: dict[str, int] = {}
    """How often each tool was called: executed, answered in its place, unknown or invalid."""
    unavailable: tuple[str, ...] = ()
    """The tools that were called since the policy engine was last asked, and did not exist or were not allowed."""
    last_hint: Hint | None = None
    """What would help after the latest call that failed."""
    _results: list[PastCall] | None = None

    @property
    def results(self) -> list[PastCall]:
        """The calls that have a result, in the order in which they got it. The list grows."""
        if self._results is None:
            self._results = []
        return self._results

    def add_ids(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if type(message) is Assistant:
                self.ids |= dict.fromkeys([call.id for call in message.calls])

    def close(self, head: CallClosed, closed: ClosedBody, args: bytes) -> None:
        self.closed += 1
        self.results.append(
            PastCall(
                head,
                args,
                closed.parts,
                closed.failure,
                closed.telemetry,
                closed.bounds,
                closed.server_data,
                closed.child,
            )
        )
        if head.how in ("unknown", "excluded"):
            self.unavailable = (*self.unavailable, head.name)
        if head.how not in _NOT_COUNTED:
            self.counts[head.name] = self.counts.get(head.name, 0) + 1
