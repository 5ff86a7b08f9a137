"""Questions to people, and their answers, for commands on the store."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.json import decode, encode

from weftline.api.controlling import ControlledRuns, answer_run
from weftline.api.operator import operated_run, operator_name
from weftline.api.schemas.awaits import AnsweredAwait, AnswerModel, parsed_as
from weftline.api.views import await_views
from weftline.runtime.reads.finding import StoredNames, row_of
from weftline.store.records.pages import PAGE_BYTES
from weftline.store.rows import AwaitFilter
from weftline.workspace import agents, workspaces
from weftline.workspace.context import Workspaces

_PAGE = 200


class AwaitList(Struct, frozen=True):
    items: list[dict[str, Any]]
    after: list[Any] | None
    """Where the next page begins; None if this is the last."""


async def list_awaits(
    at: Workspaces,
    logs: ControlledRuns,
    *,
    workspace: str,
    run: str | None = None,
    agent: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    after: list[Any] | None = None,
) -> AwaitList:
    """Lists the open questions of a workspace's runs."""
    key = await workspaces.find(at, workspace)
    row = None if run is None else await row_of(logs.stored.logs, run, workspace=key)
    if run is not None and row is None:  # it may exist in another workspace
        return AwaitList([], None)
    if agent is not None:
        agent = await agents.id_of(at, key, agent)
    wanted = AwaitFilter(
        workspace=key,
        after=(0, "") if after is None else (after[0], after[1]),
        limit=_PAGE,
        max_bytes=PAGE_BYTES,
        root=None if row is None else row.key,
        agents=() if agent is None else (agent,),
        kinds=() if kind is None else (kind,),
        tool=name,
    )
    page = await logs.stored.awaits(wanted)
    found = [one for one in page if not one.unread]
    names = StoredNames(at.records)

    async def session_id(thread: int | None) -> str | None:
        return None if thread is None else await names.session(thread)

    views = decode(encode(await await_views(found, session_id)))
    return AwaitList(views, [found[-1].run, found[-1].id] if len(page) == _PAGE or len(found) < len(page) else None)


async def answer_await(
    at: Workspaces, logs: ControlledRuns, *, run: str, id: str, body: dict[str, Any], workspace: str | None = None
) -> AnsweredAwait:
    row = await operated_run(at, logs.stored.logs, run, workspace=workspace)
    sent, _ = parsed_as(AnswerModel, body)
    return await answer_run(at, logs, row.key, sent, run_id=run, await_id=id, by=operator_name())
