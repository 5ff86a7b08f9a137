# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Long strings of bodies and messages in SQLite: each is a blob of its workspace, referred to by the runs that use it.

A row that was split has the size of the whole body in `size`; other rows have none there, and need no look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from weftline.store.pieces import join, split

# How statements select values that may be split: `whole` is registered by `understand`, and the length of a value is
# known without reading it.
BODY = "CASE WHEN size IS NULL THEN body ELSE whole(run, body) END"
MESSAGE = "CASE WHEN size IS NULL THEN message ELSE whole(run, message) END"
BODY_BYTES = "coalesce(size, length(body))"
MESSAGE_BYTES = "coalesce(size, length(message))"

Piece = tuple[int, str, bytes]
"""The run that has it, its id and its content."""

_PIECE = (
    "SELECT blobs.data FROM run_blobs JOIN blobs ON blobs.workspace = run_blobs.workspace AND blobs.id = run_blobs.blob"
    " WHERE run_blobs.run = ? AND run_blobs.blob = ?"
)


def understand(db: apsw.Connection) -> None:
    """Registers the function with which statements of this connection read whole bodies."""

    def whole(*row: Any) -> bytes:
        run, body = row

        def find(id: str) -> bytes | None:
            row: Any = db.execute(_PIECE, (run, id)).fetchone()
            return row[0] if row else None

        return join(body, find)

    db.create_scalar_function("whole", whole, 2)


def keep(db: apsw.Connection, pieces: Sequence[Piece]) -> None:
    """Adds the pieces that the store does not have yet. Their runs must exist already."""
    for run, id, data in pieces:
        # One by one: they are few and large.
        db.execute(
            "INSERT INTO blobs (workspace, id, data) SELECT workspace, ?, ? FROM runs WHERE key = ?"
            " ON CONFLICT DO NOTHING",
            (id, data, run),
        )
        db.execute(
            "INSERT INTO run_blobs (run, workspace, blob) SELECT key, workspace, ? FROM runs WHERE key = ?"
            " ON CONFLICT DO NOTHING",
            (id, run),
        )


def split_messages(db: apsw.Connection, messages: Sequence[bytes], *, run: int) -> list[tuple[bytes, int | None]]:
    """The messages that a run adds to its thread, as they are stored, each with its size if it was split."""
    rows: list[tuple[bytes, int | None]] = []
    for message in messages:
        parts = split(message)
        if parts is None:
            rows.append((message, None))
            continue
        keep(db, [(run, id, data) for id, data in parts.pieces.items()])
        rows.append((parts.body, parts.size))
    return rows
