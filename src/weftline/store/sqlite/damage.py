# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Finds damage: in the structure of the file, in its values, and in what SQLite ignores of the write-ahead log."""

from __future__ import annotations

import logging
import os
import struct
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import apsw
from msgspec import Raw, Struct
from msgspec.json import Decoder

from weftline.errors import StoreError
from weftline.kernel.bodies import decode_created, decode_message
from weftline.kernel.damage import UNREADABLE, fact_is_readable, observations_are_readable
from weftline.kernel.entries import FORMAT
from weftline.kernel.state import FOLD, decode_state
from weftline.plan import decode_content
from weftline.store.rows import Unreadable
from weftline.store.sqlite.connection import damaged
from weftline.store.sqlite.directory import WAL
from weftline.store.sqlite.pieces import BODY, MESSAGE

logger = logging.getLogger(__name__)

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
        raise damaged(path, str(error)) from None
    except apsw.Error as error:
        raise StoreError(f"The store {path} cannot be read: {error}.") from None
    finally:
        if until_s is not None:
            db.set_progress_handler(None)
    if found != [("ok",)]:
        raise damaged(path, " ".join(str(found[0][0]).split()))
    return True


_decode_any = Decoder(dict[str, Raw]).decode

# Texts are read as bytes, because apsw raises on those that are not UTF-8. Rows written by newer code are not checked.
_ENTRIES = (
    f"SELECT runs.key, CAST(runs.salt AS BLOB), seq, CAST(kind AS BLOB), head, {BODY}"
    " FROM entries JOIN runs ON runs.key = entries.run WHERE runs.format <= ?"
)
_DELTAS = (
    "SELECT runs.key, CAST(runs.salt AS BLOB), seq, CAST(kind AS BLOB), bodies, count"
    " FROM deltas JOIN runs ON runs.key = deltas.run WHERE runs.format <= ?"
)
_RUNS = (
    "SELECT key, CAST(salt AS BLOB), CAST(metadata AS BLOB), CASE WHEN fold = ?2 THEN state ELSE x'' END"
    " FROM runs WHERE format <= ?1"
)
_MESSAGES = (
    f"SELECT runs.key, CAST(runs.salt AS BLOB), pos, {MESSAGE} FROM thread_messages"
    " JOIN runs ON runs.key = thread_messages.run WHERE runs.format <= ?"
)
_SPECS = (
    "SELECT 'session', CAST(name AS BLOB), spec, CAST(metadata AS BLOB) FROM threads"
    " UNION ALL SELECT 'agent', CAST(name AS BLOB), spec, CAST(metadata AS BLOB) FROM agents"
    " UNION ALL SELECT 'tool', CAST(name AS BLOB), spec, x'7b7d' FROM tools"
)
_BLOBS = "SELECT CAST(id AS BLOB), data FROM blobs"


def unreadable(db: apsw.Connection) -> Iterator[Unreadable]:
    """Everything in the store that should be JSON of ours and is not, and the attachments whose content has changed.

    Damage that turns a value into another valid one is not noticed.
    """
    for key, salt, seq, kind, head, body in _rows(db, _ENTRIES, FORMAT):
        readable = fact_is_readable(_text(kind), head, body)
        if not readable or (seq == 1 and not _decodes(_plan, body)):
            yield Unreadable(f"entry {seq}", key, _text(salt))
    for key, salt, seq, kind, bodies, count in _rows(db, _DELTAS, FORMAT):
        if not observations_are_readable(_text(kind), bodies, count):
            yield Unreadable(f"entry {seq}", key, _text(salt))
    for key, salt, metadata, state in _rows(db, _RUNS, FORMAT, FOLD):
        if not _decodes(_decode_any, metadata) or (state and not _decodes(decode_state, state)):
            yield Unreadable("the row", key, _text(salt))
    for key, salt, pos, message in _rows(db, _MESSAGES, FORMAT):
        if not _decodes(decode_message, message):
            yield Unreadable(f"message {pos}, in its session,", key, _text(salt))
    for kind, name, spec, metadata in _rows(db, _SPECS):
        if not _decodes(_decode_any, spec) or not _decodes(_decode_any, metadata):
            yield Unreadable(f"the {kind} {_text(name)!r}")
    for id, data in _rows(db, _BLOBS):
        if sha256(data).hexdigest() != _text(id):
            yield Unreadable(f"the attachment or long text {_text(id)}")


def _rows(db: apsw.Connection, query: str, *values: int) -> Any:
    return db.execute(query, values)


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")


def _plan(created: bytes) -> object:
    return decode_content(decode_created(created).plan)


def _decodes(decode: Callable[[bytes], object], stored: bytes) -> bool:
    try:
        decode(stored)
    except UNREADABLE:
        return False
    return True


_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
_NATIVE = "<" if sys.byteorder == "little" else ">"
_LEAF = 13
"""The type of a page with rows of a table."""


class Dropped(Struct):
    """The end of a write-ahead log that SQLite ignores although it was acknowledged."""

    frames: int
    commits: int
    pages: list[bytes]
    perhaps_old: bool
    """The header is damaged. A crash can leave that too, while SQLite starts a log again; then its frames were already
    copied to the database.
    """


