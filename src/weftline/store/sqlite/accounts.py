# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Writing workspaces, and which runs are about to be recovered: plain functions over a connection."""

from __future__ import annotations

import re

import apsw

from weftline.errors import InvalidRequest
from weftline.store import crashpoints
from weftline.store.records import workspaces
from weftline.store.sqlite.database import run_query

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")


def workspace_key(db: apsw.Connection, slug: str, *, now: int) -> int:
    """The workspace's key; creates it when it is new."""
    if not _SLUG.fullmatch(slug):
        raise InvalidRequest(f"{slug!r} is not a workspace slug.")
    return run_query(db, workspaces.ensure(slug, now=now))


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
