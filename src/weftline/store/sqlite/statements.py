# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The statements of a flush: one multi-row statement per table, never row by row.

Each step of a statement releases the GIL, so going row by row would let a busy loop starve the writer. Rows are split
into powers of two, so that only a few distinct statements are ever prepared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import TypeVar

import apsw

from weftline.store.database import SqlValue

Row = TypeVar("Row")

_LARGEST = 256

INSERT_ENTRIES = ("INSERT INTO entries (run, seq, at, kind, head, body) VALUES ", 6, "")
INSERT_SPLIT_ENTRIES = ("INSERT INTO entries (run, seq, at, kind, head, body, size) VALUES ", 7, "")
INSERT_DELTAS = ("INSERT INTO deltas (run, seq, count, at, kind, bodies) VALUES ", 6, "")
INSERT_RUNS = (
    "INSERT INTO runs (key, salt, workspace, thread, place, name, agent, metadata, status, created_at, started_at,"
    " ended_at, next_seq, version, epoch, due_at, rules, fold, state_seq, state, secrets, format, family) VALUES ",
    23,
    "",
)
UPDATE_RUNS = (
    "WITH v (key, base_seq, base_version, next_seq, version, epoch, due_at, status, started_at, ended_at, state, fold,"
    " progress, format) AS (VALUES ",
    14,
    ") UPDATE runs SET format = v.format, next_seq = v.next_seq, version = v.version, epoch = v.epoch,"
    " due_at = CASE WHEN v.due_at = -1 THEN runs.due_at ELSE v.due_at END,"
    " status = v.status, started_at = coalesce(runs.started_at, v.started_at),"
    " ended_at = coalesce(runs.ended_at, v.ended_at),"
    " state = coalesce(v.state, runs.state),"
    " state_seq = CASE WHEN v.state IS NULL THEN runs.state_seq ELSE v.next_seq - 1 END,"
    " fold = CASE WHEN v.state IS NULL THEN runs.fold ELSE v.fold END,"
    " secrets = CASE WHEN v.ended_at IS NULL THEN runs.secrets END,"
    " alone = CASE WHEN v.progress THEN 0 ELSE runs.alone END,"
    " suspect = CASE WHEN v.progress = 2 THEN 0 ELSE runs.suspect END,"
    " trial = CASE WHEN v.progress = 2 THEN 0 ELSE runs.trial END"
    " FROM v WHERE runs.key = v.key AND runs.next_seq = v.base_seq AND runs.version = v.base_version"
    " AND runs.epoch <= v.epoch",
)
INSERT_RUN_METADATA = ("INSERT INTO run_metadata (workspace, name, value, run) VALUES ", 4, "")
INSERT_BLOBS = ("INSERT INTO blobs (workspace, id, data) VALUES ", 3, " ON CONFLICT DO NOTHING")
INSERT_RUN_BLOBS = ("INSERT INTO run_blobs (run, workspace, blob) VALUES ", 3, "")
INSERT_IDEMPOTENCY = ("INSERT INTO idempotency (workspace, route, key, digest, run, at) VALUES ", 6, "")

Statement = tuple[str, int, str]


def run_many(db: apsw.Connection, statement: Statement, rows: Sequence[tuple[SqlValue, ...]]) -> int:
    """Runs a multi-row statement over all rows; returns how many rows it changed."""
    changed = 0
    for chunk in _chunks(rows):
        sql = _sql(statement, len(chunk))
        db.execute(sql, tuple(chain.from_iterable(chunk)))
        changed += db.changes()
    return changed


@lru_cache(maxsize=256)
def _sql(statement: Statement, rows: int) -> str:
    head, columns, tail = statement
    one = "(" + ",".join("?" * columns) + ")"
    return head + ",".join([one] * rows) + tail


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start, left = 0, len(rows)
    while left:
        size = min(_LARGEST, 1 << (left.bit_length() - 1))
        yield rows[start : start + size]
        start += size
        left -= size
