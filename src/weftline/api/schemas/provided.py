"""The results of all client calls of a turn, sent together."""

from __future__ import annotations

from typing import Annotated, Any, cast

from msgspec import UNSET, Struct, convert
from msgspec.json import encode
from pydantic import Field, StringConstraints, ValidationError

from weftline.api.validation import issues_of, refused
from weftline.errors import InvalidRequest, Issue
from weftline.failure import Bounds
from weftline.runtime.tool_calls.provided import Provided
from weftline.wire.limits import MAX_ERROR_BYTES, MAX_RESULT_BYTES, MAX_TOOL_USE_ID_CHARS
from weftline.wire.models import Part
from weftline.wire.requests import SentFailure, failure_problem, require_failure
from weftline.wire.unknown_fields import UnknownField, shape_of, unknown_fields

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


class _Items(Part):
    """The results, not validated yet, as each is checked separately."""

    results: Annotated[list[Any], Field(max_length=MAX_RESULTS)]


class SentResults(Struct, frozen=True):
    """The results that were sent, and their problems that do not depend on the calls.

    The engine reports these together with its own.
    """

    results: tuple[Provided, ...]
    problems: dict[int, list[tuple[str, str]]]
    unknown: tuple[UnknownField, ...]


def parse_results(fields: dict[str, Any]) -> SentResults:
    """Parses results. Raises `InvalidRequest` unless they are a list of results."""
    results: list[Provided] = []
    problems: dict[int, list[tuple[str, str]]] = {}
    for place, item in enumerate(_items(fields)):
        try:
            one = ResultModel.model_validate(item)
        except ValidationError as error:
            problems[place] = [(issue.path, issue.message) for issue in issues_of(error, item)]
            results.append(_named(item))
            continue
        found = _problems(one)
        if found:
            problems[place] = found
        results.append(_provided(one, with_failure=not any(path.startswith("failure") for path, _ in found)))
    return SentResults(tuple(results), problems, unknown_fields(fields, shape_of(ResultsModel)))


def _items(fields: dict[str, Any]) -> list[Any]:
    try:
        return _Items.model_validate(fields).results
    except ValidationError as error:
        raise refused(error, ResultsModel, fields) from None


def _named(item: object) -> Provided:
    """Returns a placeholder for an unreadable result, with its call if that was sent."""
    id = cast("dict[str, object]", item).get("toolUseId") if isinstance(item, dict) else None
    return Provided(call_id=id if isinstance(id, str) else "", error="")


def _problems(one: ResultModel) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if "result" in one.model_fields_set and len(encode(one.result)) > MAX_RESULT_BYTES:
        found.append(("result", f"must not be larger than {MAX_RESULT_BYTES:,} bytes"))
    if one.error is not None and len(one.error.encode()) > MAX_ERROR_BYTES:
        found.append(("error", f"must not be larger than {MAX_ERROR_BYTES:,} bytes"))
    if one.failure is not None and (problem := _failure_problem(one.failure, error=one.error)) is not None:
        found.append((problem.path, problem.message))
    return found


def _failure_problem(failure: dict[str, Any], *, error: str | None) -> Issue | None:
    if (problem := failure_problem(failure)) is not None:
        return problem
    try:
        require_failure(convert(failure, SentFailure), error=error)
    except InvalidRequest as refused:
        return refused.issues[0]
    return None


def _provided(one: ResultModel, *, with_failure: bool) -> Provided:
    bounds = one.bounds
    failure = (
        None if one.failure is None or not with_failure else convert(one.failure, SentFailure).failure(one.error or "")
    )
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
