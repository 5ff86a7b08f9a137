"""The store's own socket: the HTTP API for commands of the user who runs the process that has the store open.

It is in the store's directory, which only that user can enter, and wherever the directory can be reached, it can be
too. `weftline.server.local_serving` is what answers there; it is loaded when somebody connects for the first time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from weftline.store.naming import short_path

if TYPE_CHECKING:
    from weftline.server.app import App
    from weftline.server.local_serving import LocalServing
    from weftline.store.base import Store

logger = logging.getLogger(__name__)

NAME = "server.sock"
DRAFT = f"{NAME}.new"
_PREFIX = "weftline-"
_ANSWER_S = 5.0
"""How long requests in progress may delay a stop: a script often ends because of what a command just told it."""
_open: WeakSet[OwnSocket] = WeakSet()


class OwnSocket:
    """Listens beside a store that this process has open. `make_app` is called when somebody first connects."""

    def __init__(self, store: Store, make_app: Callable[[], App]) -> None:
        self._store = store
        self._make_app = make_app
        self._socket: socket.socket | None = None
        self._path = ""
        self._inode = 0
        self._folder = ""
        """A private folder for the socket, if it cannot be in the store's own."""
        self._serving: LocalServing | None = None
        self._opening: asyncio.Task[None] | None = None

    def offer(self, app: App) -> None:
        """Replaces the app."""
        self._make_app = lambda: app
        if self._serving is not None:
            self._serving.app = app

    async def start(self) -> None:
        """If it cannot listen, the log says so, and everything else goes on."""
        try:
            if not _peers_are_known():
                raise OSError("this system does not say who has connected")
            await asyncio.to_thread(self._bind)
        except OSError as error:
            logger.warning("commands such as `weftline approve` cannot reach this process: %s", error)
            return
        assert self._socket is not None
        _open.add(self)
        asyncio.get_running_loop().add_reader(self._socket, self._wake)
        self._store.announce(socket=self._path if self._folder else NAME)

    async def stop(self) -> None:
        if self._socket is None:
            return
        if self._serving is None:
            asyncio.get_running_loop().remove_reader(self._socket)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        if self._serving is not None:
            await self._serving.stop(within_s=_ANSWER_S)
        self._socket.close()
        self._socket = None
        with suppress(OSError):
            if os.stat(self._path).st_ino == self._inode:  # otherwise it is the next owner's
                os.unlink(self._path)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def close_in_child(self) -> None:
        """Closes what a forked process has inherited."""
        if self._socket is not None:
            self._socket.close()

    def _bind(self) -> None:
        folder = self._store.folder
        assert folder is not None
        try:
            self._listen(folder.absolute())
        except OSError:  # some file systems have no sockets
            remove_dead_folders()
            self._folder = tempfile.mkdtemp(prefix=_PREFIX)
            try:
                self._listen(Path(self._folder))
            except BaseException:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise

    def _listen(self, folder: Path) -> None:
        """The socket gets its name only once it listens, so a name without a listener belongs to a dead process."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        draft = folder / DRAFT
        try:
            with suppress(FileNotFoundError):
                draft.unlink()
            with short_path(draft) as path:
                listener.bind(path)
            listener.listen(100)
            listener.setblocking(False)
            self._inode = draft.stat().st_ino
            draft.rename(folder / NAME)
        except BaseException:
            listener.close()
            raise
        self._socket, self._path = listener, str(folder / NAME)

    def _wake(self) -> None:
        """Called when somebody connects for the first time; whoever follows waits in the kernel's queue."""
        loop = asyncio.get_running_loop()
        assert self._socket is not None
        loop.remove_reader(self._socket)
        self._opening = loop.create_task(self._serve())

    async def _serve(self) -> None:
        assert self._socket is not None
        try:
            serving = await asyncio.to_thread(_load)
            self._serving = serving(self._socket, self._make_app())
        except Exception:
            logger.exception("commands such as `weftline approve` cannot be answered")
            self._socket.close()


def _load() -> type[LocalServing]:
    from weftline.server.local_serving import LocalServing  # with HTTP, which no engine needs until then

    return LocalServing


def _peers_are_known() -> bool:
    return hasattr(socket, "SO_PEERCRED") or sys.platform == "darwin"


def remove_dead_folders() -> None:
    """Removes what killed processes of this user have left behind."""
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            with suppress(OSError):
                ours = entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False)
                if ours and entry.stat(follow_symlinks=False).st_uid == os.getuid() and _is_dead(entry.path):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _is_dead(folder: str) -> bool:
    if os.listdir(folder) != [NAME]:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(os.path.join(folder, NAME))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _close_in_child() -> None:
    for one in _open:
        one.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
