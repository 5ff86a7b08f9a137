# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Looks for damage before anything depends on the store."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import apsw

from weftline.errors import StoreError

CHECK_S = 1.0
"""How long this may delay a start: enough for a few hundred megabytes."""
_STEPS = 1000
"""SQLite VM instructions between two checks of the clock."""


def find_damage(db: apsw.Connection, *, path: Path, limit_s: float | None = None, thorough: bool = False) -> bool:
    """Raises `StoreError` if it finds damage. Returns whether everything was checked in time.

    With `thorough`, also checks the indexes.
    """
    until_s = None if limit_s is None else monotonic() + limit_s
    if until_s is not None:
        db.set_progress_handler(lambda: monotonic() > until_s, _STEPS)
    try:
        found: Any = db.execute(f"PRAGMA {'integrity_check' if thorough else 'quick_check'}(1)").fetchall()
    except apsw.InterruptError:
        if until_s is None:
            raise
        return False
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise _damaged(path, str(error)) from None
    except apsw.Error as error:
        raise StoreError(f"The store {path} cannot be read: {error}.") from None
    finally:
        if until_s is not None:
            db.set_progress_handler(None)
    if found != [("ok",)]:
        raise _damaged(path, " ".join(str(found[0][0]).split()))
    return True


def _damaged(path: Path, what: str) -> StoreError:
    return StoreError(
        f"The store {path} is damaged: {what.rstrip('.')}. Move it aside and restore a backup,"
        " or copy what can be read with `weftline salvage`."
    )
