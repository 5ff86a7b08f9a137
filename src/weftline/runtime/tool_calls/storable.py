"""Makes what tools return besides their results fit to be stored.

A call must be closed with the result that it has, so what cannot be encoded is left out, and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar, cast, get_args

import msgspec
from msgspec.structs import replace

from weftline.failure import Failure, Hint
from weftline.outcome import Audience, ServerData, Telemetry
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.text.surrogates import storable

T = TypeVar("T")

logger = logging.getLogger(__name__)
_UNWRITABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)


def storable_telemetry(telemetry: Telemetry | None, *, run_id: str, tool: str) -> Telemetry | None:
    if telemetry is None:
        return None
    try:
        return _read_back(telemetry, Telemetry)
    except _UNWRITABLE as error:
        logger.error("run %s: the telemetry of %s cannot be stored: %s", run_id, tool, error)
        return None


def storable_failure(failure: Failure | None, *, run_id: str, tool: str) -> Failure | None:
    """The failure, with as much of its hint as can be stored."""
    if failure is None or failure.hint is None:
        return failure
    hint: Hint = failure.hint
    try:
        hint = replace(hint, message=storable(hint.message), clarifying_question=storable(hint.clarifying_question))
        for name in ("example_input", "prior_input"):
            try:
                if (value := getattr(hint, name)) is not None:
                    msgspec.json.encode(value)
            except _UNWRITABLE as error:
                logger.error("run %s: the %s of a hint of %s cannot be stored: %s", run_id, name, tool, error)
                hint = replace(hint, **{name: None})
        return replace(failure, hint=_read_back(hint, Hint))
    except _UNWRITABLE as error:
        logger.error("run %s: a hint of %s cannot be stored: %s", run_id, tool, error)
        return replace(failure, hint=None)


def storable_data(data: Iterable[object], *, run_id: str, tool: str) -> tuple[ServerData, ...]:
    left: list[ServerData] = []
    for one in data:
        try:
            if not isinstance(one, ServerData) or one.audience not in get_args(Audience):
                raise NotCanonical(f"{one!r:.100} is not a ServerData")
            if not isinstance(cast("object", one.kind), str):
                raise NotCanonical("its kind is not a string")
            canonical_value([one.kind, one.data])
            left.append(one)
        except NotCanonical as error:
            kind = getattr(one, "kind", "")
            logger.error("run %s: data %s of %s is not JSON: %s", run_id, kind, tool, error)
    return tuple(left)


def _read_back(value: T, of: type[T]) -> T:
    return msgspec.json.decode(msgspec.json.encode(value), type=of)
