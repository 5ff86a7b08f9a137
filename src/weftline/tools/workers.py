"""The threads of this process for tools that block; what they refuse is a result that the model reads."""

from __future__ import annotations

import os

from weftline import prompts
from weftline.tools.base import ToolFailed
from weftline.work.threads import Threads


class NoThread(ToolFailed):
    """No thread could be started for a call, so that it has done nothing."""


class ToolWorkers(Threads):
    """Threads for tools; `run` raises `ToolFailed` for calls that are refused."""

    def no_thread(self) -> NoThread:
        return NoThread(prompts.remote.NO_THREAD, kind="unavailable")

    def too_many_stuck(self, count: int) -> ToolFailed:
        return ToolFailed(prompts.remote.too_many_stuck(count))


_shared: list[ToolWorkers] = []


def shared_workers() -> ToolWorkers:
    """Returns the pool of this process."""
    if not _shared:
        _shared.append(ToolWorkers())
    return _shared[0]


os.register_at_fork(after_in_child=_shared.clear)  # the threads, and any lock that they hold, are the parent's
