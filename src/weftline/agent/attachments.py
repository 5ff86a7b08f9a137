"""Files and images that come with a prompt."""

from __future__ import annotations

import mimetypes
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from weftline.messages import Blob, File, Image, Text, UserPart

FileLike: TypeAlias = Path | str | Image | File
"""A path, an http(s) URL, or a message part."""


def part_of(given: FileLike) -> UserPart:
    """Returns the message part for an attachment, and reads it if it is a file.

    Raises `OSError` for a file that cannot be read, and `ValueError` for an unknown type.
    """
    if isinstance(given, Image | File):
        return given
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        kind = mimetypes.guess_type(given)[0] or "image/png"
        return Image(kind, url=given) if kind.startswith("image/") else File(kind, url=given)
    path = Path(given)
    kind = mimetypes.guess_type(path.name)[0]
    if kind is None:
        raise ValueError(f"the type of {path.name!r} is not clear from its name; give an Image or a File")
    data = b64encode(path.read_bytes()).decode()
    if kind.startswith("image/"):
        return Image(kind, data=data, name=path.name)
    return File(kind, data=data, name=path.name)


def parts_of(prompt: str | None, files: Sequence[FileLike]) -> tuple[tuple[UserPart, ...], tuple[Blob, ...]]:
    """Returns the parts of the first message, and the contents to store beside the log, each once."""
    parts: list[UserPart] = []
    blobs: dict[str, Blob] = {}
    for given in files:
        part = part_of(given)
        if isinstance(part, Image | File) and part.data is not None:
            data = b64decode(part.data)
            blob = Blob(sha256(data).hexdigest(), data)
            blobs[blob.id] = blob
            part = replace(part, data=None, blob=blob.id, size=len(data))
        parts.append(part)
    if prompt is not None:
        parts.append(Text(prompt))
    return tuple(parts), tuple(blobs.values())
