"""The results of all calls of a turn that clients carry out, sent together."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, convert
from msgspec.json import encode
from pydantic import Field, StringConstraints

from weftline.errors import InvalidRequest, Issue, invalid
from weftline.outcome import Bounds
from weftline.runtime.provided import Provided
from weftline.wire.failures import SentFailure, failure_fault, require_failure
from weftline.wire.limits import MAX_ERROR_BYTES, MAX_RESULT_BYTES, MAX_TOOL_USE_ID_CHARS
from weftline.wire.run_spec import Part

MAX_RESULTS = 1000


class ResultBoundsModel(Part):
    """How much of all there is a result has."""

    returned: int
    total: int | None = None
    truncated: bool = False
    nextCursor: str | None = None
    refinementHint: str = ""


class ResultModel(Part):
    """What came of one call: a `result`, any JSON, or an `error`."""

    toolUseId: Annotated[str, StringConstraints(max_length=MAX_TOOL_USE_ID_CHARS)]
    name: str | None = None
    result: Any = None
    error: str | None = None
    failure: dict[str, Any] | None = None
    bounds: ResultBoundsModel | None = None
    serverData: Any = None
    leaseToken: str | None = None


class ResultsModel(Part):
    """One for each call of the turn that waits for a result, in any order."""

    results: Annotated[list[ResultModel], Field(max_length=MAX_RESULTS)]


def provided_of(sent: ResultsModel) -> tuple[Provided, ...]:
    """Raises `InvalidRequest` that names each of them that is too large, or whose `failure` cannot be."""
    issues: list[Issue] = []
    found: list[Provided] = []
    for place, one in enumerate(sent.results):
        at = f"results[{place}]"
        if "result" in one.model_fields_set and len(encode(one.result)) > MAX_RESULT_BYTES:
            issues.append(Issue(f"{at}.result", f"must not be larger than {MAX_RESULT_BYTES:,} bytes"))
        if one.error is not None and len(one.error.encode()) > MAX_ERROR_BYTES:
            issues.append(Issue(f"{at}.error", f"must not be larger than {MAX_ERROR_BYTES:,} bytes"))
        if one.failure is not None and (fault := _failure_fault(one.failure, error=one.error)) is not None:
            issues.append(Issue(f"{at}.{fault.path}", fault.message))
        else:
            found.append(_provided(one))
    if issues:
        raise invalid(issues)
    return tuple(found)


def _failure_fault(failure: dict[str, Any], *, error: str | None) -> Issue | None:
    if (fault := failure_fault(failure)) is not None:
        return fault
    try:
        require_failure(convert(failure, SentFailure), error=error)
    except InvalidRequest as refused:
        path, _, message = refused.message.partition(": ")
        return Issue(path, message)
    return None


def _provided(one: ResultModel) -> Provided:
    bounds = one.bounds
    failure = None if one.failure is None else convert(one.failure, SentFailure).failure(one.error or "")
    return Provided(
        call_id=one.toolUseId,
        name=one.name or "",
        result=one.result if "result" in one.model_fields_set else UNSET,
        error=one.error,
        failure=failure,
        bounds=None
        if bounds is None
        else Bounds(bounds.returned, bounds.total, bounds.truncated, bounds.nextCursor, bounds.refinementHint),
        server_data=UNSET if one.serverData is None else one.serverData,
        token=one.leaseToken or "",
    )
