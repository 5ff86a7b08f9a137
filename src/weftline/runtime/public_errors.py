"""What clients read about a failed run, and what its operator's log says."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Final, get_args

from msgspec.structs import replace

from weftline.failure import Cause
from weftline.kernel import bodies
from weftline.kernel.budgeting import STOPPED, UNPRICED
from weftline.kernel.entries import CallClosed, Fact, RunEnded
from weftline.kernel.policy import FinalReason
from weftline.kernel.seating import SESSION_FAILED
from weftline.providers.base import ErrorClass
from weftline.runtime.live import Draft, WorkingSet
from weftline.text.redaction import REDACTED
from weftline.tools.results import causes_of
from weftline.trace_context import current_run, fields

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


CODES: Final = frozenset(
    {
        *get_args(ErrorClass),
        *get_args(FinalReason),
        STOPPED,
        UNPRICED,
        "agent_error",
        "await_expired",
        "invalid_output",
        "local_timeout",
        "nobody_to_ask",
        SESSION_FAILED,
        "worker_error",
    }
)
"""The error codes of runs."""
_MAX_CAUSE_CHARS = 2_000
_CREDENTIAL = re.compile(
    r"(?i)\b(?:(?:bearer|basic)\s+[\w.~+/=-]{8,}|(?:sk|pk|key|token|secret)[-_=:]\s*[\w.~+/-]{8,})"
)


def in_public(facts: Sequence[Draft], texts: Mapping[str, str]) -> Sequence[Draft]:
    """The facts that end a run, with the operator's text instead of its error."""
    last = facts[-1]
    if type(last.head) is not RunEnded or last.head.status != "failed" or last.head.code not in texts:
        return facts
    ended = bodies.decode_ended(last.body)
    ended.error, ended.full = texts[last.head.code], ended.full or ended.error
    return (*facts[:-1], replace(last, body=bodies.encode(ended)))


def in_private(body: bytes) -> bytes:
    """The body of the entry that ended a run, with the original error instead of the operator's text."""
    ended = bodies.decode_ended(body)
    if not ended.full:
        return body
    ended.error, ended.full = ended.full, ""
    return bodies.encode(ended)


def kept_causes(error: BaseException) -> tuple[Cause, ...]:
    """The causes of an error, for readers of the log: the nearest first, without anything that looks like a
    credential.
    """
    return tuple(
        [Cause(one.type, _CREDENTIAL.sub(REDACTED, one.message)[:_MAX_CAUSE_CHARS]) for one in causes_of(error)]
    )
