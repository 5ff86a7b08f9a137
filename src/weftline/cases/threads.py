"""Threads: conversations that last, with an agent, values and environment values of their own.

A session of the protocol and a thread of the library are threads as well. Either id works in every path: the thread's
UUID, and the `ses_…` of the session.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import decode, encode
from pydantic import Field

from weftline.api.planning import SpecAndHeaders, check_plan, effective, plan_of, require_named
from weftline.api.principal import Principal
from weftline.cases.base import Host, Page, Repeatable, Sent, find_thread, require_accepting
from weftline.errors import NotFound
from weftline.runtime import ids
from weftline.store.database import Query
from weftline.store.records import thread_state
from weftline.store.records import threads as rows
from weftline.store.records.pages import RowPage
from weftline.store.records.thread_state import WORKSPACE, EnvRow, EnvType, of_account, of_thread
from weftline.store.records.threads import ThreadFilter, ThreadRow
from weftline.wire.errors import error_code
from weftline.wire.models import Part
from weftline.wire.responses import Time, Warnings, iso, iso_or_none
from weftline.work.heavy import parsed
from weftline.workspace import agents, threads
from weftline.workspace.context import Workspaces
from weftline.workspace.thread_starting import MAX_TAGS, TAG, ThreadStart, start_thread, tag_key
from weftline.workspace.thread_state import (
    MAX_ENV_BYTES,
    MAX_VALUES,
    opened,
    put_env,
    set_thread_env,
    set_value,
)

Status = Literal["active", "terminated"]


class ThreadModel(Part):
    """The body that creates a thread."""

    agent_id: str = Field(alias="agentId", min_length=1, max_length=256)
    user_id: str | None = Field(default=None, alias="userId", min_length=1, max_length=256)
    name: str = Field(default="", max_length=200)
    env: dict[str, str] = Field(default_factory=dict)
    values: dict[str, Any] = Field(default_factory=dict)
    tags: list[str] = Field(default_factory=list, max_length=MAX_TAGS)


class ValueModel(Part):
    """The body that sets a value."""

    value: Any


class EnvModel(Part):
    """The body that sets an environment value."""

    value: str = Field(max_length=MAX_ENV_BYTES)
    type: EnvType | None = None


class ThreadValue(Struct):
    key: str
    value: Raw


class ThreadValues(Struct, rename="camel"):
    values: list[ThreadValue]
    next_cursor: str | None


class EnvValue(Struct, rename="camel"):
    name: str
    type: EnvType
    updated_at: Time
    value: str | UnsetType = UNSET
    """Left out for a secret, which nobody reads back."""


class EnvValues(Struct):
    env: list[EnvValue]


class ThreadView(Struct, rename="camel"):
    id: str
    session_id: str
    """Its id for the session routes."""
    agent_id: str | None
    user_id: str | None
    name: str
    tags: list[str]
    status: Status
    created_at: Time
    last_used_at: Time
    terminated_at: Time | None
    parent_id: str | None
    depth: int
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable; left out otherwise."""


class CreatedThread(ThreadView, rename="camel", kw_only=True):
    warnings: Warnings = UNSET


class ThreadPage(Struct, rename="camel"):
    threads: list[ThreadView]
    next_cursor: str | None


async def create(on: Host, by: Principal, sent: Repeatable[ThreadModel]) -> CreatedThread:
    body = await sent.read()
    fields, warnings = body.fields, sent.warn(body.unknown)
    once = await sent.once("threads", body.raw)
    at = on.workspaces
    agent_id = await agents.id_of(at, by.workspace, fields.agent_id)
    require_named(by, agent_id)
    row = once and await threads.created_before(at, by.workspace, once)
    if not row:
        require_accepting(on, by)
        own = SpecAndHeaders(encode({"agentId": agent_id}), {})
        whole = await effective(at, by, agent_id, own, replaces=by.may_change_agents)
        plan = await parsed(partial(plan_of, at), whole.spec)
        await check_plan(on.engine, plan, workspace=by.workspace, unknown=body.unknown)
        given = ThreadStart(
            agent=agent_id,
            name=fields.name or plan.name,
            user=fields.user_id,
            env=fields.env,
            values=fields.values,
            tags=fields.tags,
            spec=whole.spec,
            headers=whole.headers,
        )
        code = at.code.by_id(agent_id)
        rules = None if code is None else code.threads
        row = await start_thread(at, by.workspace, given, engine=on.engine, rules=rules, once=once)
    shown = await _shown(on, row)
    return CreatedThread(*[getattr(shown, name) for name in ThreadView.__struct_fields__], warnings=warnings)


async def index(
    on: Host,
    by: Principal,
    page: Page,
    *,
    agent_id: Annotated[str, "Created with this agent."] | None = None,
    user_id: Annotated[str, "Of this user."] | None = None,
    tag: Annotated[str, "With this tag."] | None = None,
    status: Annotated[Status, "Only these."] | None = None,
) -> ThreadPage:
    """Newest first."""
    allowed = by.agents
    if agent_id is not None:
        named = await agents.id_of(on.workspaces, by.workspace, agent_id)
        allowed = (named,) if not allowed or named in allowed else ("",)
    wanted = ThreadFilter(
        workspace=by.workspace,
        before=page.after or None,
        limit=page.limit + 1,
        agents=allowed,
        ended=None if status is None else status == "terminated",
        metadata=() if tag is None else ((tag_key(tag), ""),),
        user=user_id,
    )
    found = await threads.page(on.workspaces, wanted)
    listed = found[: page.limit]
    following = page.next_cursor(RowPage(listed, listed[-1].key if len(found) > page.limit else None))
    return ThreadPage([await _shown(on, row) for row in listed], following)


