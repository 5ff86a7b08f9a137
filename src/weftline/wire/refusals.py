"""Refusals of a plan, in the words of the client that described the run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from weftline.errors import InvalidRequest, Issue, invalid
from weftline.wire.unknown_fields import UnknownField, with_typos

_FIELDS: Final = {"top_p": "topP", "stop": "stopSequences", "max_output_tokens": "maxOutputTokens"}
"""The plan's names of fields, where the protocol has others."""
_FIRST_NAME = re.compile(r"\w+")


def as_sent(error: InvalidRequest, unknown: Sequence[UnknownField] = ()) -> InvalidRequest:
    """Returns the refusal of a plan with the names of the client's fields, and with unknown fields that may be its
    cause.
    """
    issues: list[dict[str, Any]] = error.details.get("issues", [])
    named = [Issue(_FIRST_NAME.sub(_wire_name, one["path"], count=1), one["message"]) for one in issues]
    if any(new.path != one["path"] for new, one in zip(named, issues, strict=True)):
        error = invalid(named)
    return with_typos(error, unknown)


def _wire_name(found: re.Match[str]) -> str:
    return _FIELDS.get(found[0], found[0])
