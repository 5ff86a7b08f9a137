"""What a store knows of the questions to people that are open at the moment: a projection of the log."""

from __future__ import annotations

from msgspec import Struct

KINDS = ("question", "confirm", "plan", "doubt", "clarification", "deploy", "budget")
"""What is asked for; the first is the one that approves nothing."""


class NewAwait(Struct, frozen=True):
    """A question to a person that a run opens. The store lists it until the run closes it."""

    id: str
    workspace: int
    root: int
    """The run at the top, which people know: its own, unless it is a child."""
    kind: str
    opened_at: int
    deadline_at: int | None
    body: bytes
    """As in the log."""
    tool: str = ""
    """Whose call it is about."""


class OpenAwait(Struct, frozen=True):
    """A question to a person, with what is known of its run."""

    run: int
    salt: str
    id: str
    workspace: int
    root: int
    root_salt: str
    thread: int | None
    agent: str | None
    """Of the run, or else of the run at the top."""
    name: str
    """Of the run."""
    kind: str
    opened_at: int
    deadline_at: int | None
    body: bytes
    """Empty if it was not read: those before it have filled `AwaitFilter.max_bytes`."""
    unread: bool = False
    damaged: str = ""
    """The column that cannot be what was written, if there is one; see `weftline.store.columns`."""


class AwaitFilter(Struct, frozen=True, kw_only=True):
    """What a page of open awaits must match, and where it begins: after the run and id in `after`."""

    workspace: int
    after: tuple[int, str] = (0, "")
    limit: int = 50
    max_bytes: int | None = None
    """How much is read of the bodies, which may be large: as many as fit, the first in any case unless this is 0."""
    id: str | None = None
    run: int | None = None
    root: int | None = None
    """Those of this run and, if it is at the top, of all runs below it; `runtime.below` knows those of any run."""
    thread: int | None = None
    agents: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    due_before: int | None = None
    """Only those whose deadline comes before this time."""
    tool: str | None = None
    opened_until: int | None = None
    """Only those that were open at this time already."""
