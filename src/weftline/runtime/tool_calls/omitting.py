"""Results that are too large for the model to read, in a run with a limit on their size.

The replacement is built from the log alone, so it is the same on every turn and in every process.
"""

from __future__ import annotations

from typing import Any

from weftline.kernel.bodies import ClosedBody
from weftline.messages import Text, UserPart
from weftline.outcome import Bounds, preview_of
from weftline.text.canonical import canonical_value

REASON = "size_limit"


def parts_within(limit_bytes: int | None, closed: ClosedBody) -> tuple[UserPart, ...]:
    """The result of a successful call, as the model reads it: one object replaces texts beyond the limit."""
    parts = closed.parts
    if limit_bytes is None:
        return parts
    texts = [part.text for part in parts if isinstance(part, Text)]
    if sum([len(text.encode()) for text in texts]) <= limit_bytes:
        return parts
    fields: dict[str, Any] = {"omitted": True, "reason": REASON}
    if preview := preview_of("\n".join(texts)):
        fields["preview"] = preview
    if closed.bounds is not None:
        fields["bounds"] = _bounds(closed.bounds)
    return Text(canonical_value(fields).decode()), *[part for part in parts if not isinstance(part, Text)]


def _bounds(bounds: Bounds) -> dict[str, Any]:
    fields: dict[str, Any] = {"returned": bounds.returned, "truncated": bounds.truncated}
    more = {
        "total": bounds.total,
        "next_cursor": bounds.next_cursor,
        "refinement_hint": bounds.refinement_hint or None,
    }
    return fields | {name: value for name, value in more.items() if value is not None}
