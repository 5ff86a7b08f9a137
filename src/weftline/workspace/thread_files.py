"""The files of a thread: a tree of names in the store. No path of it reaches a file system.

Contents are stored once in a workspace, under their SHA-256. A large one is written in several transactions before a
last one gives it its name, so a file is there whole or not at all, and a write that is cut off leaves the earlier file.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from weftline.errors import Conflict, NotFound, QuotaExceeded, invalid_field
from weftline.store.database import Query
from weftline.store.records import thread_files as rows
from weftline.store.records.thread_files import CHUNK_BYTES, FileRow, Stored, joined
from weftline.store.records.threads import ThreadRow
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.workspace import threads
from weftline.workspace.context import Workspaces
from weftline.workspace.thread_contents import (
    Reading,
    Upload,
    contents_of,
    file_too_large,
    reading,
    release,
    small_content,
)
from weftline.workspace.thread_locations import fetched, sealed

MAX_PATH_BYTES = 1_024
MAX_LEVELS = 64
MAX_NAME_BYTES = 255
MAX_METADATA_BYTES = 8 * 1024
MAX_THUMBNAIL_BYTES = CHUNK_BYTES
MAX_PIXELS = 1_000_000
ATTACHMENTS = "/attachments"
"""The folder of files that messages and results name."""
_BYTES = "application/octet-stream"
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MIME_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}(?: ?; ?{_TOKEN}={_TOKEN})*")
"""Without quoted values: a header with a comma means two types to browsers."""
ROOT = FileRow(folder="/", name="")


class Place(NamedTuple):
    """Where a file is. The root has no name."""

    folder: str
    name: str

    @property
    def path(self) -> str:
        return joined(self.folder, self.name)

    @property
    def above(self) -> list[Place]:
        """The folders on the way to it, from the root on, which is left out."""
        parts = self.folder.split("/")[1:] if self.folder != "/" else []
        return [Place("/" + "/".join(parts[:depth]), name) for depth, name in enumerate(parts)]


def place_of(path: str) -> Place:
    """Reads a path: `a`, `/a` and `/x/../a` are one file. Raises `InvalidRequest` for what names none."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise invalid_field("path", "must be Unicode text.") from None
    if not path:
        raise invalid_field("path", "must not be empty.")
    if size > MAX_PATH_BYTES:
        raise invalid_field("path", f"has more than {MAX_PATH_BYTES:,} bytes.")
    if any(character < " " or character == "\x7f" for character in path):
        raise invalid_field("path", "must not have control characters.")
    if "%2f" in path.lower():
        raise invalid_field("path", "must not have an escaped slash: %2F is part of no name.")
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise invalid_field("path", "leads above the root.")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    if len(parts) > MAX_LEVELS:
        raise invalid_field("path", f"has more than {MAX_LEVELS} levels.")
    if any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise invalid_field("path", f"has a name of more than {MAX_NAME_BYTES} bytes.")
    return Place("/" + "/".join(parts[:-1]), parts[-1]) if parts else Place("/", "")


class About(Struct, frozen=True, kw_only=True):
    """What is said of a file besides its content."""

    mime_type: str = ""
    """Guessed from the name if it is empty."""
    width: int | None = None
    height: int | None = None
    metadata: Mapping[str, Any] = {}
    thumbnail: bytes | None = None


_NOTHING = About()


# Writing


