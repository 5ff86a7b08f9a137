# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Writing workspaces and threads: plain functions over a connection, run inside the writer."""

from __future__ import annotations

import re
import secrets

import apsw

from weftline.errors import InvalidRequest
from weftline.store import crashpoints
from weftline.store.sqlite.lists import add_thread_metadata, metadata_rows

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")


def workspace_key(db: apsw.Connection, slug: str, *, now: int) -> int:
    """The workspace's key; creates it when it is new."""
    if not _SLUG.fullmatch(slug):
        raise InvalidRequest(
            f"{slug!r} is no workspace slug: use 1 to 64 lowercase letters, digits, - and _, not - or _ at an end."
        )
    db.execute(
        "INSERT INTO workspaces (slug, name, created_at) VALUES (?, ?, ?) ON CONFLICT (slug) DO NOTHING",
        (slug, slug, now),
    )
    row = db.execute("SELECT key FROM workspaces WHERE slug = ?", (slug,)).fetchone()
    assert row is not None and isinstance(row[0], int)
    return row[0]


def create_thread(
    db: apsw.Connection,
    *,
    workspace: int,
    name: str,
    agent: str | None,
    spec: bytes,
    metadata: str,
    now: int,
    sealed: bytes | None = None,
) -> tuple[int, str]:
    """Creates a thread; returns its key and salt."""
    crashpoints.hit(("thread.created",), "before")
    salt = secrets.token_hex(6)
    db.execute(
        "INSERT INTO threads (salt, workspace, name, agent, spec, metadata, created_at, last_used_at, next_place,"
        " secrets) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, ?)",
        (salt, workspace, name, agent, spec, metadata, now, now, sealed),
    )
    key = db.last_insert_rowid()
    add_thread_metadata(db, metadata_rows(workspace, metadata, key))
    return key, salt


def end_thread(db: apsw.Connection, *, key: int, now: int) -> None:
    """Marks a thread as ended; ending it again changes nothing."""
    crashpoints.hit(("thread.ended",), "before")
    db.execute("UPDATE threads SET ended_at = coalesce(ended_at, ?), secrets = NULL WHERE key = ?", (now, key))


def mark_recovering(db: apsw.Connection, *, keys: list[int], died: bool, tried: bool = True) -> None:
    """Notes, before anything of them is read, that these runs are about to be recovered (`tried`) and that the server
    died while they were in flight (`died`)."""
    crashpoints.hit(("recovery.marked",), "before")
    for start in range(0, len(keys), 500):
        chunk = keys[start : start + 500]
        marks = ",".join("?" * len(chunk))
        db.execute(
            f"UPDATE runs SET recovering = recovering + ?, deaths = deaths + ? WHERE key IN ({marks})",
            (int(tried), int(died), *chunk),
        )
