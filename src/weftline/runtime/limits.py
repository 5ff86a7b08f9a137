"""How much of the server one workspace may use, so that something is left for the others."""

from __future__ import annotations

from msgspec import Struct


class WorkspaceLimits(Struct, frozen=True, kw_only=True):
    """The fields are server settings; see `docs/settings.md`."""

    max_runs_per_workspace: int = 2048
    """Runs that are driven at once; the rest are queued. A run that waits for a client or a person does not count."""
    max_queued_runs_per_workspace: int = 20_000
    """Runs waiting for a slot, or for earlier runs of their session."""
    max_streams_per_workspace: int = 4000
    """Event streams open at once."""