async def write(
    at: Workspaces,
    thread: ThreadRow,
    path: str,
    data: bytes | AsyncIterable[bytes],
    *,
    about: About = _NOTHING,
    replaces: bool = True,
) -> FileRow:
    """Writes a file, in place of an earlier one, and the folders above it. It is durable on return.

    Unless it `replaces`, an earlier file with other content is left as it is, which raises `Conflict` too.
    Raises `InvalidRequest`, `Conflict` if a folder is there or a file is on the way, and `QuotaExceeded`.
    """
    place = place_of(path)
    file = described(place, about)
    if isinstance(data, bytes) and len(data) > at.files.file_bytes:
        raise file_too_large(at)
    await at.records.read(_writable(thread.key, place))
    upload = Upload(at, thread.workspace)
    used: int | None = None
    released: list[int] = []
    try:
        await upload.take(data)

        def query() -> Query[FileRow]:
            content = yield from upload.finish()
            before = None if replaces else (yield from _find(thread.key, place))
            if before is not None and before.content != content:
                raise Conflict(f"{place.path} is another file.")
            now = at.clock.now_us()
            linked = replace(file, content=content, size=upload.size, created_at=now)
            return (yield from link(at, thread, linked, thumbnail=about.thumbnail, released=released))

        stored = await at.records.write(query())
        used = stored.content
    finally:
        await upload.settle(used)
    await contents_of(at).remove(released)
    return stored


async def register(
    at: Workspaces, thread: ThreadRow, path: str, location: str, size: int, *, about: About = _NOTHING
) -> FileRow:
    """Writes a file whose content is at an address, from which it is read each time. Raises as `write` does."""
    place = place_of(path)
    if not 0 <= size <= at.files.file_bytes:
        raise invalid_field("size", f"must be between 0 and {at.files.file_bytes:,}.")
    stored, shown = sealed(at, thread, place.path, location)
    file = replace(
        described(place, about), location=stored, shown_location=shown, size=size, created_at=at.clock.now_us()
    )
    released: list[int] = []
    await at.records.write(link(at, thread, file, thumbnail=about.thumbnail, released=released))
    await contents_of(at).remove(released)
    return file


def described(place: Place, about: About) -> FileRow:
    """The row of a file without its content. Raises `InvalidRequest`."""
    if not place.name:
        raise Conflict("/ is a folder.")
    for name, value in (("width", about.width), ("height", about.height)):
        if value is not None and not 0 < value <= MAX_PIXELS:
            raise invalid_field(name, f"must be between 1 and {MAX_PIXELS:,}.")
    if about.thumbnail is not None and len(about.thumbnail) > MAX_THUMBNAIL_BYTES:
        raise QuotaExceeded(
            f"A thumbnail has at most {MAX_THUMBNAIL_BYTES:,} bytes.", limit="thumbnail", max=MAX_THUMBNAIL_BYTES
        )
    mime_type = about.mime_type or guessed(place.name) or _BYTES
    if len(mime_type) > MAX_NAME_BYTES or not _MIME_TYPE.fullmatch(mime_type):
        raise invalid_field("mime_type", "must be a media type, such as text/plain.")
    return FileRow(
        folder=place.folder,
        name=place.name,
        mime_type=mime_type,
        metadata=_metadata(about.metadata),
        width=about.width,
        height=about.height,
    )


def link(
    at: Workspaces, thread: ThreadRow, file: FileRow, *, thumbnail: bytes | None, released: list[int]
) -> Query[FileRow]:
    """Gives a content its name; what nothing names because of it is added to `released`."""
    place = Place(file.folder, file.name)
    yield from _writable(thread.key, place)
    before = yield from rows.find(thread.key, *place)
    folders = yield from _make(thread.key, place.above, now=file.created_at)
    if thumbnail is not None:
        file = replace(file, thumbnail=(yield from small_content(at, thread.workspace, thumbnail)))
    more = (yield from _stored(file)) - (0 if before is None else (yield from _stored(before)))
    yield from _charge(at, thread, files=folders + (before is None), bytes=more)
    yield from rows.put(thread.key, file)
    if before is not None:
        released += yield from _release(before)
    return file


async def make_folder(at: Workspaces, thread: ThreadRow, path: str) -> FileRow:
    """Makes a folder, and those above it. One that is there is returned. Raises `Conflict` for a file."""
    place = place_of(path)
    now = at.clock.now_us()

    def query() -> Query[FileRow]:
        yield from threads.open_row(thread.key)
        made = yield from _make(thread.key, [*place.above, place] if place.name else [], now=now)
        yield from _charge(at, thread, files=made, bytes=0)
        return (yield from _find(thread.key, place)) or ROOT

    return await at.records.write(query())


