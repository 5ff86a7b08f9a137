"""The run, as an agent's own code sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Generic

from msgspec import Struct

from weftline.errors import NotFound, short_traceback
from weftline.text.suggestions import missing_attribute

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from weftline.agent.results import CallRecord
    from weftline.runtime.agent_code.code import Inside

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
    """The caller's id for the exchange that the run is part of; empty if none was given."""
    workspace: str = ""
    metadata: dict[str, Any] = {}
    labels: dict[str, str] = {}
    """What the run was given at its start, for its hooks, policies and tools. A child inherits its parent's."""
    parent: str | None = None
    """The run whose call it executes."""
    parent_agent: str | None = None
    parent_call: str | None = None
    """The id of that call."""
    tool: str | None = None
    tool_args: dict[str, Any] | None = None
    """What was called, and with which arguments."""
    trace_id: str | None = None
    """The trace that its spans belong to; None if the run is not traced."""
    depth: int = 0
    """How many runs there are above it."""


class Entered:
    """Gives a context access to its run, once the run is in memory."""

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
    """`note(text, labels=None)` records a `PlannerNote` about the turn.

    Notes of the last turn are also in the result's `notes`. No model reads them.
    """
    render: Callable[..., str] = _no_prompts
    """`render(id, **data)` returns one of the agent's prompts, or its replacement in this run.

    Raises `ValueError` if there is no such prompt, or data that it needs is missing.
    """
    entered: Entered = _OUTSIDE

    def __repr__(self) -> str:
        return f"<RunContext {self.run.id}>"  # leaves out deps and labels, which should not be printed

    if not TYPE_CHECKING:  # a type checker would assume that every name exists

        def __getattr__(self, name):
            with short_traceback:
                raise missing_attribute("context", self, name)

    @property
    def state(self) -> MutableMapping[str, Any]:
        """Values that the run's hooks and tools keep across turns and processes: JSON by key, of at most 64 KiB each.

        To change a value, assign it.

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
        """The number of model calls that the run has started, including failed and repeated ones."""
        inside = self.entered.inside
        return 0 if inside is None else inside.attempt

    @property
    def time_left_s(self) -> float | None:
        """The rest of the run's time budget, as of the latest entry of its log; None without such a budget."""
        inside = self.entered.inside
        return None if inside is None else inside.time_left_s

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """The run's calls that have a result, in the order of their results.

        A result of more than 65,536 bytes is left out (`result_omitted`); `result_of` has it.
        """
        from weftline.agent.records import record_of

        inside = self.entered.inside
        return () if inside is None else tuple([record_of(call, whole=False) for call in inside.calls])

    def result_of(self, call_id: str) -> CallRecord:
        """Returns a call with its result, whatever its size.

        Raises `NotFound` if the run has no result for this call.
        """
        from weftline.agent.records import record_of

        inside = self.entered.inside
        for call in () if inside is None else inside.calls:
            if call.head.id == call_id:
                return record_of(call)
        raise NotFound(f"The run has no result of a call {call_id!r}.")
