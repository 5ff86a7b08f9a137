"""Schedules as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import asdict, replace
from pydantic import Field, StringConstraints, ValidationError

from weftline.api.schemas.validation import refused
from weftline.errors import Issue, invalid
from weftline.store.records.schedules import ScheduleRow, ScheduleSummary
from weftline.wire.errors import error_code
from weftline.wire.json_text import decode_fields, decode_object
from weftline.wire.models import NO_NUL, Part
from weftline.wire.responses import JsonObject, Time, Warnings, iso
from weftline.wire.unknown_fields import UnknownField, shape_of, unknown_fields
from weftline.workspace.cron import MAX_CHARS
from weftline.workspace.schedules import CATCH_UP, Timing

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_YEAR = 9000
CatchUp: TypeAlias = Literal["skip", "once", "all"]
_Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NO_NUL)]
_At: TypeAlias = Annotated[str, Field(max_length=64, description="A time with a time zone: 2030-01-31T12:00:00Z.")]
_Cron: TypeAlias = Annotated[str, Field(max_length=MAX_CHARS, description="Minute, hour, day, month, day of week.")]
_Zone: TypeAlias = Annotated[str, Field(max_length=64, description="Of the cron expression: Europe/Berlin.")]
_Spec: TypeAlias = Annotated[dict[str, Any], Field(description="The body that creates such a run.")]


class ScheduleModel(Part):
    """The body that creates a schedule: `at` or `cron`, and what to run."""

    name: _Name
    spec: _Spec
    at: _At | None = None
    cron: _Cron | None = None
    timezone: _Zone | None = None
    catchUp: CatchUp | None = None
    enabled: bool | None = None


class ScheduleChangesModel(Part):
    """Changes to a schedule. Absent fields stay as they are."""

    name: _Name | None = None
    spec: _Spec | None = None
    at: _At | None = None
    cron: _Cron | None = None
    timezone: _Zone | None = None
    catchUp: CatchUp | None = None
    enabled: bool | None = None


class _Known(Struct, rename="camel"):
    id: str
    name: str
    agent_id: str | None
    at: Time | None
    cron: str | None
    timezone: str
    catch_up: Annotated[str, Meta(extra_json_schema={"enum": list(CATCH_UP)})]
    enabled: bool
    next_at: Time | None
    last_at: Time | None
    last_run_id: str | None
    last_error: str
    requested_by: str
    created_at: Time
    updated_at: Time


class ListedSchedule(_Known, rename="camel"):
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable, so that it starts nothing; left out otherwise."""


class Schedule(_Known, rename="camel"):
    spec: JsonObject
    """As it was sent, with header values of its tools as `[redacted]`."""
    warnings: Warnings = UNSET


class Schedules(Struct):
    schedules: list[ListedSchedule]


_Model = TypeVar("_Model", ScheduleModel, ScheduleChangesModel)


class SentSchedule(Struct, frozen=True):
    """A schedule as it was sent, with its `spec` as bytes."""

    fields: ScheduleModel | ScheduleChangesModel
    spec: bytes | None
    unknown: Sequence[UnknownField]

    @property
    def changes_times(self) -> bool:
        sent = self.fields
        return any(value is not None for value in (sent.at, sent.cron, sent.timezone, sent.catchUp))

    def timing(self, earlier: Timing | None = None) -> Timing:
        """Returns the times; fields that were not sent stay as they were."""
        sent, timing = self.fields, earlier or Timing()
        if sent.at is not None and sent.cron is not None:
            raise invalid([Issue("cron", "give exactly one of `at` and `cron`")])
        if sent.at is not None:
            timing = replace(timing, at=_time(sent.at), cron="")
        if sent.cron is not None:
            timing = replace(timing, at=None, cron=sent.cron)
        if sent.timezone is not None:
            timing = replace(timing, timezone=sent.timezone)
        return timing if sent.catchUp is None else replace(timing, catch_up=sent.catchUp)


def parse_schedule(body: bytes) -> SentSchedule:
    """Parses a schedule. Raises `InvalidRequest`."""
    return _parse(body, ScheduleModel)


def parse_schedule_changes(body: bytes) -> SentSchedule:
    return _parse(body, ScheduleChangesModel)


def _parse(body: bytes, model: type[_Model]) -> SentSchedule:
    fields = decode_object(body)
    try:
        sent = model.model_validate(fields)
    except ValidationError as error:
        raise refused(error, model, fields) from None
    spec = None if sent.spec is None else bytes(decode_fields(body)["spec"])
    return SentSchedule(sent, spec, unknown_fields(fields, shape_of(model)))


def _time(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        time = None
    if time is None or time.tzinfo is None:
        raise invalid([Issue("at", "must be a time with a time zone, such as 2030-01-31T12:00:00Z")])
    if time.year >= _MAX_YEAR:
        raise invalid([Issue("at", f"must be before the year {_MAX_YEAR}")])
    if time.year <= _EPOCH.year:
        raise invalid([Issue("at", "this time has passed")])
    return (time - _EPOCH) // timedelta(microseconds=1)


def listed_schedule_json(row: ScheduleSummary) -> ListedSchedule:
    return ListedSchedule(**asdict(_known(row)), error_code=error_code(row.damaged))


def _known(row: ScheduleSummary) -> _Known:
    return _Known(
        row.id,
        row.name,
        row.agent,
        _iso(row.at),
        row.cron or None,
        row.timezone,
        row.catch_up,
        row.enabled,
        _iso(row.next_at),
        _iso(row.last_at),
        row.last_run,
        row.last_error,
        row.requested_by,
        iso(row.created_at),
        iso(row.updated_at),
    )


def schedule_json(row: ScheduleRow, warnings: Warnings = UNSET) -> Schedule:
    return Schedule(**asdict(_known(row)), spec=Raw(row.spec), warnings=warnings)


def _iso(time: int | None) -> str | None:
    return None if time is None else iso(time)