async def remove_folder(at: Workspaces, thread: ThreadRow, path: str) -> bool:
    """Removes an empty folder; returns False if there is none. Raises `Conflict` for a file, or if it is not empty."""
    place = place_of(path)
    if not place.name:
        raise Conflict("The root cannot be removed.")

    def query() -> Query[bool]:
        yield from threads.open_row(thread.key)
        file = yield from rows.find(thread.key, *place)
        if file is None:
            return False
        if not file.is_folder:
            raise Conflict(f"{place.path} is a file.")
        if (yield from rows.entries(thread.key, place.path, after="", limit=1)):
            raise Conflict(f"The folder {place.path} is not empty.")
        yield from rows.remove(thread.key, file)
        yield from rows.use(thread.workspace, thread.key, files=-1, bytes=0)
        return True

    return await at.records.write(query())


async def remove_file(at: Workspaces, thread: ThreadRow, path: str) -> bool:
    """Removes a file; returns False if there is none. Raises `Conflict` for a folder."""
    place = place_of(path)

    def query() -> Query[tuple[bool, list[int]]]:
        yield from threads.open_row(thread.key)
        file = yield from _find(thread.key, place)
        if file is None:
            return False, []
        if file.is_folder:
            raise Conflict(f"{place.path} is a folder.")
        yield from rows.use(thread.workspace, thread.key, files=-1, bytes=-(yield from _stored(file)))
        yield from rows.remove(thread.key, file)
        return True, (yield from _release(file))

    removed, released = await at.records.write(query())
    await contents_of(at).remove(released)
    return removed


# Reading


async def stat(at: Workspaces, thread: ThreadRow, path: str) -> FileRow | None:
    """What is said of a file or folder; None if there is none."""
    return await at.records.read(_find(thread.key, place_of(path)))


@asynccontextmanager
async def opened(at: Workspaces, thread: ThreadRow, path: str) -> AsyncGenerator[Reading | None]:
    """Opens a file; None if there is none. Raises `Conflict` for a folder."""
    place = place_of(path)

    def find() -> Query[FileRow | None]:
        file = yield from _find(thread.key, place)
        if file is not None and file.is_folder:
            raise Conflict(f"{place.path} is a folder.")
        return file

    async with reading(at, find) as found:
        if found is None or found.file.location is None:
            yield found
            return
        async with fetched(at, thread, found.file) as pieces:
            yield Reading(found.file, pieces)


async def read(at: Workspaces, thread: ThreadRow, path: str) -> bytes | None:
    """All of a file; None if there is none. Raises `LocationUnavailable` if its content is elsewhere."""
    async with opened(at, thread, path) as found:
        return None if found is None else b"".join([piece async for piece in found.pieces])


async def entries(
    at: Workspaces, thread: ThreadRow, path: str, *, after: str = "", limit: int | None = None
) -> list[FileRow]:
    """What is directly in a folder. Raises `NotFound`, and `Conflict` for a file."""
    place = place_of(path)

    def query() -> Query[list[FileRow]]:
        folder = yield from _find(thread.key, place)
        if folder is None:
            raise NotFound(f"There is no folder {place.path}.")
        if not folder.is_folder:
            raise Conflict(f"{place.path} is a file.")
        most = at.files.thread_files if limit is None else limit
        return (yield from rows.entries(thread.key, place.path, after=after, limit=most))

    return await at.records.read(query(), heavy=True)


async def thumbnail(at: Workspaces, thread: ThreadRow, path: str) -> bytes | None:
    """The thumbnail that the file was written with; None if there is none."""
    place = place_of(path)

    def query() -> Query[bytes | None]:
        file = yield from _find(thread.key, place)
        if file is None or file.thumbnail is None:
            return None
        return (yield from rows.chunk(file.thumbnail, 0)) or b""

    return await at.records.read(query())


