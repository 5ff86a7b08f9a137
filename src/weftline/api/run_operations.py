"""Administration of runs by command: operations on whole logs, and input of people."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from weftline.api.controlling import ControlledRuns, pause_run, resume_run, send_message
from weftline.api.forking import Forking, fork_run, parse_fork
from weftline.api.operator import operated_run, operator_name
from weftline.api.schemas.awaits import (
    Acknowledged,
    MessageToRunModel,
    PauseModel,
    QueuedMessage,
    ResumeModel,
    parsed_as,
)
from weftline.api.thread_imports import import_export
from weftline.api.views import call_views, grant_views
from weftline.replay.importing import Imported, ImportTarget
from weftline.replay.reading import read_export
from weftline.runtime.reads.calls import PAGE_BYTES, Contents
from weftline.store.base import Store
from weftline.wire.awaits import Grant
from weftline.wire.calls import Call
from weftline.workspace import workspaces
from weftline.workspace.context import Workspaces

_PAGE = 200


class EndedLogs(ImportTarget, Forking, Protocol):
    """The logs, as these operations need them."""


class CallList(Struct, frozen=True):
    items: list[Call]
    after: int | None
    """Where the next page begins; None if this is the last."""


async def import_file(at: Workspaces, logs: EndedLogs, store: Store, *, path: str, workspace: str) -> Imported:
    export = await asyncio.to_thread(read_export, Path(path))
    return await import_export(store.log, logs, at, export, workspace=await workspaces.ensure(at, workspace))


async def list_calls(
    at: Workspaces, logs: EndedLogs, *, run: str, workspace: str | None = None, after: int = 0
) -> CallList:
    """Returns the calls of a run with arguments and results."""
    row = await operated_run(at, logs.stored.logs, run, workspace=workspace)
    contents = Contents(PAGE_BYTES, after, after + _PAGE)
    calls = await logs.stored.calls(row, contents=contents)
    more = contents.end if contents.end < len(calls) else None
    return CallList(call_views(calls[after : contents.end]), more)


async def list_grants(at: Workspaces, logs: EndedLogs, *, run: str, workspace: str | None = None) -> list[Grant]:
    return await grant_views(
        at, await logs.stored.grants(await operated_run(at, logs.stored.logs, run, workspace=workspace))
    )


async def list_doubts(at: Workspaces, logs: EndedLogs, *, workspace: str, before: int | None = None) -> CallList:
    key = await workspaces.find(at, workspace)
    page = await logs.stored.calls_in_doubt(key, before=before, limit=_PAGE, contents=True)
    return CallList(call_views(page.calls), page.before)


async def pause(
    at: Workspaces, logs: ControlledRuns, *, run: str, body: dict[str, Any], workspace: str | None = None
) -> Acknowledged:
    sent, _ = parsed_as(PauseModel, body)
    row = await operated_run(at, logs.stored.logs, run, workspace=workspace)
    return await pause_run(logs, row.key, sent, by=operator_name())


async def resume(
    at: Workspaces, logs: ControlledRuns, *, run: str, body: dict[str, Any], workspace: str | None = None
) -> Acknowledged:
    sent, _ = parsed_as(ResumeModel, body)
    row = await operated_run(at, logs.stored.logs, run, workspace=workspace)
    return await resume_run(logs, row.key, sent, by=operator_name())


async def message(
    at: Workspaces, logs: ControlledRuns, *, run: str, body: dict[str, Any], workspace: str | None = None
) -> QueuedMessage:
    sent, _ = parsed_as(MessageToRunModel, body)
    row = await operated_run(at, logs.stored.logs, run, workspace=workspace)
    return await send_message(logs, row.key, sent, by=operator_name())


async def fork(
    at: Workspaces, logs: EndedLogs, *, run: str, changes: dict[str, Any], workspace: str | None = None
) -> str:
    row = await operated_run(at, logs.stored.logs, run, workspace=workspace)
    asked, _ = parse_fork(changes)
    return await fork_run(logs, at, row, asked, requested_by=operator_name())
