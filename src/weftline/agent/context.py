"""What an agent's own code knows about the run that it is asked about."""

from __future__ import annotations

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


class RunContext(Struct, Generic[DepsT], frozen=True):
    """The run that a hook or a function for instructions is called for, with the agent's deps."""

    run: RunInfo
    deps: DepsT
