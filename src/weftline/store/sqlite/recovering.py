# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Records which runs an owner is recovering, before it touches them, so that the next owner can charge a death to
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from weftline.store import crashpoints

_CHUNK = 500


def begin_trial(db: apsw.Connection, keys: Sequence[int], *, owner_epoch: int) -> None:
    crashpoints.hit(("recovery.marked",), "before")
    _set_trial(db, keys, owner_epoch)


def end_trial(db: apsw.Connection, keys: Sequence[int]) -> None:
    _set_trial(db, keys, 0)


def survived(db: apsw.Connection, keys: Sequence[int], *, owner_epoch: int) -> None:
    _set_trial(db, keys, -owner_epoch)


def _set_trial(db: apsw.Connection, keys: Sequence[int], trial: int) -> None:
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        db.execute(f"UPDATE runs SET trial = ? WHERE key IN ({','.join('?' * len(chunk))})", (trial, *chunk))


def charge_death(db: apsw.Connection) -> None:
    row: Any = db.execute("SELECT died FROM store").fetchone()
    if row[0] is None:
        return
    dead = row[0]
    if tried := _on_trial(db, dead):
        db.executemany("UPDATE runs SET suspect = ? WHERE key = ?", [(len(tried), key) for key in tried])
        if len(tried) == 1:
            db.execute("UPDATE runs SET alone = alone + 1, deaths = deaths + 1 WHERE key = ?", (tried[0],))
    elif survivors := _on_trial(db, -dead):
        changes = [(len(survivors), key) for key in survivors]
        db.executemany("UPDATE runs SET suspect = ?, deaths = deaths + 1 WHERE key = ?", changes)
    else:
        db.execute("UPDATE runs SET alone = 0, deaths = 0 WHERE deaths > 0 AND ended_at IS NULL")
    db.execute("UPDATE store SET died = NULL")


def _on_trial(db: apsw.Connection, trial: int) -> list[int]:
    rows: list[Any] = db.execute("SELECT key FROM runs WHERE trial = ? AND ended_at IS NULL", (trial,)).fetchall()
    return [row[0] for row in rows]