def report_dropped(db: apsw.Connection, path: Path, *, forget: bool = True) -> None:
    """Says in the log what SQLite has just dropped, if anything. Nothing may have been written since it was opened.

    With `forget`, empties the log then. Otherwise what is left of them is reported again after the next crash.
    """
    try:
        dropped = _find_dropped(path / WAL, used=_frames_used(db), page_size=_one(db, "PRAGMA page_size"))
        if dropped is None:
            return
        missing, cut = _runs_lost(db, dropped.pages)
        if dropped.perhaps_old and not missing + cut:
            return
        logger.error(
            "the write-ahead log of the store %s is damaged: SQLite has dropped %d acknowledged commits (%d frames)."
            " As far as can be seen, %d runs are lost, and %d others have lost their latest entries",
            path,
            dropped.commits,
            dropped.frames,
            missing,
            cut,
        )
        if forget:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except (apsw.Error, OSError) as error:
        raise StoreError(f"The store {path} cannot be opened: {error}.") from None


def _frames_used(db: apsw.Connection) -> int:
    _one(db, "SELECT count(*) FROM sqlite_schema")  # recovers the log
    frames, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    return max(frames, 0)


def _one(db: apsw.Connection, query: str) -> int:
    row: Any = db.execute(query).fetchone()
    return row[0]


def _find_dropped(wal: Path, *, used: int, page_size: int) -> Dropped | None:
    """Returns the frames after the first `used` ones. Only headers are read unless there is something.

    Opening this file is safe: SQLite's locks are on others.
    """
    if not wal.exists():
        return None
    size = _FRAME.size + page_size
    with wal.open("rb") as file:
        count = (os.fstat(file.fileno()).st_size - _HEADER.size) // size
        if count <= used:
            return None
        header = file.read(_HEADER.size)
        magic, *_, _, salt, other_salt, first, second = _HEADER.unpack(header)
        order = "<>"[magic & 1] if magic & ~1 == _MAGIC else _NATIVE
        whole = _checksum(header[:24], order, (0, 0)) == (first, second)

        def frame(number: int) -> tuple[bytes, tuple[int, ...]]:
            file.seek(_HEADER.size + number * size)
            start = file.read(_FRAME.size)
            return start, _FRAME.unpack(start)

        salts = (salt, other_salt) if whole else frame(0)[1][2:4]
        before: tuple[int, ...] = (0,) * 6
        commits = last = 0
        proven = False
        for number in range(used, count):
            start, found = frame(number)
            if found[2:4] != salts:
                before = (0,) * 6
                continue
            if before[1] and not proven:
                proven = _checksum(start[:8] + file.read(page_size), order, before[4:]) == found[4:]
            if found[1]:
                commits, last = commits + 1, number
            before = found
        if not proven:
            return None
        pages = [file.read(page_size) for number in range(used, last + 1) if frame(number)[1][2:4] == salts]
    return Dropped(last + 1 - used, commits, pages, perhaps_old=not whole)


def _checksum(data: bytes, order: str, before: tuple[int, ...]) -> tuple[int, int]:
    first, second = before
    numbers = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(numbers[::2], numbers[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _runs_lost(db: apsw.Connection, pages: list[bytes]) -> tuple[int, int]:
    """Returns the number of runs in these pages that the database does not have, and of those that it knows in an older
    version.
    """
    columns = [name for (name,) in db.execute("SELECT name FROM pragma_table_info('runs')")]
    if "next_seq" not in columns:
        return 0, 0
    at = columns.index("next_seq")
    latest: dict[int, int] = {}
    for page in pages:
        for key, values in rows_in(page, columns=len(columns)):
            seq = values[at] if at < len(values) else 0
            latest[key] = max(latest.get(key, 0), seq if isinstance(seq, int) else 0)
    missing = cut = 0
    for key, seq in latest.items():
        row: Any = db.execute("SELECT next_seq FROM runs WHERE key = ?", (key,)).fetchone()
        missing += row is None
        cut += row is not None and row[0] < seq
    return missing, cut


def rows_in(page: bytes, *, columns: int) -> Iterator[tuple[int, list[int | None]]]:
    """The rows with that many columns in a page of a table: the key, and the values as far as they are integers and in
    the page. Ends at the first that is damaged.
    """
    if page[0] != _LEAF:
        return
    try:
        for number in range(int.from_bytes(page[3:5])):
            at = int.from_bytes(page[8 + 2 * number : 10 + 2 * number])
            _, at = _varint(page, at)
            key, start = _varint(page, at)
            size, at = _varint(page, start)
            kinds: list[int] = []
            while at < start + size:
                kind, at = _varint(page, at)
                kinds.append(kind)
            if len(kinds) == columns:
                yield key, list(_integers(page, at, kinds))
    except IndexError:
        return


_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


def _integers(page: bytes, at: int, kinds: list[int]) -> Iterator[int | None]:
    for kind in kinds:
        size = _INTEGER_BYTES.get(kind, 8 if kind == 7 else max(0, kind - 12) // 2)
        if at + size > len(page):
            return
        whole = kind in _INTEGER_BYTES
        yield int.from_bytes(page[at : at + size], signed=True) if whole else kind - 8 if kind in (8, 9) else None
        at += size


def _varint(page: bytes, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = page[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | page[at], at + 1
