"""The outcomes of writes, in the same words for every store."""

from __future__ import annotations

from weftline.errors import Conflict, WeftlineError
from weftline.store.base import Write, Written


def moved_on() -> Written:
    """The run row has changed since the version that the write is based on."""
    return Written("conflict", error=Conflict("The run has moved on.", code="conflict"))


def already_there(what: object) -> Conflict:
    return Conflict(f"This already exists: {what}.", code="conflict")


def refused_by_thread(format: int | None, write: Write) -> Written | None:
    """Why a thread does not accept a run: it has ended (`format` is None), or newer code has written to it."""
    if format is None:
        return Written("failed", error=Conflict("This session has ended.", code="thread_ended"))
    if format > write.format:
        message = "A newer version of Weftline has continued this session."
        return Written("failed", error=Conflict(message, code="unsupported_run"))
    return None


def impossible(reason: object) -> Written:
    """No store could apply this write."""
    return Written("failed", error=WeftlineError(f"The write was not possible: {reason}.", code="internal_error"))


def ends_run(write: Write) -> bool:
    """Whether this write has the terminal entry of a run that ran here, not an imported one."""
    ends = write.ended_at is not None and bool(write.items) and write.items[-1].kind == "run.ended"
    return ends and not write.imported
