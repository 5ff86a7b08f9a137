"""Keeps the tool secrets of an agent that is replaced by what was read from it, in which they appear as
`[redacted]`.
"""

from __future__ import annotations

from collections.abc import Mapping

from weftline.errors import Issue, invalid
from weftline.net.address import InvalidAddress, origin_of
from weftline.store.sealing import Headers
from weftline.text.redaction import REDACTED, SEALED_URL, redact_url


def kept_secrets(
    headers: Headers, *, urls: Mapping[str, str], earlier: Headers, earlier_urls: Mapping[str, str]
) -> Headers:
    """The secrets of a new spec, with the earlier ones where it is redacted. `urls` are those of its tools, by name.

    Raises `InvalidRequest` for a mark without an earlier secret, or for a secret given for a different origin.
    """
    kept = {name: dict(values) for name, values in headers.items()}
    issues: list[Issue] = []
    for name, url in urls.items():
        old, own = earlier.get(name, {}), kept.get(name, {})
        if REDACTED in url:
            if redact_url(old.get(SEALED_URL, "")) == url:
                kept.setdefault(name, {})[SEALED_URL] = old[SEALED_URL]
            else:
                issues.append(Issue(f"spec.tools.{name}.url", "must be sent in full when it changes"))
        for header in [header for header, value in own.items() if value == REDACTED]:
            if header in old and _same_origin(earlier_urls.get(name, ""), url):
                own[header] = old[header]
            else:
                issues.append(
                    Issue(f"spec.tools.{name}.headers.{header}", "must be sent again when the tool's origin changes")
                )
    if issues:
        raise invalid(issues)
    return kept


def _same_origin(before: str, after: str) -> bool:
    try:
        return origin_of(before) == origin_of(after)
    except InvalidAddress:
        return False
