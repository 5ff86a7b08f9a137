"""What the server took but probably misunderstood, as Python warnings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from msgspec import Struct


class RequestWarning(Struct, frozen=True):
    """One of the `warnings` of an answer."""

    path: str = ""
    message: str = ""
    code: str = ""
    nearest: str = ""


def warn_of(notices: Sequence[RequestWarning]) -> None:
    """Warns of each, in the name of the code that called the client."""
    for notice in notices:
        warnings.warn(f"{notice.path} {notice.message}", UserWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """How many frames above `warn_of` the first one is that is not ours."""
    frame, level = sys._getframe(1), 1  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("weftline.client"):
        frame, level = frame.f_back, level + 1
    return level
