"""What the writer of a run hears, in the same words from every store."""

from __future__ import annotations

from weftline.errors import Conflict, WeftlineError
from weftline.store.base import Write, Written


def moved_on() -> Written:
    """The run row is not the one that the write is based on."""
    return Written("conflict", error=Conflict("The run has moved on.", code="conflict"))


def already_there(what: object) -> Conflict:
    return Conflict(f"This already exists: {what}.", code="conflict")


def thread_has_ended() -> Written:
    return Written("failed", error=Conflict("This session has ended.", code="session_ended"))


def impossible(reason: object) -> Written:
    """No store could carry it out."""
    return Written("failed", error=WeftlineError(f"The write was not possible: {reason}.", code="internal_error"))


def ends_run(write: Write) -> bool:
    """Whether this is the write with the terminal entry."""
    return write.ended_at is not None and bool(write.items) and write.items[-1].kind == "run.ended"
