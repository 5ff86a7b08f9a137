"""Run ids chosen by callers: which are valid, in the library, over HTTP and on the command line."""

from __future__ import annotations

import re

from weftline.errors import Issue, invalid

MAX_CHARS = 128
PATTERN = r"^[A-Za-z0-9_-]+$"
WANTED = f"must have 1 to {MAX_CHARS} letters, digits, '_' and '-'"
_GIVEN = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_CHARS}}}")


def is_possible(run_id: str) -> bool:
    return _GIVEN.fullmatch(run_id) is not None


def require_possible(run_id: str, *, field: str = "run_id") -> None:
    """Raises `InvalidRequest` for an id that no run can have."""
    if not is_possible(run_id):
        raise invalid([Issue(field, WANTED)])
