"""How much of the server one workspace may have, so that there is something left for the others."""

from __future__ import annotations

from msgspec import Struct


class WorkspaceLimits(Struct, frozen=True, kw_only=True):
    """The fields are settings of the server; see `docs/settings.md`."""

    max_runs_per_workspace: int = 2048
    """Runs that are carried out at once; the rest queue. A run that waits for a client or a person is not counted."""
    max_queued_runs_per_workspace: int = 20_000
    """Runs that wait for a place, or for the runs before them in their session."""
    max_streams_per_workspace: int = 4000
    """Event streams that are open at once."""
