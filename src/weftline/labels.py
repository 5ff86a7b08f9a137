"""Data that a caller may attach to a run: labels, which are strings, and metadata, which may be any JSON object.

Both are for people and for code. No model reads either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from weftline.errors import InvalidRequest, Issue, invalid
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.text.characters import without_nul

MAX_LABELS = 16
MAX_LABEL_CHARS = 512
MAX_LABELS_BYTES = 16 * 1024
MAX_METADATA_BYTES = 64 * 1024
_KEY = re.compile(r"[A-Za-z0-9._-]{1,64}")


def checked_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Checks labels by the same limits as over HTTP. Raises `InvalidRequest` for invalid ones."""
    if labels is None:
        return {}
    given = _mapping("labels", labels)
    issues: list[Issue] = []
    for key, value in given.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            issues.append(Issue("labels", f"{key!r:.80} is not a name of 1 to 64 letters, digits, '.', '_' and '-'"))
        elif not isinstance(value, str):
            issues.append(Issue(f"labels.{key}", f"must be a string, not {type(value).__name__}"))
        elif len(value) > MAX_LABEL_CHARS or "\0" in value:
            issues.append(Issue(f"labels.{key}", f"must have at most {MAX_LABEL_CHARS} characters, none of them NUL"))
    if len(given) > MAX_LABELS:
        issues.append(Issue("labels", f"has {len(given)} entries; at most {MAX_LABELS} are allowed"))
    if issues:
        raise invalid(issues)
    if _size("labels", given) > MAX_LABELS_BYTES:
        raise invalid([Issue("labels", f"has more than {MAX_LABELS_BYTES} bytes as JSON")])
    return cast("dict[str, str]", given)


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
