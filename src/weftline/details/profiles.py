"""Which events a reader of a run wants: a profile, by name or as a list of types."""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

from weftline.details import AnyDetail
from weftline.details.projection import type_of
from weftline.errors import InvalidRequest
from weftline.text.suggestions import did_you_mean

DETAILS: dict[str, type[AnyDetail]] = {type_of(one): one for one in get_args(AnyDetail)}
"""The details, by type."""
METRICS = frozenset({"usage", "run_phase_changed"})
NAMES = ("default", "all", "metrics")


def types_of(profile: str | Collection[str], *, known: Collection[str]) -> frozenset[str] | None:
    """The types of a profile among those that are `known`; None for `default`, which has no details.

    Raises `InvalidRequest` for an unknown name.
    """
    if profile == "default":
        return None
    if profile == "all":
        return frozenset(known)
    if profile == "metrics":
        return METRICS
    wanted = [profile] if isinstance(profile, str) else list(profile)
    for name in wanted:
        if name not in known:
            nearest = did_you_mean(name, (*NAMES, *known))
            raise InvalidRequest(
                f"profile: {name!r} is neither a profile ({', '.join(NAMES)}) nor a type of event.{nearest}"
            )
    if not wanted:
        raise InvalidRequest("profile: a list of types needs at least one.")
    return frozenset(wanted)
