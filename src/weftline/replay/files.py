"""Writes exported runs to local files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from weftline.errors import Conflict, InvalidRequest


async def write_file(lines: AsyncIterable[bytes], path: Path, *, force: bool = False) -> Path:
    """Writes the lines to a new file, which gets its name only once it is complete.

    Raises `Conflict` if there is a file of this name, unless `force`.
    """
    with new_file(path, force=force) as file:
        async for line in lines:
            file.write(line)
    return path


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Generator[BinaryIO]:
    """A file that gets its name only once it is complete. Raises `Conflict` if the name is taken, and `InvalidRequest`
    if there can be no such file.
    """
    if path.exists() and not force:
        raise Conflict(f"{path} already exists.")
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"{path} cannot be written: there is no folder {path.parent}.")
    try:
        handle, draft = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}.") from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
