"""Messages of threads over HTTP: a list, and one by one."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.json import encode

from weftline.api.principal import Principal
from weftline.api.views import run_summary
from weftline.cases.base import Host, Limit, Page, Sent, find_thread, require_accepting
from weftline.errors import NotFound
from weftline.runtime import ids
from weftline.runtime.thread_messages import Changes
from weftline.store.records.pages import RowPage
from weftline.store.records.thread_messages import MessageFilter, MessageRow
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import RunFilter
from weftline.wire.responses import JsonObject, Time, iso, iso_or_none
from weftline.wire.run_responses import RunPage, listed_run
from weftline.workspace.thread_messages import MessageFile, Role, Said, said

_MOST_RUNS = 50
"""Each of a page may have a long answer."""
Order: TypeAlias = Literal["asc", "desc"]
AtLeast0: TypeAlias = Annotated[int, Meta(ge=0)]


class MessageView(Struct, kw_only=True):
    """A message of a thread."""

    id: str
    role: Role
    content: str
    name: str
    """The tool, for a result."""
    tool_calls: str
    """The calls of an answer, as JSON text."""
    tool_call_id: str
    created_at: Time
    parent_id: str | None
    depth: int
    silent: bool
    metadata: JsonObject
    status: Literal["pending", "completed", "failed"]
    tool_status: Literal["success", "error"] | None
    attachments: list[MessageFile]
    log_id: str | None
    """The run that it belongs to."""
    request_sent_at: Time | None
    response_completed_at: Time | None
    reasoning_content: str


class MessagePage(Struct):
    """`total` counts all that match."""

    messages: list[MessageView]
    total: int


async def index(
    on: Host,
    by: Principal,
    thread_id: str,
    *,
    limit: Limit = 50,
    offset: Annotated[AtLeast0, "How many to leave out first."] | None = None,
    order: Annotated[Order, "By time; `asc` unless given."] | None = None,
    silent: Annotated[bool, "Also those that only models read."] = False,
    max_depth: Annotated[AtLeast0, "Only those up to this depth; 0 is the top."] | None = None,
) -> MessagePage:
    thread = await find_thread(on, by, thread_id)
    wanted = MessageFilter(
        thread=thread.key,
        limit=limit,
        offset=offset or 0,
        newest_first=order == "desc",
        with_silent=silent,
        max_depth=max_depth,
    )
    rows, total = await on.engine.messages.page(wanted)
    return MessagePage([await _shown(on, thread, row) for row in rows], total)


async def read(on: Host, by: Principal, thread_id: str, message_id: str) -> MessageView:
    thread = await find_thread(on, by, thread_id)
    row = await on.engine.messages.one(thread.key, message_id)
    if row is None:
        raise NotFound("The thread has no such message.", code="unknown_message")
    return await _shown(on, thread, row)


async def index_runs(on: Host, by: Principal, thread_id: str, page: Page) -> RunPage:
    """Newest first."""
    thread = await find_thread(on, by, thread_id)
    wanted = RunFilter(
        workspace=by.workspace, thread=thread.key, before=page.after or None, limit=min(page.limit, _MOST_RUNS) + 1
    )
    rows = await on.engine.stored.logs.runs(wanted)
    listed = rows[: wanted.limit - 1]
    runs = [listed_run(await run_summary(on.engine.stored, row), agent_id=row.agent) for row in listed]
    return RunPage(runs, page.next_cursor(RowPage(listed, listed[-1].key if len(rows) > len(listed) else None)))


class MessageChanges(Struct, rename="camel", forbid_unknown_fields=False):
    """What is changed of a message; metadata are merged."""

    content: str | UnsetType = UNSET
    silent: bool | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


async def change(on: Host, by: Principal, thread_id: str, message_id: str, sent: Sent[MessageChanges]) -> MessageView:
    thread = await find_thread(on, by, thread_id)
    fields = (await sent.read()).fields
    require_accepting(on, by)
    changes = Changes(
        text=None if fields.content is UNSET else fields.content,
        silent=None if fields.silent is UNSET else fields.silent,
        metadata={} if fields.metadata is UNSET else fields.metadata,
    )
    return await _shown(on, thread, await on.engine.messages.update(thread.key, message_id, changes))


async def delete(on: Host, by: Principal, thread_id: str, message_id: str) -> None:
    thread = await find_thread(on, by, thread_id)
    require_accepting(on, by)
    if not await on.engine.messages.delete(thread.key, message_id):
        raise NotFound("The thread has no such message.", code="unknown_message")


async def _shown(on: Host, thread: ThreadRow, row: MessageRow) -> MessageView:
    run = await on.engine.stored.row(row.run)
    log_id = None if run is None else ids.run_id(run.key, run.salt)
    return view(said(row, log_id=log_id, created_at=thread.created_at))


def view(one: Said) -> MessageView:
    times: dict[str, Any] = {
        "created_at": iso(one.created_at),
        "request_sent_at": iso_or_none(one.request_sent_at),
        "response_completed_at": iso_or_none(one.response_completed_at),
        "metadata": Raw(encode(one.metadata)),
        "attachments": list(one.attachments),
    }
    return MessageView(**{**one.fields, **times})
