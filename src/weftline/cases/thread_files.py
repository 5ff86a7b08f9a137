"""The files of a thread, as JSON: folders, what is said of a file, searches. Contents are streamed by their routes."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType
from pydantic import Field

from weftline.api.principal import Principal
from weftline.cases.base import Cursor, Host, Limit, find_thread, require_accepting
from weftline.errors import NotFound, invalid_field
from weftline.store.records.thread_files import FileRow
from weftline.store.records.threads import ThreadRow
from weftline.wire.errors import client_names
from weftline.wire.models import Part
from weftline.wire.responses import JsonObject, Time, Warnings, iso
from weftline.work.heavy import off_loop
from weftline.workspace import thread_files as files
from weftline.workspace.thread_files import About
from weftline.workspace.thread_search import FileLines, find_files, grep_files

MAX_JSON_BYTES = 16 * 1024 * 1024
"""The largest file whose content is shown as JSON. Any file is read as bytes."""


class FileModel(Part):
    """The body that writes a file, or makes a folder."""

    data: str | None = None
    """The content in base64."""
    type: Literal["directory"] | None = None
    location: str | None = None
    """The address of the content, which is read from there each time."""
    size: int = 0
    """Of what is at the location."""
    mime_type: str = Field(default="", alias="mimeType", max_length=255)
    metadata: dict[str, Any] = Field(default_factory=dict)
    width: int | None = None
    height: int | None = None
    thumbnail: str | None = None
    """In base64."""


class ThreadFile(Struct, rename="camel"):
    path: str
    name: str
    mime_type: str
    storage: Literal["local", "url"]
    size: int
    is_directory: bool
    metadata: JsonObject
    width: int | None
    height: int | None
    created_at: Time
    location: str | UnsetType = UNSET
    """Where the content is read from, without credentials and query; left out if it is stored."""
    data: str | UnsetType = UNSET
    """The content in base64, if it is asked for."""
    entries: list[ThreadFile] | UnsetType = UNSET
    """What is directly in a folder."""
    next_cursor: str | UnsetType | None = UNSET
    warnings: Warnings = UNSET


class ThreadRoot(ThreadFile, rename="camel", kw_only=True):
    """The root, with what was asked for: what is in it, or counts, or the results of a search in all folders."""

    file_count: int | UnsetType = UNSET
    total_size: int | UnsetType = UNSET
    matches: list[FileLines] | UnsetType = UNSET
    paths: list[str] | UnsetType = UNSET
    total: int | UnsetType = UNSET


async def index(
    on: Host,
    by: Principal,
    thread_id: str,
    *,
    stats: Annotated[Literal["1"] | None, "`1`: the number and size of all files."] = None,
    grep: Annotated[str | None, "The lines that this regular expression matches."] = None,
    find: Annotated[str | None, "The files that this pattern matches, such as `*.txt`."] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> ThreadRoot:
    thread = await find_thread(on, by, thread_id)
    shown = await folder(on, thread, "/", limit=limit, after=cursor) if not (stats or grep or find) else _root()
    root = ThreadRoot(*[getattr(shown, name) for name in ThreadFile.__struct_fields__])
    if stats:
        totals = await files.totals(on.workspaces, thread)
        root.file_count, root.total_size = totals.files, totals.bytes
    if grep is not None:
        root.matches = await grep_files(on.workspaces, thread, grep)
    if find is not None:
        root.paths = await find_files(on.workspaces, thread, find)
        root.total = len(root.paths)
    return root


async def delete(on: Host, by: Principal, thread_id: str, path: str) -> None:
    """Removes a file, or a folder that is empty."""
    thread = await find_thread(on, by, thread_id)
    on.engine.require_writable()
    found = await files.stat(on.workspaces, thread, path or "/")
    remove = files.remove_folder if found is not None and found.is_folder else files.remove_file
    if not await remove(on.workspaces, thread, path or "/"):
        raise no_such_file(path)


async def folder(on: Host, thread: ThreadRow, path: str, *, limit: int, after: str | None) -> ThreadFile:
    """A folder with a page of what is in it. `after` is the name of the last entry of the page before."""
    found = await files.stat(on.workspaces, thread, path)
    if found is None:
        raise no_such_file(path)
    entries = await files.entries(on.workspaces, thread, path, after=after or "", limit=limit + 1)
    made = shown(found)
    made.entries = [shown(one) for one in entries[:limit]]
    made.next_cursor = entries[limit - 1].name if len(entries) > limit else None
    return made


async def with_content(on: Host, thread: ThreadRow, file: FileRow) -> ThreadFile:
    """A file with its content."""
    if file.size > MAX_JSON_BYTES:
        raise invalid_field("format", f"a file of more than {MAX_JSON_BYTES:,} bytes is not shown as JSON.")
    data = await files.read(on.workspaces, thread, file.path)
    if data is None:
        raise no_such_file(file.path)
    made = shown(file)
    made.data = (await off_loop(partial(b64encode, data), size=len(data))).decode()
    return made


async def write(on: Host, by: Principal, thread: ThreadRow, path: str, fields: FileModel) -> ThreadFile:
    if [fields.data, fields.type, fields.location].count(None) != 2:
        raise invalid_field("data", "give either the content, its location or the type of a folder.")
    require_accepting(on, by)
    if fields.type is not None:
        return shown(await files.make_folder(on.workspaces, thread, path))
    about = About(
        mime_type=fields.mime_type,
        width=fields.width,
        height=fields.height,
        metadata=fields.metadata,
        thumbnail=None if fields.thumbnail is None else await _decoded("thumbnail", fields.thumbnail),
    )
    if fields.location is not None:
        with client_names():
            made = await files.register(on.workspaces, thread, path, fields.location, fields.size, about=about)
    else:
        data = await _decoded("data", fields.data or "")
        with client_names():
            made = await files.write(on.workspaces, thread, path, data, about=about)
    return shown(made)


def shown(file: FileRow) -> ThreadFile:
    return ThreadFile(
        file.path,
        file.name,
        file.mime_type,
        "local" if file.location is None else "url",
        file.size,
        file.is_folder,
        Raw(file.metadata),
        file.width,
        file.height,
        iso(file.created_at),
        file.shown_location or UNSET,
    )


def no_such_file(path: str) -> NotFound:
    return NotFound(f"There is no file /{path.strip('/')}.")


def _root() -> ThreadFile:
    return shown(files.ROOT)


async def _decoded(field: str, text: str) -> bytes:
    try:
        return await off_loop(partial(b64decode, text, validate=True), size=len(text))
    except (NotBase64, ValueError):
        raise invalid_field(field, "is not base64.") from None
