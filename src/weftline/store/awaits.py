"""The questions to people that are currently open, as a store lists them: a projection of the log."""

from __future__ import annotations

from msgspec import Struct

KINDS = ("question", "confirm", "plan", "doubt", "clarification", "deploy", "budget")
"""The kinds of awaits. The first approves nothing, so it stands in for a damaged one."""


class NewAwait(Struct, frozen=True):
    """A question to a person that a run opens. The store lists it until the run closes it."""

    id: str
    workspace: int
    root: int
    """The top-level run, which people know: its own, unless it is a child."""
    kind: str
    opened_at: int
    deadline_at: int | None
    body: bytes
    """The same bytes as in the log."""
    tool: str = ""
    """The tool whose call it is about."""


class OpenAwait(Struct, frozen=True):
    """An open question to a person, with details of its run."""

    run: int
    salt: str
    id: str
    workspace: int
    root: int
    root_salt: str
    thread: int | None
    agent: str | None
    """The agent of the run, or else of the top-level run."""
    name: str
    """The name of the run."""
    kind: str
    opened_at: int
    deadline_at: int | None
    body: bytes
    """Empty if it was not read, because those before it have used up `AwaitFilter.max_bytes`."""
    unread: bool = False
    damaged: str = ""
    """The first damaged column, or ""; see `weftline.store.columns`."""


class AwaitFilter(Struct, frozen=True, kw_only=True):
    """A filter of open awaits, and the place where a page begins: after the run and id in `after`."""

    workspace: int
    after: tuple[int, str] = (0, "")
    limit: int = 50
    max_bytes: int | None = None
    """How many bytes of bodies, which may be large, are read: as many as fit, and always the first unless this is 0."""
    id: str | None = None
    run: int | None = None
    root: int | None = None
    """Only those of this run and, if it is a top-level run, of all runs below it.

    `runtime.reads.below` finds those of any run.
    """
    thread: int | None = None
    agents: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    due_before: int | None = None
    """Only those whose deadline comes before this time."""
    tool: str | None = None
    opened_until: int | None = None
    """Only those that were already open at this time."""
