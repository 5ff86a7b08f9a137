"""Names of stores in commands, and of their sockets."""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

DEFAULT_DB = "weftline-data"
"""The store of commands that name none: this folder in the current directory."""
_MAX_SOCKET_BYTES = 100
"""The longest path of a socket, a little less than any system allows."""


def db_option(path: Path | None) -> str:
    """The option that a command needs to find this store, as ` --db PATH`; empty if it is the default, or has no
    folder.
    """
    if path is None or path.absolute() == Path(DEFAULT_DB).absolute():
        return ""
    return f" --db {shlex.quote(str(path))}"


@contextmanager
def short_path(path: Path) -> Generator[str]:
    """Yields a name of the socket that is short enough to bind and to connect to."""
    if len(os.fsencode(path)) <= _MAX_SOCKET_BYTES or not os.path.isdir("/proc/self/fd"):
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
