"""Files and images that come with a prompt."""

from __future__ import annotations

import mimetypes
from base64 import b64encode
from pathlib import Path
from typing import TypeAlias

from weftline.messages import File, Image, UserPart

FileLike: TypeAlias = Path | str | Image | File
"""A path, an http(s) address, or a part of a message."""


def part_of(given: FileLike) -> UserPart:
    """Reads a file, if it is one. Raises `OSError` for one that cannot be read, `ValueError` for an unknown type."""
    if isinstance(given, Image | File):
        return given
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        kind = mimetypes.guess_type(given)[0] or "image/png"
        return Image(kind, url=given) if kind.startswith("image/") else File(kind, url=given)
    path = Path(given)
    kind = mimetypes.guess_type(path.name)[0]
    if kind is None:
        raise ValueError(f"the type of {path.name!r} cannot be told from its name; give an Image or a File")
    data = b64encode(path.read_bytes()).decode()
    if kind.startswith("image/"):
        return Image(kind, data=data, name=path.name)
    return File(kind, data=data, name=path.name)
