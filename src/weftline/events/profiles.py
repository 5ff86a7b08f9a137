"""Which events a reader of a run wants: a profile by its name, types as on the wire, or classes in Python."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias, get_args

from weftline.errors import InvalidRequest
from weftline.events.classes import AnyEvent, Event, RunEnded
from weftline.events.details import AnyDetail, PhaseChanged, UsageRecorded
from weftline.events.wire import TYPES, type_of
from weftline.text.suggestions import did_you_mean

Profile: TypeAlias = str | Collection[type[Event]]
"""`default`, `all`, `metrics`, or the classes of the events that are wanted."""
_KNOWN: tuple[type[Event], ...] = (*get_args(AnyEvent), *get_args(AnyDetail))
_NAMED: dict[str, frozenset[type[Event]]] = {
    "default": frozenset(get_args(AnyEvent)),
    "all": frozenset(_KNOWN),
    "metrics": frozenset({UsageRecorded, PhaseChanged}),
}
_METRICS = frozenset({type_of(UsageRecorded), type_of(PhaseChanged)})


def parse_profile(asked: str | None) -> frozenset[str] | None:
    """Returns the types in a query: a profile, or types separated by commas. None for `default`, without details.

    Raises `InvalidRequest` for an unknown name.
    """
    names = ["default"] if asked is None else [name.strip() for name in asked.split(",")]
    match names:
        case ["default"]:
            return None
        case ["all"]:
            return TYPES
        case ["metrics"]:
            return _METRICS
        case _:
            pass
    for name in names:
        if name not in TYPES:
            nearest = did_you_mean(name, (*_NAMED, *TYPES))
            raise InvalidRequest(
                f"profile: {name!r} is neither a profile ({', '.join(_NAMED)}) nor a type of event.{nearest}"
            )
    return frozenset(names)


def classes_of(profile: Profile) -> frozenset[type[Event]]:
    """Returns the event classes of a profile, which always include the end of the run.

    Raises `InvalidRequest` for an unknown profile or class.
    """
    if isinstance(profile, str):
        if profile not in _NAMED:
            near = did_you_mean(profile, _NAMED)
            raise InvalidRequest(f"{profile!r} is not a profile: {', '.join(_NAMED)}, or classes of events.{near}")
        return _NAMED[profile] | {RunEnded}
    unknown = [one for one in profile if one not in _KNOWN]
    if unknown or not profile:
        named = ", ".join([repr(one) for one in unknown]) or "An empty list"
        raise InvalidRequest(f"{named}: a profile is a list of event classes, of weftline.events and weftline.details.")
    return frozenset(profile) | {RunEnded}
