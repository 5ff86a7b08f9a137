"""Limits on the share of the server that one workspace may use, so that something is left for the others."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from weftline.work.threads import THREADS_PER_WORKSPACE

_FILES_PER_WORKSPACE = 8
"""A workspace's runs may use one in this many file descriptors; each run has at most one model call open."""
_MIN_RUNS = 64


class WorkspaceLimits(Struct, frozen=True, kw_only=True):
    """The fields are server settings; see `docs/settings.md`."""

    max_runs_per_workspace: int = 2048
    """Runs that are driven at once; the rest are queued. A run that waits for a client or a person does not count."""
    max_queued_runs_per_workspace: int = 20_000
    """Runs waiting for a slot, or for earlier runs of their session."""
    max_streams_per_workspace: int = 4000
    """Event streams open at once."""
    max_tool_threads_per_workspace: int = THREADS_PER_WORKSPACE
    """Threads for blocking tools at once; further calls wait."""

    def within_files(self, max_files: int | None) -> WorkspaceLimits:
        """These limits for a process that may open `max_files` descriptors; further runs are queued.

        Otherwise the hanging model calls of one workspace would leave no descriptor for accepting a connection.
        """
        if max_files is None:
            return self
        share = max(_MIN_RUNS, max_files // _FILES_PER_WORKSPACE)
        return replace(self, max_runs_per_workspace=min(self.max_runs_per_workspace, share))
