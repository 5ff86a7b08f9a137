"""Labels and ids that callers choose for runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from weftline.errors import InvalidRequest, Issue, invalid
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.text.characters import without_nul

MAX_CHARS = 128
PATTERN = r"^[A-Za-z0-9_-]+$"
WANTED = f"must have 1 to {MAX_CHARS} letters, digits, '_' and '-'"
_GIVEN = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_CHARS}}}")


def is_possible(run_id: str) -> bool:
    return _GIVEN.fullmatch(run_id) is not None


def require_possible(run_id: str, *, field: str = "run_id") -> None:
    """Raises `InvalidRequest` for an id that no run can have."""
    if not is_possible(run_id):
        raise invalid([Issue(field, WANTED)])


MAX_METADATA_BYTES = 64 * 1024


def checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Checks metadata. Raises `InvalidRequest` unless it is a JSON object that is not too large."""
    if metadata is None:
        return {}
    given = _mapping("metadata", metadata)
    if _size("metadata", given) > MAX_METADATA_BYTES:
        raise invalid([Issue("metadata", f"has more than {MAX_METADATA_BYTES} bytes as JSON")])
    return cast("dict[str, Any]", given)


def missing_labels(required: frozenset[str] | set[str], labels: Mapping[str, str]) -> InvalidRequest | None:
    """Returns the refusal of a run that lacks labels, which names all of them; None if it has what it needs."""
    missing = sorted(required - labels.keys())
    if not missing:
        return None
    named = ", ".join([repr(name) for name in missing])
    which = "the label" if len(missing) == 1 else "the labels"
    message = f"The tools of this run need {which} {named}, which it was not given."
    return InvalidRequest(message, code="missing_labels", missing=missing)


def _mapping(name: str, given: object) -> dict[object, object]:
    if not isinstance(given, Mapping):
        raise invalid([Issue(name, f"must be a mapping, not {type(given).__name__}")])
    return dict(cast("Mapping[object, object]", given))


def _size(name: str, given: dict[object, object]) -> int:
    try:
        data = canonical_value(given)
    except NotCanonical as error:
        raise invalid([Issue(name, f"is not JSON: {error}")]) from None
    if without_nul(data) != data:
        raise invalid([Issue(name, "contains U+0000, which cannot be stored")])
    return len(data)