async def read(on: Host, by: Principal, thread_id: str) -> ThreadView:
    return await _shown(on, await find_thread(on, by, thread_id))


async def delete(on: Host, by: Principal, thread_id: str) -> None:
    thread = await find_thread(on, by, thread_id)
    await threads.end(on.workspaces, on.engine, thread, requested_by=by.who)


async def _shown(on: Host, row: ThreadRow) -> ThreadView:
    parent = None if row.parent is None else await on.workspaces.records.read(rows.by_key(row.parent))
    metadata = decode(row.metadata, type=dict[str, str])
    return ThreadView(
        row.uuid,
        ids.session_id(row.key, row.salt),
        row.seat_agent or row.agent,
        row.user,
        row.name,
        [name.removeprefix(TAG) for name in metadata if name.startswith(TAG)],
        "active" if row.ended_at is None else "terminated",
        iso(row.created_at),
        iso(row.last_used_at),
        iso_or_none(row.ended_at),
        None if parent is None else parent.uuid,
        row.depth,
        error_code(row.damaged),
    )


# Values


async def index_values(on: Host, by: Principal, thread_id: str) -> ThreadValues:
    thread = await find_thread(on, by, thread_id)
    rows = await on.workspaces.records.read(thread_state.values(thread.key, after="", limit=MAX_VALUES))
    return ThreadValues([ThreadValue(key, Raw(value)) for key, value in rows], None)


async def read_value(on: Host, by: Principal, thread_id: str, key: str) -> ThreadValue:
    thread = await find_thread(on, by, thread_id)
    value = await on.workspaces.records.read(thread_state.value(thread.key, key))
    if value is None:
        raise NotFound(f"The thread has no value {key!r}.")
    return ThreadValue(key, Raw(value))


async def change_value(on: Host, by: Principal, thread_id: str, key: str, sent: Sent[ValueModel]) -> ThreadValue:
    thread = await find_thread(on, by, thread_id)
    body = await sent.read()
    require_accepting(on, by)
    stored = await set_value(on.workspaces, thread.key, key, body.fields.value)
    return ThreadValue(key, Raw(stored or b"null"))


async def delete_value(on: Host, by: Principal, thread_id: str, key: str) -> None:
    thread = await find_thread(on, by, thread_id)
    on.engine.require_writable()
    await set_value(on.workspaces, thread.key, key, None)


# Environment values


async def index_env(on: Host, by: Principal, thread_id: str) -> EnvValues:
    thread = await find_thread(on, by, thread_id)
    return await _listed(on, thread.workspace, of_thread(thread.key))


async def change_env(on: Host, by: Principal, thread_id: str, name: str, sent: Sent[EnvModel]) -> EnvValue:
    thread = await find_thread(on, by, thread_id)
    fields = (await sent.read()).fields
    require_accepting(on, by)
    await set_thread_env(on.workspaces, thread, name, fields.value, type=fields.type)
    return await _one(on, thread.workspace, of_thread(thread.key), name)


async def delete_env(on: Host, by: Principal, thread_id: str, name: str) -> None:
    thread = await find_thread(on, by, thread_id)
    on.engine.require_writable()
    await _remove(on, thread.workspace, of_thread(thread.key), name, thread=thread.key)


async def index_account_env(on: Host, by: Principal, user_id: str) -> EnvValues:
    return await _listed(on, by.workspace, of_account(user_id))


async def change_account_env(on: Host, by: Principal, user_id: str, name: str, sent: Sent[EnvModel]) -> EnvValue:
    body = await sent.read()
    return await _change(on, by, of_account(user_id), name, body.fields)


async def delete_account_env(on: Host, by: Principal, user_id: str, name: str) -> None:
    on.engine.require_writable()
    await _remove(on, by.workspace, of_account(user_id), name)


async def index_workspace_env(on: Host, by: Principal) -> EnvValues:
    return await _listed(on, by.workspace, WORKSPACE)


async def change_workspace_env(on: Host, by: Principal, name: str, sent: Sent[EnvModel]) -> EnvValue:
    body = await sent.read()
    return await _change(on, by, WORKSPACE, name, body.fields)


async def delete_workspace_env(on: Host, by: Principal, name: str) -> None:
    on.engine.require_writable()
    await _remove(on, by.workspace, WORKSPACE, name)


async def _listed(on: Host, workspace: int, owner: str) -> EnvValues:
    rows = await on.workspaces.records.read(thread_state.env_of(owner, workspace=workspace))
    return EnvValues([_env_shown(on.workspaces, workspace, row) for row in rows])


async def _one(on: Host, workspace: int, owner: str, name: str) -> EnvValue:
    row = await on.workspaces.records.read(thread_state.env(owner, name, workspace=workspace))
    if row is None:
        raise NotFound(f"There is no environment value {name!r}.")
    return _env_shown(on.workspaces, workspace, row)


async def _change(on: Host, by: Principal, owner: str, name: str, fields: EnvModel) -> EnvValue:
    require_accepting(on, by)
    await on.workspaces.records.write(put_env(on.workspaces, by.workspace, owner, name, fields.value, type=fields.type))
    return await _one(on, by.workspace, owner, name)


async def _remove(on: Host, workspace: int, owner: str, name: str, *, thread: int | None = None) -> None:
    def query() -> Query[bool]:
        if thread is not None:
            yield from threads.open_row(thread)
        return (yield from thread_state.delete_env(owner, name, workspace=workspace))

    if not await on.workspaces.records.write(query()):
        raise NotFound(f"There is no environment value {name!r}.")


def _env_shown(at: Workspaces, workspace: int, row: EnvRow) -> EnvValue:
    value = opened(at, workspace, row) if row.type == "text" else UNSET
    return EnvValue(row.name, row.type, iso(row.updated_at), value)
