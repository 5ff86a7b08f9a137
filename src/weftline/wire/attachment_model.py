"""An attachment of a prompt or a message, as a pydantic model."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from weftline.wire.limits import MAX_ATTACHMENT_NAME_CHARS, MAX_ATTACHMENTS


class AttachmentModel(BaseModel):
    """An attachment: `data` (base64) or `url`.

    `mediaType` is optional if it can be determined from the content or the URL.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    mediaType: Annotated[str, StringConstraints(max_length=255)] | None = None
    data: str | None = None
    url: str | None = None
    name: Annotated[str, StringConstraints(max_length=MAX_ATTACHMENT_NAME_CHARS)] | None = None
    type: str | None = None
    """Sent by some clients; redundant with the media type."""
    mimeType: Annotated[str, StringConstraints(max_length=255)] | None = None
    """An alias of `mediaType`, as `filename` is of `name`."""
    filename: Annotated[str, StringConstraints(max_length=MAX_ATTACHMENT_NAME_CHARS)] | None = None


Attachments = Annotated[list[AttachmentModel], Field(max_length=MAX_ATTACHMENTS)]
