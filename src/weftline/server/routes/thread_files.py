"""The files of threads: read and written as streams, a chunk at a time, or as JSON.

A stored file is foreign content on the origin of the server's own pages. So browsers get it with a policy that lets it
do nothing, and show only what cannot run script.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Literal
from urllib.parse import quote

from msgspec.json import encode

from weftline.cases import thread_files as cases
from weftline.cases.base import find_thread, require_accepting
from weftline.cases.thread_files import FileModel, ThreadFile
from weftline.errors import WeftlineError
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.bodies import model_body
from weftline.server.case import case
from weftline.server.declared import Body, QueryParameter, RawBytes
from weftline.server.http import NO_SNIFFING, PIECE_BYTES, Headers, Request, Response, StreamedResponse
from weftline.server.router import Route
from weftline.server.routes.lists import CURSOR, LIMIT, one_of, page_limit
from weftline.store.records.thread_files import FileRow
from weftline.wire.attachments import sniffed
from weftline.wire.limits import MAX_BODY_BYTES_WITH_FILES
from weftline.workspace import thread_files as files
from weftline.workspace.thread_contents import Reading, file_too_large
from weftline.workspace.thread_files import About

PATH = "/api/v1/workspaces/{slug}/threads/{threadId}/fs"
_ONE = f"{PATH}/{{*path}}"
logger = logging.getLogger(__name__)
_SHOWN_INLINE = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp", "text/plain", "application/pdf"}
)
_UNSAID = ("", "application/octet-stream", "application/x-www-form-urlencoded")
"""What clients send that were told no media type."""
_SANDBOX: Headers = (NO_SNIFFING, (b"content-security-policy", b"sandbox; default-src 'none'"))
_FORMAT = QueryParameter("format", Literal["json"], "`json`: what is said of the file, with its content in base64.")
_THUMBNAIL = QueryParameter("thumbnail", Literal["1"], "`1`: the thumbnail that the file was written with.")
_MODEL = model_body(FileModel, limit_bytes=MAX_BODY_BYTES_WITH_FILES, or_bytes=True)
_BYTES = Body[bytes](RawBytes)


async def read(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    thread = await find_thread(app, principal, request.params["threadId"])
    path = request.params["path"] or "/"
    thumbnail, as_json = one_of(request, _THUMBNAIL), one_of(request, _FORMAT)
    limit, cursor = page_limit(request), request.query_value("cursor")
    file = await files.stat(app.workspaces, thread, path)
    if file is None:
        raise cases.no_such_file(path)
    if file.is_folder:
        return Response(encode(await cases.folder(app, thread, path, limit=limit, after=cursor)))
    if thumbnail:
        data = await files.thumbnail(app.workspaces, thread, path)
        if data is None:
            raise cases.no_such_file(f"{path}?thumbnail=1")
        return Response(data, headers=_headers(sniffed(data) or "application/octet-stream", file.name))
    if as_json:
        return Response(encode(await cases.with_content(app, thread, file)))
    closing = AsyncExitStack()
    found = await closing.enter_async_context(files.opened(app.workspaces, thread, path))
    if found is None:
        raise cases.no_such_file(path)
    return partial(_send, request, found, closing)


async def _send(request: Request, found: Reading, closing: AsyncExitStack) -> None:
    """Sends a file as it is read: `send` waits while the client does not keep up."""
    file = found.file
    async with closing:
        headers = [(b"x-request-id", request.about.id.encode()), *_headers(file.mime_type, file.name)]
        if file.location is None:
            headers.append((b"content-length", b"%d" % file.size))
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        if request.method != "HEAD":
            try:
                async for chunk in found.pieces:
                    for at in range(0, len(chunk), PIECE_BYTES):
                        piece = chunk[at : at + PIECE_BYTES]
                        await request.send({"type": "http.response.body", "body": piece, "more_body": True})
            except WeftlineError as error:
                logger.warning("the file %s was not sent whole: %s", file.path, error.message)
                raise ConnectionResetError from None  # the client sees that something is missing
        await request.send({"type": "http.response.body", "body": b""})


def _headers(mime_type: str, name: str) -> Headers:
    inline = mime_type.partition(";")[0].strip().lower() in _SHOWN_INLINE
    disposition = f"{'inline' if inline else 'attachment'}; filename*=UTF-8''{quote(name, safe='')}"
    return (
        (b"content-type", mime_type.encode()),
        (b"content-disposition", disposition.encode()),
        (b"cache-control", b"private, no-cache"),
        *_SANDBOX,
    )


async def write(app: App, request: Request, principal: Principal) -> Response:
    """Writes JSON's content, or the body itself if it is not JSON."""
    if _media_type(request) != "application/json":
        return Response(encode(cases.shown(await _write_bytes(app, request, principal, request.pieces()))), status=201)
    thread = await find_thread(app, principal, request.params["threadId"])
    fields, unknown = await request.read(_MODEL)
    warnings = app.unknown_fields.warnings(request, unknown)
    made = await cases.write(app, principal, thread, request.params["path"] or "/", fields)
    made.warnings = warnings
    return Response(encode(made), status=201)


async def replace(app: App, request: Request, principal: Principal) -> Response:
    return Response(encode(cases.shown(await _write_bytes(app, request, principal, request.pieces()))))


async def _write_bytes(app: App, request: Request, principal: Principal, pieces: AsyncIterator[bytes]) -> FileRow:
    """Writes the body, whatever it is, as it arrives."""
    thread = await find_thread(app, principal, request.params["threadId"])
    require_accepting(app, principal)
    size = request.header(b"content-length") or ""
    if size.isdigit() and int(size) > app.workspaces.files.file_bytes:
        raise file_too_large(app.workspaces)
    said = request.header(b"content-type") or ""
    about = About(mime_type="" if _media_type(request) in _UNSAID else said)
    return await files.write(app.workspaces, thread, request.params["path"] or "/", pieces, about=about)


def _media_type(request: Request) -> str:
    return (request.header(b"content-type") or "").partition(";")[0].strip().lower()


_reading = partial(Route, scopes=("sessions:read",), narrowed="its agents")
_writing = partial(Route, scopes=("sessions:write",), narrowed="its agents")

ROUTES = (
    _reading("GET", PATH, **case(cases.index), summary="List the files of a thread, count them or search in them"),
    _reading(
        "GET",
        _ONE,
        read,
        summary="Read a file of a thread, or list a folder",
        query=(_FORMAT, _THUMBNAIL, LIMIT, CURSOR),
        returns=ThreadFile | RawBytes,
        errors=(409, 502),
    ),
    _writing(
        "POST",
        _ONE,
        write,
        summary="Write a file of a thread from JSON or bytes, or make a folder",
        body=_MODEL,
        warns=True,
        returns=ThreadFile,
        status=201,
        errors=(409,),
    ),
    _writing(
        "PUT",
        _ONE,
        replace,
        summary="Write a file of a thread",
        body=_BYTES,
        returns=ThreadFile,
        errors=(409,),
    ),
    _writing("DELETE", _ONE, **case(cases.delete), summary="Remove a file or an empty folder", errors=(400, 409)),
)
