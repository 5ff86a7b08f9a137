"""A client's preference for JSON or an event stream."""

from __future__ import annotations

from typing import NamedTuple

from weftline.server.http import Request

EVENTS, JSON = "text/event-stream", "application/json"
_ANY = ("*/*", "application/*")


class AcceptedTypes(NamedTuple):
    events: bool
    """Whether `Accept` names event streams, and prefers them if it also names JSON."""
    json: bool
    """Whether JSON is acceptable."""


_JSON_ONLY = AcceptedTypes(events=False, json=True)


def accepted_types(request: Request) -> AcceptedTypes:
    """Parses `Accept`. A tie goes to JSON, the default. A wildcard alone does not request a stream."""
    if request.header(b"accept") is None:
        return _JSON_ONLY
    lines = request.header_lines(b"accept")
    if lines == ["*/*"]:
        return _JSON_ONLY
    quality: dict[str, float] = {}
    for line in lines:
        for part in line.split(","):
            kind, *parameters = part.split(";")
            quality[kind.strip().lower()] = _quality(parameters)
    events = quality.get(EVENTS, 0.0)
    any_json = max(quality.get(kind, 0.0) for kind in (JSON, *_ANY))
    return AcceptedTypes(events=events > quality.get(JSON, 0.0), json=any_json > 0)


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 1.0
    return 1.0
