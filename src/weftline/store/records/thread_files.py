"""Files of threads, and their contents: each is stored once in a workspace, in chunks, and found by its SHA-256.

A content without a digest is being written, or nothing names it any more; nobody can find it, and its chunks are
removed a few at a time. Writing a large one takes several transactions, none of which holds the writer for long.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from weftline.store import crashpoints
from weftline.store.database import Columns, Query, Row, one, statement

CHUNK_BYTES = 256 * 1024
REMOVED_AT_ONCE = 8
"""How many chunks one transaction removes."""
MAX_USE = 2**62
_COLUMNS = (
    "folder, name, content, size, mime_type, metadata, width, height, thumbnail, location, shown_location, created_at"
)


class FileRow(Struct, frozen=True, kw_only=True):
    folder: str
    name: str
    content: int | None = None
    size: int = 0
    mime_type: str = ""
    metadata: bytes = b"{}"
    """A JSON object."""
    width: int | None = None
    height: int | None = None
    thumbnail: int | None = None
    location: bytes | None = None
    """Where the content is if it is not stored; encrypted for the place `file:<thread>:<path>`."""
    shown_location: str = ""
    """The same, without credentials and the values of its query."""
    created_at: int = 0
    damaged: str = ""
    """The first damaged column, or ""; see `weftline.store.database`."""

    @property
    def path(self) -> str:
        return joined(self.folder, self.name)

    @property
    def is_folder(self) -> bool:
        return self.content is None and self.location is None


class NamedContent(Struct, frozen=True):
    """A file for a search: no more than where it is and what is stored of it."""

    path: str
    content: int | None
    size: int


class Stored(Struct, frozen=True):
    """What a file or a thread takes up."""

    files: int
    bytes: int


def joined(folder: str, name: str) -> str:
    return f"/{name}" if folder == "/" else f"{folder}/{name}"


# Contents


def begin_content(workspace: int) -> Query[int]:
    """Creates an empty content, which nobody finds before `keep_content`."""
    row = yield from one("INSERT INTO contents (workspace, sha256, size) VALUES ($1, NULL, 0) RETURNING key", workspace)
    assert row is not None
    return row[0]


def add_chunk(content: int, n: int, data: bytes) -> Query[None]:
    crashpoints.hit(("file.chunk",), "before")
    yield from statement("INSERT INTO content_chunks (content, n, data) VALUES ($1, $2, $3)", content, n, data)
    yield from statement("UPDATE contents SET size = size + $1 WHERE key = $2", len(data), content)


def find_content(workspace: int, sha256: bytes) -> Query[int | None]:
    row = yield from one("SELECT key FROM contents WHERE workspace = $1 AND sha256 = $2", workspace, sha256)
    return None if row is None else row[0]


def keep_content(content: int, sha256: bytes) -> Query[None]:
    """Lets a content be found, which is complete. The caller links a file to it in the same transaction."""
    yield from statement("UPDATE contents SET sha256 = $1 WHERE key = $2", sha256, content)


def is_kept(content: int) -> Query[bool]:
    row = yield from one("SELECT sha256 IS NOT NULL FROM contents WHERE key = $1", content)
    return row is not None and bool(row[0])


def size_of(content: int) -> Query[int]:
    row = yield from one("SELECT size FROM contents WHERE key = $1", content)
    return 0 if row is None else row[0]


def release_content(content: int) -> Query[int | None]:
    """Returns the size of a content that nothing names any more; None for another one. Nobody finds it then, and its
    chunks can be removed.
    """
    row = yield from one(
        "UPDATE contents SET sha256 = NULL WHERE key = $1"
        " AND NOT EXISTS (SELECT 1 FROM thread_files WHERE content = $1)"
        " AND NOT EXISTS (SELECT 1 FROM thread_files WHERE thumbnail = $1) RETURNING size",
        content,
    )
    return None if row is None else row[0]


def unnamed_contents() -> Query[list[int]]:
    rows = yield from statement("SELECT key FROM contents WHERE sha256 IS NULL ORDER BY key")
    return [row[0] for row in rows]


def remove_chunks(content: int) -> Query[bool]:
    """Removes the last chunks of a content that nothing names; returns True when it is gone."""
    row = yield from one("SELECT workspace FROM contents WHERE key = $1 AND sha256 IS NULL", content)
    if row is None:
        return True
    removed = yield from statement(
        "DELETE FROM content_chunks WHERE content = $1 AND n IN"
        " (SELECT n FROM content_chunks WHERE content = $1 ORDER BY n DESC LIMIT $2) RETURNING length(data)",
        content,
        REMOVED_AT_ONCE,
    )
    yield from use(row[0], 0, files=0, bytes=-sum([one[0] for one in removed]))
    if len(removed) == REMOVED_AT_ONCE:
        return False
    yield from statement("DELETE FROM contents WHERE key = $1", content)
    return True


def chunk(content: int, n: int) -> Query[bytes | None]:
    row = yield from one("SELECT data FROM content_chunks WHERE content = $1 AND n = $2", content, n)
    return None if row is None else row[0]


# Quotas


def used(workspace: int, thread: int) -> Query[Stored]:
    """What a thread uses, or the workspace, for thread 0."""
    row = yield from one("SELECT files, bytes FROM file_use WHERE workspace = $1 AND thread = $2", workspace, thread)
    return Stored(0, 0) if row is None else Stored(*row)


def use(
    workspace: int, thread: int, *, files: int, bytes: int, max_files: int = MAX_USE, max_bytes: int = MAX_USE
) -> Query[bool]:
    """Adds to what is used; returns False, and adds nothing, if it would be more than allowed. Less is always
    allowed.
    """
    if not files and not bytes:
        return True
    row = yield from one(
        "INSERT INTO file_use (workspace, thread, files, bytes) SELECT $1, $2, CAST($3 AS BIGINT), CAST($4 AS BIGINT)"
        " WHERE (CAST($3 AS BIGINT) <= 0 OR CAST($3 AS BIGINT) <= $5)"
        " AND (CAST($4 AS BIGINT) <= 0 OR CAST($4 AS BIGINT) <= $6)"
        " ON CONFLICT (workspace, thread) DO UPDATE"
        " SET files = file_use.files + CAST($3 AS BIGINT), bytes = file_use.bytes + CAST($4 AS BIGINT)"
        " WHERE (CAST($3 AS BIGINT) <= 0 OR file_use.files + CAST($3 AS BIGINT) <= $5)"
        " AND (CAST($4 AS BIGINT) <= 0 OR file_use.bytes + CAST($4 AS BIGINT) <= $6) RETURNING files",
        workspace,
        thread,
        files,
        bytes,
        max_files,
        max_bytes,
    )
    return row is not None


# The tree


def find(thread: int, folder: str, name: str) -> Query[FileRow | None]:
    row = yield from one(
        f"SELECT {_COLUMNS} FROM thread_files WHERE thread = $1 AND folder = $2 AND name = $3", thread, folder, name
    )
    return None if row is None else _file(row)


def entries(thread: int, folder: str, *, after: str, limit: int) -> Query[list[FileRow]]:
    """What is directly in a folder, in the order of the names."""
    rows = yield from statement(
        f"SELECT {_COLUMNS} FROM thread_files WHERE thread = $1 AND folder = $2 AND name > $3 ORDER BY name LIMIT $4",
        thread,
        folder,
        after,
        limit,
    )
    return [_file(row) for row in rows]


def contents_of_files(thread: int) -> Query[list[NamedContent]]:
    """All files of a thread, without folders, in the order of their folders and names."""
    rows = yield from statement(
        "SELECT folder, name, content, size FROM thread_files"
        " WHERE thread = $1 AND (content IS NOT NULL OR location IS NOT NULL) ORDER BY folder, name",
        thread,
    )
    return [NamedContent(joined(row[0], row[1]), row[2], row[3]) for row in rows]


def totals(thread: int) -> Query[Stored]:
    """The number and size of the files of a thread, without folders and thumbnails."""
    row = yield from one(
        "SELECT count(*), coalesce(sum(size), 0) FROM thread_files"
        " WHERE thread = $1 AND (content IS NOT NULL OR location IS NOT NULL)",
        thread,
    )
    assert row is not None
    return Stored(*row)


def put(thread: int, file: FileRow) -> Query[None]:
    crashpoints.hit(("file.linked",), "before")
    yield from statement(
        f"INSERT INTO thread_files (thread, {_COLUMNS})"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
        " ON CONFLICT (thread, folder, name) DO UPDATE SET content = $4, size = $5, mime_type = $6, metadata = $7,"
        " width = $8, height = $9, thumbnail = $10, location = $11, shown_location = $12, created_at = $13",
        thread,
        file.folder,
        file.name,
        file.content,
        file.size,
        file.mime_type,
        file.metadata,
        file.width,
        file.height,
        file.thumbnail,
        file.location,
        file.shown_location,
        file.created_at,
    )


def remove(thread: int, file: FileRow) -> Query[None]:
    yield from statement(
        "DELETE FROM thread_files WHERE thread = $1 AND folder = $2 AND name = $3", thread, file.folder, file.name
    )


def _file(row: Row) -> FileRow:
    names = _COLUMNS.split(", ")
    file, read = FileRow(**dict(zip(names, row, strict=True))), Columns()
    return replace(
        file,
        folder=read.text("folder", file.folder),
        name=read.text("name", file.name),
        mime_type=read.text("mime_type", file.mime_type),
        metadata=read.json("metadata", file.metadata),
        shown_location=read.text("shown_location", file.shown_location),
        created_at=read.time("created_at", file.created_at),
        damaged=read.damaged,
    )
