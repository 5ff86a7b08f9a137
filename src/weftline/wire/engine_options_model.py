"""The engine options of a run's spec as pydantic models, which only validate."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from weftline.engine_options import MAX_INTERVAL_S, MAX_TASK_QUEUE_CHARS, attributes_problem, memo_problem, typed
from weftline.wire.engine_options import plain_value

_KINDS: Final = 'a string, a number, true, false, an array of strings, or {"datetime": "2026-01-31T12:00:00Z"}'


def _memo(given: dict[str, Any]) -> dict[str, Any]:
    if problem := memo_problem(given):
        raise PydanticCustomError("memo", "{problem}", {"problem": problem})
    return given


def _attributes(given: dict[str, Any]) -> dict[str, Any]:
    if problem := attributes_problem(given):
        raise PydanticCustomError("search_attributes", "{problem}", {"problem": problem})
    return given


def _attribute(value: object) -> object:
    found = typed(plain_value(value), kinds=_KINDS)
    if isinstance(found, str):
        raise PydanticCustomError("search_attribute", "{problem}", {"problem": found})
    return value


_Attribute: TypeAlias = Annotated[Any, AfterValidator(_attribute)]


class RetryPolicyModel(BaseModel):
    """How often the engine tries to hand the run to a worker; 0 means the engine's default."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    maxAttempts: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    initialIntervalMs: Annotated[int, Field(ge=0, le=MAX_INTERVAL_S * 1000)] | None = None
    backoffCoefficient: Annotated[float, Field(ge=0, le=100)] | None = None


class EngineOptionsModel(BaseModel):
    """Engine options of a run and of a message to a session. A session has none."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    memo: Annotated[dict[str, Any], AfterValidator(_memo)] | None = None
    searchAttributes: Annotated[dict[str, _Attribute], AfterValidator(_attributes)] | None = None
    taskQueue: Annotated[str, StringConstraints(max_length=MAX_TASK_QUEUE_CHARS)] | None = None
    retryPolicy: RetryPolicyModel | None = None
