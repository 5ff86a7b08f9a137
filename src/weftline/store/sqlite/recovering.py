# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Which runs an owner was recovering when it died: noted before they are touched, charged by the next owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from weftline.store import crashpoints

_CHUNK = 500


def mark_suspects(db: apsw.Connection, keys: Sequence[int], *, group: int, owner_epoch: int) -> None:
    crashpoints.hit(("recovery.marked",), "before")
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        db.execute(
            f"UPDATE runs SET suspect = ?, trial = ? WHERE key IN ({','.join('?' * len(chunk))})",
            (group, owner_epoch, *chunk),
        )


def charge_death(db: apsw.Connection) -> None:
    row: Any = db.execute("SELECT died FROM store").fetchone()
    if row[0] is None:
        return
    dead = (row[0],)
    db.execute(
        "UPDATE runs SET alone = alone + 1, deaths = deaths + 1"
        " WHERE suspect > 0 AND suspect = 1 AND trial = ? AND ended_at IS NULL",
        dead,
    )
    tried = db.execute(
        "SELECT 1 FROM runs WHERE suspect > 0 AND trial = ? AND ended_at IS NULL LIMIT 1", dead
    ).fetchone()
    if tried is None:
        db.execute("UPDATE runs SET alone = 0, deaths = 0 WHERE suspect > 0 AND ended_at IS NULL")
    db.execute("UPDATE store SET died = NULL")
