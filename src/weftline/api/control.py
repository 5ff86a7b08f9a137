"""Administration of a store that a process has open, a server or a script with a durable engine: commands reach the
owner over a socket that only its user can open.

Without an owner the same operations run on the store directly; see `weftline.cli.admin`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeAlias

import msgspec

from weftline.errors import TABLE, InvalidRequest, WeftlineError
from weftline.framing import one_line
from weftline.wire.json_text import refuse_nul

logger = logging.getLogger(__name__)

_MAX_LINE_BYTES = 64 * 1024 * 1024
"""The maximum for a request and for its response: the largest definition fits."""

_ANSWER_S = 5.0
"""How long requests in progress may delay a stop: a script often ends because of what a command just told it."""
_PREFIX, _SOCKET, _DRAFT = "weftline-", "control", ".new"

Operation: TypeAlias = Callable[..., Awaitable[Any]]
"""Called with the command's arguments by name; returns a JSON value."""


class AdminRequest(msgspec.Struct):
    operation: str
    arguments: dict[str, Any]


class AdminResponse(msgspec.Struct):
    value: Any = None
    error: str = ""
    code: str = ""


class Control:
    """Listens for requests while the store is open.

    `load` gives the operations, in a thread, on the first request. `announce` is called with the socket's path, so that
    others can find it; `changed` is awaited after each request.
    """

    def __init__(
        self,
        load: Callable[[], Mapping[str, Operation]],
        *,
        announce: Callable[[str], None],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        self.offer(load, changed=changed)
        self._announce = announce
        self._folder = ""
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None] | None] = set()

    def offer(self, load: Callable[[], Mapping[str, Operation]], *, changed: Callable[[], Awaitable[None]]) -> None:
        """Replaces the operations."""
        self._load = cache(load)
        self._changed = changed

    async def start(self) -> None:
        await asyncio.to_thread(remove_dead_folders)
        # Not in the store's own directory, as the path of a Unix socket is limited to about 100 characters.
        self._folder = tempfile.mkdtemp(prefix=_PREFIX)
        path = os.path.join(self._folder, _SOCKET)
        try:
            self._server = await asyncio.start_unix_server(self._serve, sock=_listen(path), limit=_MAX_LINE_BYTES)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._announce(path)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            response = await self._carry_out(await reader.readline())
            writer.write(one_line(msgspec.json.encode(response)) + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError):
            logger.debug("an admin client disconnected")
        finally:
            writer.close()

    async def _carry_out(self, line: bytes) -> AdminResponse:
        try:
            refuse_nul(line)
            request = msgspec.json.decode(line, type=AdminRequest)
            value = await _bind(await asyncio.to_thread(self._load), request)()
        except WeftlineError as error:
            return AdminResponse(error=error.message, code=error.code)
        except msgspec.DecodeError as error:
            return AdminResponse(error=f"The request could not be read: {error}", code="invalid_request")
        except Exception:
            logger.exception("an admin request failed")
            return AdminResponse(
                error="The process that has the store open failed to do this; its log has the details.",
                code="internal_error",
            )
        await self._changed()
        return AdminResponse(value)


def _bind(operations: Mapping[str, Operation], request: AdminRequest) -> Callable[[], Awaitable[Any]]:
    operation = operations.get(request.operation)
    if operation is None:
        raise InvalidRequest(f"There is no operation {request.operation!r}.")
    try:
        inspect.signature(operation).bind(**request.arguments)
    except TypeError as error:
        raise InvalidRequest(f"{request.operation}: {error}.") from None
    return partial(operation, **request.arguments)


def _listen(path: str) -> socket.socket:
    """Returns a listening socket.

    It gets its name only once it listens, so a name without a listener belongs to a dead process.
    """
    draft = f"{path}{_DRAFT}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(draft)
        listener.listen(100)
        listener.setblocking(False)
        os.rename(draft, path)
    except BaseException:
        listener.close()
        raise
    return listener


def remove_dead_folders() -> None:
    """Removes what killed processes of this user have left behind."""
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            with suppress(OSError):
                ours = entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False)
                if ours and entry.stat(follow_symlinks=False).st_uid == os.getuid() and _is_dead(entry.path):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _is_dead(folder: str) -> bool:
    if os.listdir(folder) != [_SOCKET]:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(os.path.join(folder, _SOCKET))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


async def send_request(path: str, operation: str, arguments: dict[str, Any]) -> Any:
    """Sends an operation to the owner of a store, and returns its value; raises what the operation raised."""
    reader, writer = await asyncio.open_unix_connection(path, limit=_MAX_LINE_BYTES)
    try:
        writer.write(one_line(msgspec.json.encode(AdminRequest(operation, arguments))) + b"\n")
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise WeftlineError(
            "The process that has the store open stopped before it answered; the command may or may not have taken"
            " effect.",
            code="unavailable",
        )
    response = msgspec.json.decode(line, type=AdminResponse)
    if response.error:
        raise WeftlineError(response.error, code=response.code if response.code in TABLE else None)
    return response.value
