"""What an agent's own code knows about the run that it is asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Generic

from msgspec import Struct

from weftline.errors import NotFound

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from weftline.agent.results import CallRecord
    from weftline.runtime.code import Inside

    DepsT = TypeVar("DepsT", default=object)
else:
    from typing import TypeVar

    DepsT = TypeVar("DepsT")


class RunInfo(Struct, frozen=True, kw_only=True):
    """The run that an agent's deps are created for."""

    id: str
    agent: str | None = None
    thread_id: str | None = None
    turn_id: str = ""
    """What whoever began it calls the exchange that it is a part of; "" if nobody said."""
    workspace: str = ""
    metadata: dict[str, Any] = {}
    labels: dict[str, str] = {}
    """What it was given when it began, for its hooks, policies and tools. A child run has its parent's."""
    parent: str | None = None
    """The run whose call it carries out."""
    parent_agent: str | None = None
    parent_call: str | None = None
    """The id of that call."""
    tool: str | None = None
    tool_args: dict[str, Any] | None = None
    """What was called, and with which arguments."""
    trace_id: str | None = None
    """The trace that its spans belong to; None if nobody traces it."""
    depth: int = 0
    """How many runs there are above it."""


class Entered:
    """Where a context looks into its run, once that is in memory."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside: Inside | None = None


_OUTSIDE = Entered()


def _discard(text: str, labels: Mapping[str, str] | None = None) -> None:
    return None


def _no_prompts(id: str, /, **data: object) -> str:
    raise ValueError(f"the agent has no prompt {id!r}.")


class RunContext(Struct, Generic[DepsT], frozen=True):
    """The run that a hook or an instruction function is called for, with the agent's deps."""

    run: RunInfo
    deps: DepsT
    note: Callable[..., None] = _discard
    """`note(text, labels=None)` puts something on record about the turn: a `PlannerNote` of the run, and one of the
    `notes` of its result if the turn is the last one. No model reads it.
    """
    render: Callable[..., str] = _no_prompts
    """`render(id, **data)` is the text of one of the agent's prompts, or of what stands in for it in this run. Raises
    `ValueError` if there is none, or something that it needs is not given.
    """
    entered: Entered = _OUTSIDE

    def __repr__(self) -> str:
        return f"<RunContext {self.run.id}>"  # neither deps nor labels are for whatever prints it

    @property
    def state(self) -> MutableMapping[str, Any]:
        """What the hooks and tools of this run remember, across turns and processes: JSON values by key, of at most
        64 KiB each. A value is changed by assigning it.

        It is stored with the next entry of the log that can hold it, and no other run sees it.
        """
        inside = self.entered.inside
        return {} if inside is None else inside.state

    @property
    def turn(self) -> int:
        """The current turn, counted from 0."""
        inside = self.entered.inside
        return 0 if inside is None else inside.turn

    @property
    def attempt(self) -> int:
        """How many model calls the run has started, including failed and repeated ones."""
        inside = self.entered.inside
        return 0 if inside is None else inside.attempt

    @property
    def time_left_s(self) -> float | None:
        """What is left of the run's time budget, as of the latest entry of its log; None if it has none."""
        inside = self.entered.inside
        return None if inside is None else inside.time_left_s

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """All calls of the run that have a result, in the order in which they got it.

        A result of more than 65,536 bytes is left out (`result_omitted`); `result_of` has it.
        """
        from weftline.agent.records import record_of

        inside = self.entered.inside
        return () if inside is None else tuple([record_of(call, whole=False) for call in inside.calls])

    def result_of(self, call_id: str) -> CallRecord:
        """A call with its result, whatever its size. Raises `NotFound` if the run has no result of such a call."""
        from weftline.agent.records import record_of

        inside = self.entered.inside
        for call in () if inside is None else inside.calls:
            if call.head.id == call_id:
                return record_of(call)
        raise NotFound(f"The run has no result of a call {call_id!r}.")
