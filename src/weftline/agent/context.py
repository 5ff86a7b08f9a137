"""What an agent's own code knows about the run that it is asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic

from msgspec import Struct

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    DepsT = TypeVar("DepsT", default=object)
else:
    from typing import TypeVar

    DepsT = TypeVar("DepsT")


class RunInfo(Struct, frozen=True, kw_only=True):
    """A run, as its agent's deps are made for it."""

    id: str
    agent: str | None = None
    thread_id: str | None = None
    workspace: str = ""
    metadata: dict[str, Any] = {}
    labels: dict[str, str] = {}
    """What it was given when it began, for its hooks, policies and tools. A child run has its parent's."""
    parent: str | None = None
    """The run whose call it carries out."""
    depth: int = 0
    """How many runs there are above it."""


def _nobody_listens(text: str, labels: Mapping[str, str] | None = None) -> None:
    return None


def _no_prompts(id: str, /, **data: object) -> str:
    raise ValueError(f"the agent has no prompt {id!r}.")


class RunContext(Struct, Generic[DepsT], frozen=True):
    """The run that a hook or a function for instructions is called for, with the agent's deps."""

    run: RunInfo
    deps: DepsT
    note: Callable[..., None] = _nobody_listens
    """`note(text, labels=None)` puts something on record about the turn: a `PlannerNote` of the run, and one of the
    `notes` of its result if the turn is the last one. No model reads it.
    """
    render: Callable[..., str] = _no_prompts
    """`render(id, **data)` is the text of one of the agent's prompts, or of what stands in for it in this run. Raises
    `ValueError` if there is none, or something that it needs is not given.
    """
