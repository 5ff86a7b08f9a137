"""Options for the engine that starts a run, besides what the run should do.

The embedded engine only stores and shows them. Its runs begin in the process that accepts them, so it has no task
queues, and nothing to retry.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from weftline.errors import Issue, invalid
from weftline.text.canonical import NotCanonical, canonical_value

MAX_MEMO_BYTES = 16 * 1024
MAX_ATTRIBUTES = 32
MAX_ATTRIBUTE_CHARS = 1024
MAX_TASK_QUEUE_CHARS = 255
MAX_INTERVAL_S = 24 * 3600
THREAD_ATTRIBUTE: Final = "SessionID"
"""The only search attribute with a fixed meaning: the thread of the run."""

AttributeType: TypeAlias = Literal["keyword", "bool", "int", "float", "datetime", "keywords"]
AttributeValue: TypeAlias = str | bool | int | float | datetime | Sequence[str]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_INTEGERS = range(-(2**63), 2**63)


class RetryPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Attempts of an engine to hand a run to a worker. 0 means the engine's default."""

    max_attempts: int = 0
    initial_interval_s: float = 0.0
    backoff_coefficient: float = 0.0
    """The factor by which each wait is longer than the previous one; below 1 it counts as 1."""


class SearchAttribute(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A value with its type in the engine. A time is in microseconds since the epoch, UTC."""

    type: AttributeType
    value: Any

    @property
    def plain(self) -> AttributeValue:
        """The value as it was given."""
        return _EPOCH + self.value * _US if self.type == "datetime" else self.value


class EngineOptions(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    memo: dict[str, Any] = {}
    """Any JSON object, for people who look at the run in the engine."""
    search_attributes: dict[str, SearchAttribute] = {}
    task_queue: str = ""
    retry_policy: RetryPolicy = RetryPolicy()

    @property
    def plain_attributes(self) -> dict[str, AttributeValue]:
        return {name: one.plain for name, one in self.search_attributes.items()}


_NOTHING = EngineOptions()


def engine_options(
    *, memo: object = None, search_attributes: object = None, task_queue: object = None, retry_policy: object = None
) -> EngineOptions | None:
    """Checks the options; None if none are given. Raises `InvalidRequest` with every problem."""
    issues: list[Issue] = []
    if problem := memo_problem(memo):
        issues.append(Issue("memo", problem))
    attributes: dict[str, SearchAttribute] = {}
    if problem := attributes_problem(search_attributes):
        issues.append(Issue("search_attributes", problem))
    elif search_attributes is not None:
        for name, value in cast("Mapping[str, object]", search_attributes).items():
            found = typed(value)
            if isinstance(found, str):
                issues.append(Issue(f"search_attributes.{name}", found))
            else:
                attributes[name] = found
    if task_queue is not None and not (isinstance(task_queue, str) and len(task_queue) <= MAX_TASK_QUEUE_CHARS):
        issues.append(Issue("task_queue", f"must be a string of at most {MAX_TASK_QUEUE_CHARS} characters"))
    if problem := retry_problem(retry_policy):
        issues.append(Issue("retry_policy", problem))
    if issues:
        raise invalid(issues)
    made = EngineOptions(
        memo=dict(cast("Mapping[str, Any]", memo or {})),
        search_attributes=attributes,
        task_queue=cast("str | None", task_queue) or "",
        retry_policy=_acting(cast("RetryPolicy | None", retry_policy) or RetryPolicy()),
    )
    return None if made == _NOTHING else made


def memo_problem(given: object) -> str:
    """Returns what is wrong with a memo; empty if nothing is."""
    if given is None:
        return ""
    if not isinstance(given, Mapping):
        return f"must be a mapping, not {type(given).__name__}"
    try:
        size = len(canonical_value(dict(cast("Mapping[object, object]", given))))
    except NotCanonical as error:
        return f"is not JSON: {error}"
    return f"has more than {MAX_MEMO_BYTES} bytes as JSON" if size > MAX_MEMO_BYTES else ""


def attributes_problem(given: object) -> str:
    """Returns what is wrong with search attributes, apart from their values."""
    if given is None:
        return ""
    if not isinstance(given, Mapping):
        return f"must be a mapping, not {type(given).__name__}"
    named = dict(cast("Mapping[object, object]", given))
    if len(named) > MAX_ATTRIBUTES:
        return f"has {len(named)} entries; at most {MAX_ATTRIBUTES} are allowed"
    for name in named:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return f"{name!r:.80} is not a name of 1 to 64 letters, digits, '.', '_' and '-'"
    return ""


def typed(value: object, *, kinds: str = "") -> SearchAttribute | str:
    """Returns a value with its type, or what is wrong with it.

    `kinds` names the allowed types in the caller's terms; by default Python's.
    """
    match value:
        case bool():
            return SearchAttribute("bool", value)
        case int():
            return SearchAttribute("int", value) if value in _INTEGERS else "has more than 64 bits"
        case float():
            return SearchAttribute("float", value) if math.isfinite(value) else "must be a number"
        case datetime():
            if value.tzinfo is None:
                return "is a time without a time zone"
            return SearchAttribute("datetime", (value - _EPOCH) // _US)
        case str():
            return SearchAttribute("keyword", value) if _fits(value) else _TOO_LONG
        case list() | tuple():
            texts = list(cast("Sequence[object]", value))
            if not all(isinstance(one, str) for one in texts):
                return "is a list with something other than strings"
            fits = len(texts) <= MAX_ATTRIBUTES and all(_fits(cast("str", one)) for one in texts)
            return SearchAttribute("keywords", texts) if fits else _TOO_LONG
        case _:
            found = f"must be {kinds or 'a string, a number, a bool, a datetime or a list of strings'}"
            return found if kinds else f"{found}, not {type(value).__name__}"


_TOO_LONG = f"must have strings of at most {MAX_ATTRIBUTE_CHARS} characters, and at most {MAX_ATTRIBUTES} of them"


def _fits(text: str) -> bool:
    return len(text) <= MAX_ATTRIBUTE_CHARS and "\0" not in text


def retry_problem(given: object) -> str:
    if given is None:
        return ""
    if not isinstance(given, RetryPolicy):
        return f"must be a RetryPolicy, such as RetryPolicy(max_attempts=3), not {given!r:.80}"
    attempts, interval, coefficient = given.max_attempts, given.initial_interval_s, given.backoff_coefficient
    if type(attempts) is not int or not 0 <= attempts < 2**31:
        return f"max_attempts must be a whole number from 0 to {2**31 - 1}, not {attempts!r:.80}"
    if not _is_number(interval) or not 0 <= interval <= MAX_INTERVAL_S:
        return f"initial_interval_s must be a number of seconds from 0 to {MAX_INTERVAL_S}, not {interval!r:.80}"
    if not _is_number(coefficient) or not 0 <= coefficient <= 100:
        return f"backoff_coefficient must be a number from 0 to 100, not {coefficient!r:.80}"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _acting(given: RetryPolicy) -> RetryPolicy:
    coefficient = float(given.backoff_coefficient)
    return RetryPolicy(
        max_attempts=given.max_attempts,
        initial_interval_s=float(given.initial_interval_s),
        backoff_coefficient=max(coefficient, 1.0) if coefficient else 0.0,
    )


def thread_problem(options: EngineOptions | None, names: Sequence[str]) -> str:
    """Returns what is wrong with the thread in the search attributes; `names` are those of the run's own, if any."""
    attribute = None if options is None else options.search_attributes.get(THREAD_ATTRIBUTE)
    if attribute is None:
        return ""
    if not names:
        return "can only be given to a run with a thread or session"
    return "" if attribute.value in names else "must be the id of the run's own thread or session"
