# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Looks for values that cannot be read. SQLite checks the structure of a file, not the values stored in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import apsw
from msgspec import Raw
from msgspec.json import Decoder

from weftline.kernel.bodies import decode_created, decode_message
from weftline.kernel.damage import UNREADABLE, fact_is_readable, observations_are_readable
from weftline.kernel.entries import FORMAT
from weftline.kernel.state import FOLD, decode_state
from weftline.plan import decode_content
from weftline.store.copies import Unreadable
from weftline.store.sqlite.pieces import BODY, MESSAGE

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
