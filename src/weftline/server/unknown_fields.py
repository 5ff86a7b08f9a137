"""What becomes of a request with fields that the protocol does not know: told to the client and logged, or refused."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from weftline.errors import Issue, invalid
from weftline.server.http import Request
from weftline.wire.responses import Warnings, request_warnings
from weftline.wire.unknown_fields import UnknownField

logger = logging.getLogger(__name__)

STRICT = "handling=strict"
"""The preference (RFC 7240) of a client that wants to hear of its slips as errors."""


def warned(request: Request, unknown: Sequence[UnknownField], *, refused: bool) -> Warnings:
    """The warnings to answer with, after a line in the log.

    Raises `InvalidRequest` with all of them when unknown fields are `refused` here, or when the client prefers that.
    """
    if not unknown:
        return request_warnings(unknown)
    if refused or prefers_strict(request):
        raise invalid([Issue(field.path, field.refusal) for field in unknown])
    told = ", ".join(f"{field.path} ({field.nearest}?)" if field.nearest else field.path for field in unknown)
    logger.warning("%s %s has unknown fields: %s (%s)", request.method, request.path, told, request.id)
    return request_warnings(unknown)


def prefers_strict(request: Request) -> bool:
    """Whether a `Prefer` header asks for strict handling; values may be quoted and have parameters."""
    header = request.header(b"prefer")
    if header is None:
        return False
    preferences = [preference.partition(";")[0] for preference in header.lower().split(",")]
    return any("".join(preference.replace('"', "").split()) == STRICT for preference in preferences)
