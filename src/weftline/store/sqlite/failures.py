# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The meaning of a SQLite error for the write or read that failed."""

from __future__ import annotations

import apsw

from weftline.errors import StoreError, WeftlineError
from weftline.store.outcomes import Moved, already_there, impossible, moved_on
from weftline.store.rows import Written


class Fenced(Exception):
    """Another process took over the store; this one must stop."""


def failure(error: Exception) -> Written:
    """Returns how to treat a write that failed on its own: retry later, decide again, or give up."""
    if isinstance(error, Moved):
        return moved_on()
    if isinstance(error, apsw.ConstraintError):
        return Written("conflict", error=already_there(error))
    if isinstance(error, _REFUSALS):
        return Written("refused", error=_refusal(error))
    return impossible(error)


def write_error(error: apsw.Error) -> WeftlineError:
    """The error to raise for a failed write of records."""
    if isinstance(error, apsw.ConstraintError):
        return already_there(error)
    if isinstance(error, _REFUSALS):
        return _refusal(error)
    return StoreError(f"The write was not possible: {error}.", code="internal_error")


def read_error(error: apsw.Error | UnicodeDecodeError) -> StoreError:
    """The error to raise for a failed read. SQLite returns texts as they are stored; only a damaged one is not
    UTF-8.
    """
    if isinstance(error, UnicodeDecodeError):
        return StoreError("The store is damaged: a text in it is not UTF-8.")
    return StoreError(f"The store cannot be read: {error}.")


def _refusal(error: Exception) -> StoreError:
    return StoreError(f"The store is not accepting writes at the moment: {error}.", code="unavailable")


_REFUSALS = (
    apsw.FullError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.ReadOnlyError,
    apsw.IOError,
    apsw.CantOpenError,
    apsw.NoMemError,
    apsw.InterruptError,
)
