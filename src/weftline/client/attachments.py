"""Images and files to send along with a prompt."""

from __future__ import annotations

import mimetypes
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

from msgspec import Struct

from weftline.client.errors import InvalidSpec


class Attachment(Struct, frozen=True, kw_only=True):
    """An image or a file, by its content (`data`) or by an address that the model's provider fetches (`url`).

    `media_type` may be left out if it can be determined from the content or the URL.

    >>> client.run("What is this?", attachments=[Attachment(data=png, name="cat.png"), "report.pdf"])
    """

    data: bytes | None = None
    url: str | None = None
    media_type: str | None = None
    name: str | None = None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, media_type: str | None = None) -> Self:
        """Reads a file."""
        file = Path(path)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise InvalidSpec(f"the attachment {file} cannot be read: {error.strerror}") from error
        return cls(data=data, media_type=media_type or mimetypes.guess_type(file.name)[0], name=file.name)


AttachmentLike: TypeAlias = Attachment | str | os.PathLike[str] | Mapping[str, Any]
"""An attachment, the path of a file, a URL, or the protocol's own JSON."""


def attachments_on_wire(given: Sequence[AttachmentLike]) -> list[Mapping[str, Any]]:
    return [_on_wire(one) for one in given]


def _on_wire(given: AttachmentLike) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    if isinstance(given, str) and given.lower().startswith(("http://", "https://", "data:")):
        given = Attachment(url=given)
    elif not isinstance(given, Attachment):
        given = Attachment.from_file(given)
    if (given.data is None) == (given.url is None):
        raise InvalidSpec("an attachment has either data or a url")
    fields = {
        "mediaType": given.media_type,
        "data": None if given.data is None else b64encode(given.data).decode(),
        "url": given.url,
        "name": given.name,
    }
    return {name: value for name, value in fields.items() if value is not None}
