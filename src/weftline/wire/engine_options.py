"""Engine options that a client sets for a run: `memo`, `searchAttributes`, `taskQueue` and `retryPolicy`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, cast

from msgspec import Struct, ValidationError, convert

from weftline.engine_options import AttributeValue, EngineOptions, RetryPolicy, engine_options

ENGINE_OPTIONS: Final = ("memo", "searchAttributes", "taskQueue", "retryPolicy")
_TIME: Final = "datetime"


def plain_value(value: object) -> object:
    """Decodes a value. JSON has no times, so `{"datetime": "2026-01-31T12:00:00Z"}` represents one."""
    given = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if given.keys() != {_TIME}:
        return cast("object", value)
    try:
        return convert(given[_TIME], datetime)
    except ValidationError:
        return given


class WireRetryPolicy(Struct, rename="camel"):
    max_attempts: int | None = None
    initial_interval_ms: int | None = None
    backoff_coefficient: float | None = None


class StoredRetryPolicy(Struct, rename="camel"):
    max_attempts: int
    initial_interval_ms: int
    backoff_coefficient: float


def options_of(
    memo: dict[str, Any] | None,
    attributes: dict[str, Any] | None,
    task_queue: str | None,
    retry: WireRetryPolicy | None,
) -> EngineOptions | None:
    """Returns the options in a checked spec."""
    if memo is attributes is task_queue is retry is None:
        return None
    policy = None
    if retry is not None:
        policy = RetryPolicy(
            max_attempts=retry.max_attempts or 0,
            initial_interval_s=(retry.initial_interval_ms or 0) / 1000,
            backoff_coefficient=retry.backoff_coefficient or 0.0,
        )
    values = {name: plain_value(value) for name, value in (attributes or {}).items()}
    return engine_options(memo=memo, search_attributes=values, task_queue=task_queue, retry_policy=policy)


def to_wire_attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    return {
        name: {_TIME: value.isoformat()} if isinstance(value, datetime) else value for name, value in attributes.items()
    }


def to_wire_retry(policy: RetryPolicy) -> StoredRetryPolicy:
    interval_ms = round(policy.initial_interval_s * 1000)
    return StoredRetryPolicy(policy.max_attempts, interval_ms, policy.backoff_coefficient)
