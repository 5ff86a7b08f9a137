"""Files whose content is elsewhere: only their address is stored, encrypted, and dialled when they are read.

The address may come from a model, so it is dialled under the rules for the server's own requests to foreign pages. It
may hold a credential, so it is shown without one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from weftline.errors import WeftlineError, invalid_field
from weftline.net.address import InvalidAddress, display_url, parse
from weftline.net.errors import RequestFailed
from weftline.store.records.thread_files import FileRow
from weftline.store.records.threads import ThreadRow
from weftline.workspace.context import Workspaces

MAX_LOCATION_CHARS = 8 * 1024
READ_S = 300.0


class LocationUnavailable(WeftlineError):
    """The content of a file is elsewhere, and cannot be read there."""

    default_code = "location_unavailable"


def sealed(at: Workspaces, thread: ThreadRow, path: str, location: str) -> tuple[bytes, str]:
    """Returns an address as it is stored, and as it may be shown. Raises `InvalidRequest`."""
    if len(location) > MAX_LOCATION_CHARS:
        raise invalid_field("location", f"has more than {MAX_LOCATION_CHARS:,} characters.")
    try:
        parse(location)
        data = location.encode()
    except InvalidAddress as error:
        raise invalid_field("location", f"cannot be used: {error}") from None
    except UnicodeEncodeError:
        raise invalid_field("location", "must be Unicode text.") from None
    return at.vault.seal(data, place=_place(thread, path)), display_url(location)


@asynccontextmanager
async def fetched(at: Workspaces, thread: ThreadRow, file: FileRow) -> AsyncGenerator[AsyncIterator[bytes]]:
    """The content of a file that is elsewhere. Raises `LocationUnavailable`, also while it is read."""
    assert file.location is not None
    if at.dialer is None:
        raise LocationUnavailable("This process does not read files that are elsewhere; ask the server.")
    url = at.vault.open(file.location, place=_place(thread, file.path)).decode()
    try:
        async with at.dialer.of(thread.workspace).request("GET", url, timeout_s=READ_S) as reply:
            if not 200 <= reply.status < 300:
                raise LocationUnavailable(f"{file.shown_location} answers with {reply.status}.")
            yield _bounded(at, file, reply.chunks())
    except RequestFailed as error:
        raise LocationUnavailable(error.message) from None


async def _bounded(at: Workspaces, file: FileRow, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    left = at.files.file_bytes
    try:
        async for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise LocationUnavailable(f"{file.shown_location} has more than {at.files.file_bytes:,} bytes.")
            yield piece
    except RequestFailed as error:
        raise LocationUnavailable(error.message) from None


def _place(thread: ThreadRow, path: str) -> str:
    return f"file:{thread.key}:{path}"
