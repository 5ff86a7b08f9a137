"""Options of a run in the library that are fields of a spec as they are, written by `make options`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict


class SpecOptions(TypedDict, total=False):
    """What a run may be asked to do here as over HTTP."""

    stream_arguments: bool | None
    """True lets followers see the arguments of calls as the model writes them."""
    labels: Mapping[str, str] | None
    """For hooks, policies and tools, also of child runs; no model reads them."""
    turn_id: str | None
    """Your id for the exchange that the run belongs to; without one, the run's own id."""