async def totals(at: Workspaces, thread: ThreadRow) -> Stored:
    """The number and size of all files of a thread."""
    return await at.records.read(rows.totals(thread.key), heavy=True)


async def attach(at: Workspaces, thread: ThreadRow, name: str, data: bytes, *, mime_type: str) -> FileRow:
    """Writes a file of this name below `/attachments`, with a number if there is another one."""
    place = place_of(f"{ATTACHMENTS}/{name}")
    if place.folder != ATTACHMENTS:
        raise invalid_field("name", "must be the name of a file.")
    stem, dot, suffix = place.name.rpartition(".")
    for number in range(1, at.files.thread_files + 2):
        numbered = f"{stem}-{number}.{suffix}" if stem and dot else f"{place.name}-{number}"
        path = joined(ATTACHMENTS, place.name if number == 1 else numbered)
        try:
            return await write(at, thread, path, data, about=About(mime_type=mime_type), replaces=False)
        except Conflict as error:
            if error.code != "conflict":
                raise
    raise Conflict(f"There are too many files like {place.path}.")


# Parts


def _find(thread: int, place: Place) -> Query[FileRow | None]:
    if not place.name:
        return ROOT
    return (yield from rows.find(thread, *place))


def _writable(thread: int, place: Place) -> Query[None]:
    """Raises `Conflict` if a file cannot be written here."""
    yield from threads.open_row(thread)
    for folder in place.above:
        found = yield from rows.find(thread, *folder)
        if found is None:
            break
        if not found.is_folder:
            raise Conflict(f"{folder.path} is a file: nothing can be below it.")
    found = yield from rows.find(thread, *place)
    if found is not None and found.is_folder:
        raise Conflict(f"{place.path} is a folder.")


def _make(thread: int, folders: Sequence[Place], *, now: int) -> Query[int]:
    """Makes those folders that are not there; returns how many."""
    made = 0
    for place in folders:
        found = yield from rows.find(thread, *place)
        if found is None:
            yield from rows.put(thread, FileRow(folder=place.folder, name=place.name, created_at=now))
            made += 1
        elif not found.is_folder:
            raise Conflict(f"{place.path} is a file.")
    return made


def _charge(at: Workspaces, thread: ThreadRow, *, files: int, bytes: int) -> Query[None]:
    limits = at.files
    fits = yield from rows.use(
        thread.workspace,
        thread.key,
        files=files,
        bytes=bytes,
        max_files=limits.thread_files,
        max_bytes=limits.thread_bytes,
    )
    if fits:
        return
    used = yield from rows.used(thread.workspace, thread.key)
    if used.files + files > limits.thread_files:
        most = limits.thread_files
        raise QuotaExceeded(f"A thread keeps at most {most:,} files and folders.", limit="file_count", max=most)
    most = limits.thread_bytes
    raise QuotaExceeded(f"The files of a thread have at most {most:,} bytes.", limit="files", max=most)


def _stored(file: FileRow) -> Query[int]:
    """How much a file counts: what is stored of it, with its thumbnail."""
    own = 0 if file.content is None else file.size
    return own if file.thumbnail is None else own + (yield from rows.size_of(file.thumbnail))


def _release(file: FileRow) -> Query[list[int]]:
    return [*(yield from release(file.content)), *(yield from release(file.thumbnail))]


def _metadata(given: Mapping[str, Any]) -> bytes:
    try:
        data = canonical_value(dict(given))
    except NotCanonical as error:
        raise invalid_field("metadata", f"is not JSON: {error}.") from None
    if len(data) > MAX_METADATA_BYTES:
        most = MAX_METADATA_BYTES
        raise QuotaExceeded(f"The metadata of a file has at most {most:,} bytes.", limit="metadata", max=most)
    return data


def guessed(path: str) -> str:
    """The media type that the name of a file suggests, if any."""
    return _types().guess_type(path)[0] or ""


@cache
def _types() -> mimetypes.MimeTypes:
    """The types that Python knows, whatever the machine has besides."""
    return mimetypes.MimeTypes()
