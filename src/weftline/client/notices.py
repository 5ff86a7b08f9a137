"""The server's warnings about a request, as Python warnings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

from msgspec import Struct

from weftline.events.decode import lenient


class RequestWarning(Struct, frozen=True):
    """One of the `warnings` of a response."""

    path: str = ""
    message: str = ""
    code: str = ""
    nearest: str = ""


class Place(NamedTuple):
    """Where the user's code called the client, in the form that `warnings` needs."""

    filename: str
    line: int
    module: str
    registry: dict[Any, Any]


_place: ContextVar[Place | None] = ContextVar("place", default=None)


@contextmanager
def from_here() -> Generator[None]:
    """Attributes the warnings of work started inside, even in another thread, to the code that called the client."""
    token = _place.set(_callers_place())
    try:
        yield
    finally:
        _place.reset(token)


def warn_of(notices: object) -> None:
    """Issues a response's `warnings`, attributed to the code that called the client."""
    for notice in cast("list[object]", notices) if isinstance(notices, list) else ():
        # Another server may use this field for something else.
        known = lenient(notice, RequestWarning)
        if known is not None and known.message:
            place = _place.get() or _callers_place()
            warnings.warn_explicit(
                f"{known.path} {known.message}",
                UserWarning,
                place.filename,
                place.line,
                module=place.module,
                registry=place.registry,
            )


def _callers_place() -> Place:
    """Returns the first frame above this one that is not ours."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back
    module = frame.f_globals.get("__name__", "")
    return Place(frame.f_code.co_filename, frame.f_lineno, module, frame.f_globals.setdefault(_REGISTRY, {}))


_OURS = ("weftline.client", "contextlib")
_REGISTRY = "__warningregistry__"
