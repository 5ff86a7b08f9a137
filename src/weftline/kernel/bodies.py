"""The content of entries: what stands in a log beside the facts. Read by projections and by whoever builds requests,
never by the kernel."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder, Encoder

from weftline.messages import Message, UserPart


class CreatedBody(Struct, omit_defaults=True):
    """Of `run.created`: the run's plan, and what the client sent, to be given back exactly as it came."""

    plan: Raw
    sent: Raw | UnsetType = UNSET


class OpenedBody(Struct, omit_defaults=True):
    """Of `call.opened`: the final arguments (a JSON object), and the fields that an offer to a client carries."""

    args: Raw
    echo: Raw | UnsetType = UNSET


class ClosedBody(Struct, omit_defaults=True):
    """Of `call.closed`: what the model reads, and the arguments once more unless they are long."""

    parts: tuple[UserPart, ...]
    args: Raw | UnsetType = UNSET


class TextBody(Struct):
    """Of `loop.detected`, `final.forced` and `output.rejected`: a message to the model."""

    text: str


class FailedBody(Struct, omit_defaults=True):
    """Of `attempt.failed`: the error, the text streamed before it, and what the provider said about itself."""

    message: str
    text: str = ""
    code: str | None = None
    status: int | None = None
    retry_after_s: float | None = None


class EndedBody(Struct, omit_defaults=True):
    """Of `run.ended`."""

    text: str = ""
    error: str = ""
    partial_text: str | None = None


encode = Encoder().encode
decode_created = Decoder(CreatedBody).decode
decode_opened = Decoder(OpenedBody).decode
decode_closed = Decoder(ClosedBody).decode
decode_text = Decoder(TextBody).decode
decode_failed = Decoder(FailedBody).decode
decode_ended = Decoder(EndedBody).decode
decode_message = Decoder(Message).decode
