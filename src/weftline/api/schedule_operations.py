"""Schedules, for commands on the store: create, list, switch, start and remove them."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct
from msgspec.json import encode

from weftline.api.creating import Creating
from weftline.api.operator import operator_name, operator_of
from weftline.api.planning import Checking, plan_warnings
from weftline.api.scheduled import checked_work, start_now
from weftline.api.schemas.schedules import (
    ListedSchedule,
    Schedule,
    ScheduleModel,
    listed_schedule_json,
    parse_schedule,
    schedule_json,
)
from weftline.wire.errors import client_names
from weftline.workspace import schedules
from weftline.workspace.context import Workspaces
from weftline.workspace.schedules import Changes


class SchedulingLogs(Creating, Checking, Protocol):
    """Where scheduled runs start: a running engine, or a store without one."""


class SchedulePage(Struct, frozen=True):
    """All schedules of a workspace, which are few and small."""

    items: list[ListedSchedule]
    after: None = None


class _Host(Struct, frozen=True):
    workspaces: Workspaces
    engine: Creating


async def create_schedule(
    at: Workspaces, logs: SchedulingLogs, *, workspace: str, schedule: dict[str, Any]
) -> Schedule:
    """Creates a schedule. `schedule` is the same JSON as in the HTTP API."""
    sent = parse_schedule(encode(schedule))
    assert isinstance(sent.fields, ScheduleModel) and sent.spec is not None
    caller = await operator_of(at, workspace)
    work, plan, unknown = await checked_work(at, caller, sent.spec, requested_by=operator_name())
    warnings = await plan_warnings(logs, plan, [*sent.unknown, *unknown], workspace=caller.workspace)
    enabled = sent.fields.enabled is not False
    with client_names():
        row = await schedules.create(at, caller, sent.fields.name, timing=sent.timing(), work=work, enabled=enabled)
    return schedule_json(row, warnings)


async def list_schedules(at: Workspaces, logs: SchedulingLogs, *, workspace: str, after: int = 0) -> SchedulePage:
    rows = await schedules.visible(at, await operator_of(at, workspace))
    return SchedulePage([listed_schedule_json(row) for row in rows])


async def switch_schedule(at: Workspaces, logs: SchedulingLogs, *, workspace: str, id: str, enabled: bool) -> Schedule:
    return schedule_json(await schedules.change(at, await operator_of(at, workspace), id, Changes(enabled=enabled)))


async def run_schedule(at: Workspaces, logs: SchedulingLogs, *, workspace: str, id: str) -> str:
    """Starts a run of the schedule, and returns its id."""
    caller = await operator_of(at, workspace)
    row = await schedules.find(at, caller, id)
    return await start_now(_Host(at, logs), caller, row)


async def delete_schedule(at: Workspaces, logs: SchedulingLogs, *, workspace: str, id: str) -> str:
    await schedules.delete(at, await operator_of(at, workspace), id)
    return id
