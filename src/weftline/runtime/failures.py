"""Logs what went wrong with a run, for the server's operator."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from weftline.kernel import bodies
from weftline.kernel.entries import CallClosed, Fact, RunEnded
from weftline.log_context import current_run, fields
from weftline.runtime.live import WorkingSet

logger = logging.getLogger(__name__)


def report_failure(work: WorkingSet, head: RunEnded, body: bytes) -> None:
    """Logs the end of a run that failed.

    It is called by the commit, so that there is exactly one line, whatever made the run fail.
    """
    ended = bodies.decode_ended(body)
    error = ended.full or ended.error
    token = current_run.set(work)  # a commit belongs to many runs
    code, model = head.code or "error", head.model
    extra = fields(run=work.run_id, code=code, provider=model.provider or None, model=model.id or None)
    logger.warning("run %s failed: %s: %.300s", work.run_id, code, error, extra=extra)
    current_run.reset(token)


def report_doubts(work: WorkingSet, facts: Sequence[Fact]) -> None:
    """Logs each call that a commit has closed as in doubt, since somebody has to find out whether it happened."""
    for head in facts:
        if type(head) is CallClosed and head.how == "in_doubt":
            token = current_run.set(work)
            logger.warning(
                "run %s: the call %s of the tool %s is in doubt: it was cut off, and may or may not have happened",
                work.run_id,
                head.id,
                head.name,
                extra=fields(run=work.run_id, tool=head.name, call=head.id),
            )
            current_run.reset(token)
