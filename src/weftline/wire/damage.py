"""What clients read about an unreadable log."""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from msgspec.json import encode

from weftline.errors import LOG_DAMAGED, StoreError, WeftlineError


def unreadable(run_id: str) -> StoreError:
    return StoreError(f"The log of run {run_id} is damaged: its first or last entry cannot be read.", code=LOG_DAMAGED)


def row_damaged(run_id: str, column: str) -> StoreError:
    return StoreError(f"The run {run_id} is damaged: its {column} cannot be read.", code=LOG_DAMAGED)


def session_damaged(session_id: str, what: str) -> StoreError:
    return StoreError(f"The session {session_id} is damaged: {what} cannot be read.", code=LOG_DAMAGED)


def unreadable_event(error: WeftlineError) -> tuple[str, bytes]:
    """Returns the event for an unreadable entry: damaged, or an end that only newer code can read. It is the last of
    its stream.
    """
    payload = {"error": error.message, "code": error.code, "errorClass": "unknown", "retryable": False}
    return "error", encode(payload)


def error_code(damaged: str) -> str | UnsetType:
    """Returns the error code of a list item; `damaged` is its unreadable column, if there is one."""
    return LOG_DAMAGED if damaged else UNSET
