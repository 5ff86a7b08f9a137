"""What the server took but probably misunderstood, as Python warnings."""

from __future__ import annotations

import sys
import warnings
from typing import cast

from msgspec import Struct

from weftline.client.usage import lenient


class RequestWarning(Struct, frozen=True):
    """One of the `warnings` of an answer."""

    path: str = ""
    message: str = ""
    code: str = ""
    nearest: str = ""


def warn_of(notices: object) -> None:
    """Warns of each of an answer's `warnings`, in the name of the code that called the client."""
    for notice in cast("list[object]", notices) if isinstance(notices, list) else ():
        # What another server means by it is its own affair.
        known = lenient(notice, RequestWarning)
        if known is not None and known.message:
            warnings.warn(f"{known.path} {known.message}", UserWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """How many frames above `warn_of` the first one is that is not ours."""
    frame, level = sys._getframe(1), 1  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("weftline.client"):
        frame, level = frame.f_back, level + 1
    return level
