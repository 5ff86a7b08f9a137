"""The line that a failed run leaves in the server's log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from weftline.kernel import bodies
from weftline.kernel.entries import RunEnded
from weftline.log_context import current_run
from weftline.runtime.live import Draft, WorkingSet

logger = logging.getLogger(__name__)


def report_failure(work: WorkingSet, drafts: Sequence[Draft]) -> None:
    """Logs the end of a run if it failed. `drafts` are the facts of the commit that ended it.

    It hangs on the commit, so that there is exactly one line, whatever made the run fail.
    """
    for draft in drafts:
        if type(draft.head) is RunEnded and draft.head.status == "failed":
            error = bodies.decode_ended(draft.body).error
            token = current_run.set(work)  # a commit belongs to many runs
            logger.warning("run %s failed: %s: %.300s", work.run_id, draft.head.code or "error", error)
            current_run.reset(token)
