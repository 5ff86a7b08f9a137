"""Schedules: runs that the server starts automatically, once or repeatedly."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, Unpack
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from weftline.client._options import RunOptions
from weftline.client.errors import InvalidSpec, warn_of
from weftline.client.http import Http
from weftline.client.options import body_of
from weftline.client.results import decoded
from weftline.client.tools import Toolset

CatchUp: TypeAlias = Literal["skip", "once", "all"]
_LOCAL_KINDS = ("local", "mcp_local", "a2a_local")


class Schedule(Struct, frozen=True, rename="camel"):
    """A schedule. `next_at` is None if it is off or has no time left."""

    id: str
    name: str
    timezone: str = "UTC"
    enabled: bool = True
    agent_id: str | None = None
    at: datetime | None = None
    """Once, at this time; None if it has a `cron` expression."""
    cron: str | None = None
    catch_up: str = "once"
    next_at: datetime | None = None
    last_at: datetime | None = None
    """The time that it was last due for."""
    last_run_id: str | None = None
    last_error: str = ""
    """Why no run was started then; empty if one was."""
    requested_by: str = ""
    spec: dict[str, Any] = {}
    """What it runs; empty in a list."""
    created_at: datetime | None = None
    updated_at: datetime | None = None


class _Response(Struct):
    warnings: Any = None


class _Schedules(Struct):
    schedules: tuple[Schedule, ...]


class _Run(Struct, rename="camel"):
    run_id: str


class AsyncSchedules:
    """The schedules of a workspace: `client.schedules`. Its runs are those with the metadata `weftline.schedule`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def create(
        self,
        schedule_name: str,
        prompt: str | None = None,
        /,
        *,
        at: datetime | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        catch_up: CatchUp | None = None,
        enabled: bool = True,
        **run: Unpack[RunOptions],
    ) -> Schedule:
        """Creates a schedule: `at` a time, or by a `cron` expression. The other options are those of its runs.

        Args:
            schedule_name: The name of the schedule; the option `name` is that of its runs.
            at: A time with a zone.
            cron: Minute, hour, day of month, month, day of week.
            timezone: Of the cron expression, such as "Europe/Berlin"; UTC by default.
            catch_up: What to do about times that the server missed: nothing (`skip`), one run for all of them (`once`,
                the default), or a run for each (`all`).

        Raises:
            InvalidSpec: for tools of this process, which may be gone when the run starts.
        """
        given = _times(at=at, cron=cron, timezone=timezone, catch_up=catch_up)
        body = {"name": schedule_name, "enabled": enabled, "spec": Raw(await _spec(prompt, run)), **given}
        # A key, so that a request can be sent again if its response got lost.
        key = run.get("idempotency_key") or secrets.token_urlsafe(18)
        made = await self._http.call("POST", "/schedules", body=msgspec.json.encode(body), idempotency_key=key)
        warn_of(decoded(made, _Response).warnings)
        return decoded(made, Schedule)

    async def list(self) -> tuple[Schedule, ...]:
        """Returns all schedules of the workspace, oldest first, without their `spec`."""
        return decoded(await self._http.call("GET", "/schedules"), _Schedules).schedules

    async def get(self, schedule_id: str) -> Schedule:
        return decoded(await self._http.call("GET", _path(schedule_id)), Schedule)

    async def change(
        self,
        schedule_id: str,
        *,
        name: str | None = None,
        at: datetime | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        catch_up: CatchUp | None = None,
        enabled: bool | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Changes what is given. With new times it starts over, and does not catch up on missed ones.

        Args:
            spec: What to run, completely, as in `Schedule.spec`.
        """
        given = {"name": name, "enabled": enabled, "spec": None if spec is None else dict(spec)}
        body = {field: value for field, value in given.items() if value is not None}
        body |= _times(at=at, cron=cron, timezone=timezone, catch_up=catch_up)
        made = await self._http.call("PATCH", _path(schedule_id), body=msgspec.json.encode(body))
        warn_of(decoded(made, _Response).warnings)
        return decoded(made, Schedule)

    async def pause(self, schedule_id: str) -> Schedule:
        """Switches it off. Runs that it has started continue."""
        return await self.change(schedule_id, enabled=False)

    async def resume(self, schedule_id: str) -> Schedule:
        """Switches it on again. It does not catch up on missed times."""
        return await self.change(schedule_id, enabled=True)

    async def run(self, schedule_id: str) -> str:
        """Starts a run of it now; returns the run's id."""
        key = secrets.token_urlsafe(18)
        return decoded(await self._http.call("POST", f"{_path(schedule_id)}/run", idempotency_key=key), _Run).run_id

    async def delete(self, schedule_id: str) -> None:
        """Deletes it. Its runs stay."""
        await self._http.call("DELETE", _path(schedule_id))


async def _spec(prompt: str | None, run: RunOptions) -> bytes:
    tools = Toolset(run.get("tools") or ())
    await tools.acquire()
    try:
        here = [ref.get("name", "") for ref in tools.refs if ref.get("kind") in _LOCAL_KINDS]
        if here:
            raise InvalidSpec(f"a schedule cannot use tools of this process: {', '.join(here)}")
        return body_of(run, prompt=prompt, tools=tools.refs or None)
    finally:
        await tools.release()


def _times(*, at: datetime | None, cron: str | None, timezone: str | None, catch_up: CatchUp | None) -> dict[str, str]:
    if at is not None and at.tzinfo is None:
        raise InvalidSpec("at: give a time with a time zone, such as datetime(2030, 1, 31, 12, tzinfo=UTC)")
    once = None if at is None else at.astimezone(UTC).isoformat()
    given = {"at": once, "cron": cron, "timezone": timezone, "catchUp": catch_up}
    return {field: value for field, value in given.items() if value is not None}


def _path(schedule_id: str) -> str:
    return f"/schedules/{quote(schedule_id, safe='')}"
