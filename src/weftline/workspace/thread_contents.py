"""The contents of files: written in bounded memory, read while they are replaced, removed when nothing names them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakKeyDictionary

from msgspec import Struct

from weftline.errors import LOG_DAMAGED, QuotaExceeded, StoreError
from weftline.store.database import Database, Query
from weftline.store.records import thread_files as rows
from weftline.store.records.thread_files import CHUNK_BYTES, FileRow
from weftline.workspace.context import Workspaces


class Contents:
    """What this process reads and is about to remove of one store. Nothing is removed while somebody reads it."""

    def __init__(self, records: Database) -> None:
        self._records = records
        self._read = Counter[int]()
        self._unnamed = set[int]()

    @contextmanager
    def reading(self, content: int) -> Generator[None]:
        self._read[content] += 1
        try:
            yield
        finally:
            self._read[content] -= 1

    async def remove(self, contents: Iterable[int] = ()) -> None:
        """Removes contents that nothing names, and those that could not be removed earlier. What is left when the
        process ends goes at the next start.
        """
        self._unnamed.update(contents)
        for content in [one for one in self._unnamed if not self._read[one]]:
            self._unnamed.discard(content)
            del self._read[content]
            try:
                while not await self._records.write(rows.remove_chunks(content)):
                    pass
            except BaseException as error:
                self._unnamed.add(content)
                if not isinstance(error, StoreError):
                    raise


_of_stores = WeakKeyDictionary[Database, Contents]()


def contents_of(at: Workspaces) -> Contents:
    found = _of_stores.get(at.records)
    if found is None:
        found = _of_stores[at.records] = Contents(at.records)
    return found


class Upload:
    """A content that is being written, a chunk at a time. `finish` belongs into the transaction that names it."""

    def __init__(self, at: Workspaces, workspace: int) -> None:
        self.size = 0
        self._at = at
        self._workspace = workspace
        self._digest = hashlib.sha256()
        self._last = bytearray()
        """What is not written yet: the last chunk, or all of a small content."""
        self._content: int | None = None
        self._chunks = 0

    async def take(self, data: bytes | AsyncIterable[bytes]) -> None:
        """Writes all but the last chunk. Raises `QuotaExceeded`."""
        if isinstance(data, bytes):
            await self._take_all(data)
        else:
            async for piece in data:
                await self._take_all(piece)

    async def _take_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest := self.take_some(rest):
            await self._flush()

    def take_some(self, data: bytes | memoryview) -> memoryview:
        """Takes what fits into a chunk, and returns the rest."""
        rest = memoryview(data)
        room = CHUNK_BYTES - len(self._last)
        piece, rest = rest[:room], rest[room:]
        self.size += len(piece)
        if self.size > self._at.files.file_bytes:
            raise file_too_large(self._at)
        self._digest.update(piece)
        self._last += piece
        return rest

    async def _flush(self) -> None:
        data, self._last = bytes(self._last), bytearray()

        def query() -> Query[int]:
            content = self._content
            if content is None:
                content = yield from rows.begin_content(self._workspace)
            yield from self._charged(content, data)
            return content

        self._content = await self._at.records.write(query())
        self._chunks += 1

    def _charged(self, content: int, data: bytes) -> Query[None]:
        yield from charge_workspace(self._at, self._workspace, len(data))
        yield from rows.add_chunk(content, self._chunks, data)

    def finish(self) -> Query[int]:
        """Returns the content, or an equal one that the workspace has already."""
        sha256 = self._digest.digest()
        content = yield from rows.find_content(self._workspace, sha256)
        if content is None:
            content = self._content
            if content is None:
                content = yield from rows.begin_content(self._workspace)
            if self._last:
                yield from self._charged(content, bytes(self._last))
            yield from rows.keep_content(content, sha256)
        return content

    async def settle(self, used: int | None = None) -> None:
        """Removes what was written, unless it is the content that is now `used`."""
        if self._content is not None and self._content != used:
            await contents_of(self._at).remove((self._content,))


def small_content(at: Workspaces, workspace: int, data: bytes) -> Query[int]:
    """Stores a content of one chunk, or finds it."""
    upload = Upload(at, workspace)
    upload.take_some(data)
    return upload.finish()


def charge_workspace(at: Workspaces, workspace: int, size: int) -> Query[None]:
    limit = at.files.workspace_bytes
    if not (yield from rows.use(workspace, 0, files=0, bytes=size, max_bytes=limit)):
        raise QuotaExceeded(
            f"The files of a workspace have at most {limit:,} bytes.", limit="workspace_files", max=limit
        )


def release(content: int | None) -> Query[list[int]]:
    """To be called when a file has stopped naming a content. Returns it if it is now to be removed in turns; a small
    one is removed at once.
    """
    size = None if content is None else (yield from rows.release_content(content))
    if content is None or size is None:
        return []
    if size > CHUNK_BYTES:
        return [content]
    yield from rows.remove_chunks(content)
    return []


def file_too_large(at: Workspaces) -> QuotaExceeded:
    limit = at.files.file_bytes
    return QuotaExceeded(f"A file has at most {limit:,} bytes.", limit="file", max=limit)


# Reading


class Reading(Struct, frozen=True):
    """An open file: a consistent pair of what is said of it and its content, whoever replaces it meanwhile."""

    file: FileRow
    pieces: AsyncIterator[bytes]


@asynccontextmanager
async def reading(at: Workspaces, find: Callable[[], Query[FileRow | None]]) -> AsyncGenerator[Reading | None]:
    """Opens the content of the file that `find` finds; None if it finds none. A file without a content is empty."""
    contents = contents_of(at)
    while True:
        file, first = await at.records.read(_with_first_chunk(find()))
        if file is None:
            yield None
            return
        if file.content is None or file.size <= CHUNK_BYTES:
            yield Reading(file, _pieces(at, file, first))
            return
        with contents.reading(file.content):
            if await at.records.read(rows.is_kept(file.content)):
                yield Reading(file, _pieces(at, file, first))
                break
    await contents.remove()  # what was replaced meanwhile


def _with_first_chunk(find: Query[FileRow | None]) -> Query[tuple[FileRow | None, bytes]]:
    file = yield from find
    if file is None or file.content is None or not file.size:
        return file, b""
    return file, (yield from rows.chunk(file.content, 0)) or b""


async def _pieces(at: Workspaces, file: FileRow, first: bytes) -> AsyncGenerator[bytes]:
    n, size, piece = 0, 0, first
    while piece:
        size += len(piece)
        yield piece
        if size >= file.size or file.content is None:
            break
        n += 1
        piece = await at.records.read(rows.chunk(file.content, n))
    if size != file.size and file.content is not None:
        raise StoreError(f"The file {file.path} is damaged: a part of its content is missing.", code=LOG_DAMAGED)
