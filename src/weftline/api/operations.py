"""Administrative operations by name, for the command line and the owner's control socket.

Each is a use case with arguments and results in JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct, convert

from weftline.api.await_operations import answer_await, list_awaits
from weftline.api.budget_operations import list_budgets, set_budget
from weftline.api.cancelling import CancelledRuns, cancel_run
from weftline.api.control import Operation
from weftline.api.controlling import ControlledRuns
from weftline.api.oauth_operations import OPERATIONS as OAUTH
from weftline.api.operator import operated_run
from weftline.api.planning import plan_warnings
from weftline.api.run_operations import (
    EndedLogs,
    fork,
    import_file,
    list_calls,
    list_doubts,
    list_grants,
    message,
    pause,
    resume,
)
from weftline.api.schedule_operations import (
    SchedulingLogs,
    create_schedule,
    delete_schedule,
    list_schedules,
    run_schedule,
    switch_schedule,
)
from weftline.api.schemas.agents import Agent, agent_json, parse_agent
from weftline.api.schemas.keys import Key, key_json
from weftline.api.schemas.providers import Provider, parse_provider, provider_json
from weftline.api.schemas.tools import Tool, parse_tool, tool_json
from weftline.api.schemas.webhooks import (
    CreatedWebhook,
    Delivery,
    Webhook,
    created_webhook_json,
    delivery_json,
    webhook_json,
)
from weftline.errors import InvalidRequest, NotFound
from weftline.runtime import ids
from weftline.runtime.deploys import left_alone
from weftline.runtime.engine import Resumed
from weftline.spec.plan import plan_from_spec
from weftline.spec.tools import dialled_urls
from weftline.store.base import Store
from weftline.store.records.agents import AgentRow
from weftline.store.rows import Copied, RunFilter
from weftline.text.suggestions import did_you_mean
from weftline.tools.mcp.login import Login
from weftline.wire.errors import client_names
from weftline.wire.responses import Warnings, iso, request_warnings
from weftline.wire.run_responses import Cancelled
from weftline.wire.unknown_fields import UnknownField
from weftline.workspace import agents, keys, mcp_logins, providers, tools, webhooks, workspaces
from weftline.workspace.context import Workspaces

T = TypeVar("T")

_PAGE = 200
"""How many items of a list are returned at once; fewer if they are large."""
_MAX_DELIVERIES = 200
_MAX_ORDER_S = 1.0
"""How long a maintenance order may take, so that its sender can be stopped."""
_UNFINISHED = ("queued", "running", "paused")
_FEATURES: dict[str, workspaces.Feature] = {"apiKeys": "api_keys", "oauthApps": "oauth_apps"}
"""The features of a workspace, by the names that operators use."""


class ListPage(Struct, Generic[T], frozen=True):
    """A page of a list whose items may be large."""

    items: list[T]
    after: int | None
    """Where the next page begins; None if this is the last."""


class Logs(EndedLogs, SchedulingLogs, ControlledRuns, CancelledRuns, Protocol):
    """The logs, as administration needs them: a running engine, or a store without one."""

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]: ...
    async def resume_all(self) -> Resumed: ...


def operations(at: Workspaces, logs: Logs, store: Store) -> dict[str, Operation]:
    """Returns all operations on the records of `at`, the logs and the store that holds both."""
    on_records: dict[str, Operation] = {
        "keys.create": _create_key,
        "keys.import": _import_key,
        "keys.list": _list_keys,
        "keys.show": _show_key,
        "keys.delete": _delete_key,
        "workspaces.list": workspaces.slugs,
        "workspaces.features": _features,
        "workspaces.set_feature": _set_feature,
        "agents.list": _list_agents,
        "agents.show": _show_agent,
        "agents.delete": _delete_agent,
        "providers.create": _create_provider,
        "providers.list": _list_providers,
        "providers.show": _show_provider,
        "providers.delete": _delete_provider,
        "tools.create": _create_tool,
        "tools.list": _list_tools,
        "tools.show": _show_tool,
        "tools.delete": _delete_tool,
        "mcp.logins.save": _save_login,
        "mcp.logins.list": _list_logins,
        "mcp.logins.scope": _login_scope,
        "mcp.logins.delete": _delete_login,
        "webhooks.create": _create_webhook,
        "webhooks.list": _list_webhooks,
        "webhooks.delete": _delete_webhook,
        **OAUTH,
    }
    with_logs: dict[str, Operation] = {
        "agents.create": _create_agent,
        "agents.update": _update_agent,
        "webhooks.deliveries": _list_deliveries,
        "retention.trim": _trim,
        "runs.unsupported": _unsupported_runs,
        "runs.cancel": _cancel_run,
        "runs.pause": pause,
        "runs.resume": resume,
        "runs.message": message,
        "schedules.create": create_schedule,
        "schedules.list": list_schedules,
        "schedules.delete": delete_schedule,
        "schedules.switch": switch_schedule,
        "schedules.run": run_schedule,
        "awaits.list": list_awaits,
        "awaits.answer": answer_await,
    }
    return {
        **{name: partial(operation, at) for name, operation in on_records.items()},
        **{name: partial(operation, at, logs) for name, operation in with_logs.items()},
        "runs.import": partial(import_file, at, logs, store),
        "runs.fork": partial(fork, at, logs),
        "budgets.list": partial(list_budgets, at, store),
        "budgets.set": partial(set_budget, at, store),
        "calls.list": partial(list_calls, at, logs),
        "calls.in_doubt": partial(list_doubts, at, logs),
        "grants.list": partial(list_grants, at, logs),
        "store.backup": partial(_back_up, store),
        "store.shrink": partial(_shrink, store),
        "store.resume": logs.resume_all,
    }


# Logins at MCP servers


class McpLogin(Struct, frozen=True, rename="camel"):
    """A login, without its secrets."""

    url: str
    created_at: str
    renewed_at: str


async def _save_login(at: Workspaces, *, workspace: str, login: dict[str, Any]) -> None:
    await mcp_logins.save(at, convert(login, Login), slug=workspace)


async def _list_logins(at: Workspaces, *, workspace: str) -> list[McpLogin]:
    found = await mcp_logins.list_logins(at, slug=workspace)
    return [McpLogin(one.url, iso(one.created_at), iso(one.updated_at)) for one in found]


async def _login_scope(at: Workspaces, *, workspace: str, url: str) -> str | None:
    return await mcp_logins.scope(at, url=url, slug=workspace)


async def _delete_login(at: Workspaces, *, workspace: str, url: str) -> None:
    await mcp_logins.delete(at, url=url, slug=workspace)


# Keys and workspaces


async def _create_key(
    at: Workspaces, *, workspace: str, name: str = "", usage: str = "developer_api", agents: list[str] | None = None
) -> tuple[str, str]:
    made = await keys.create(at, workspace, name=name, usage=usage, agents=agents or ())
    return made.key.id, made.secret


async def _import_key(at: Workspaces, *, workspace: str, secret: str, name: str = "") -> str:
    return (await keys.import_key(at, workspace, secret, name=name)).id


async def _list_keys(at: Workspaces, *, workspace: str, revoked: bool = False, after: int = 0) -> ListPage[Key]:
    page = await keys.page(at, await workspaces.find(at, workspace), after=after, limit=_PAGE, revoked=revoked)
    return ListPage([key_json(key) for key in page.rows], page.more_after)


async def _show_key(at: Workspaces, *, id: str) -> Key:
    return key_json(await keys.find(at, id))


async def _delete_key(at: Workspaces, *, id: str) -> Key:
    return key_json(await keys.revoke(at, id))


async def _features(at: Workspaces, *, workspace: str) -> dict[str, bool]:
    return _named(await workspaces.features(at, workspace))


async def _set_feature(at: Workspaces, *, workspace: str, feature: str, on: bool) -> dict[str, bool]:
    if feature not in _FEATURES:
        raise InvalidRequest(f"{feature!r} is not a feature; the features are {' and '.join(_FEATURES)}.")
    return _named(await workspaces.set_feature(at, workspace, _FEATURES[feature], on=on))


def _named(features: Mapping[workspaces.Feature, bool]) -> dict[str, bool]:
    return {name: features[feature] for name, feature in _FEATURES.items()}


# Agents


async def _create_agent(at: Workspaces, logs: Logs, *, workspace: str, definition: str) -> Agent:
    """Creates an agent. `definition` is the same JSON as in the HTTP API."""
    draft, unknown = parse_agent(definition.encode())
    row = await agents.create(at, await workspaces.ensure(at, workspace), draft)
    return agent_json(row, await _agent_warnings(logs, row, unknown))


async def _update_agent(at: Workspaces, logs: Logs, *, workspace: str, id: str, definition: str) -> Agent:
    draft, unknown = parse_agent(definition.encode())
    known = await _find_agent(at, workspace, id)
    row = await agents.replace(at, known.workspace, known.id, draft, dialled_urls=dialled_urls)
    return agent_json(row, await _agent_warnings(logs, row, unknown))


async def _agent_warnings(logs: Logs, row: AgentRow, unknown: Sequence[UnknownField]) -> Warnings:
    plan = plan_from_spec(row.spec)
    return await plan_warnings(logs, plan, unknown, workspace=row.workspace, runs_now=False)


async def _list_agents(at: Workspaces, *, workspace: str, after: int = 0) -> ListPage[Agent]:
    page = await agents.page(at, await workspaces.find(at, workspace), after=after, limit=_PAGE)
    return ListPage([agent_json(row) for row in page.rows], page.more_after)


async def _show_agent(at: Workspaces, *, workspace: str, id: str) -> Agent:
    return agent_json(await _find_agent(at, workspace, id))


async def _find_agent(at: Workspaces, workspace: str, name: str) -> AgentRow:
    """Returns an agent by its id or slug; the error suggests the nearest slugs."""
    key = await workspaces.find(at, workspace)
    try:
        return await agents.find(at, key, name)
    except NotFound as error:
        slugs = [row.slug for row in await agents.of_workspace(at, key)]
        near = await asyncio.to_thread(did_you_mean, name, slugs)
        raise NotFound(f"{error.message}{near}", **error.details) from None


async def _delete_agent(at: Workspaces, *, workspace: str, id: str) -> str:
    row = await _find_agent(at, workspace, id)
    await agents.delete(at, row.workspace, row.id)
    return row.id


# Providers


async def _create_provider(at: Workspaces, *, workspace: str, provider: dict[str, Any]) -> Provider:
    name, spec, values = parse_provider(provider)
    with client_names():
        return provider_json(await providers.create(at, await workspaces.find(at, workspace), name, spec, values))


async def _list_providers(at: Workspaces, *, workspace: str, after: int = 0) -> ListPage[Provider]:
    page = await providers.page(at, await workspaces.find(at, workspace), after=after, limit=_PAGE)
    return ListPage([provider_json(row) for row in page.rows], page.more_after)


async def _show_provider(at: Workspaces, *, workspace: str, id: str) -> Provider:
    return provider_json(await providers.find(at, await workspaces.find(at, workspace), id))


async def _delete_provider(at: Workspaces, *, workspace: str, id: str) -> str:
    return await providers.delete(at, await workspaces.find(at, workspace), id)


# Tools


async def _create_tool(at: Workspaces, *, workspace: str, tool: dict[str, Any]) -> Tool:
    spec, values, unknown = parse_tool(tool)
    with client_names():
        row = await tools.create(at, await workspaces.find(at, workspace), spec, values=values)
    return tool_json(row, request_warnings(unknown))


async def _list_tools(at: Workspaces, *, workspace: str, after: int = 0) -> ListPage[Tool]:
    page = await tools.page(at, await workspaces.find(at, workspace), after=after, limit=_PAGE)
    return ListPage([tool_json(row) for row in page.rows], page.more_after)


async def _show_tool(at: Workspaces, *, workspace: str, id: str) -> Tool:
    return tool_json(await tools.find(at, await workspaces.find(at, workspace), id))


async def _delete_tool(at: Workspaces, *, workspace: str, id: str) -> str:
    await tools.delete(at, await workspaces.find(at, workspace), id)
    return id


# Webhooks and old logs


async def _create_webhook(at: Workspaces, *, workspace: str, url: str, events: list[str]) -> CreatedWebhook:
    made = await webhooks.create(at, await workspaces.ensure(at, workspace), url, events=events or webhooks.ENDS)
    return created_webhook_json(made.webhook, made.secret)


async def _list_webhooks(at: Workspaces, *, workspace: str, after: int = 0) -> ListPage[Webhook]:
    rows = await webhooks.of_workspace(at, await workspaces.find(at, workspace))
    return ListPage([webhook_json(row) for row in rows], None)  # they are few and small


async def _delete_webhook(at: Workspaces, *, workspace: str, id: str) -> str:
    await webhooks.delete(at, await workspaces.find(at, workspace), id)
    return id


async def _list_deliveries(
    at: Workspaces, logs: Logs, *, workspace: str, id: str, status: str | None = None
) -> list[Delivery]:
    """Returns the newest 200."""
    webhook = await webhooks.find(at, await workspaces.find(at, workspace), id)
    found: list[Delivery] = []
    for row in await webhooks.deliveries_of(at, webhook, status=status, limit=_MAX_DELIVERIES):
        run = await logs.stored.logs.run(row.run)
        found.append(delivery_json(row, run_id=ids.run_id(run.key, run.salt) if run is not None else ""))
    return found


async def _trim(
    at: Workspaces, logs: Logs, *, before: int, after: int, workspace: str | None = None
) -> tuple[int, int]:
    """Removes the logs of the next runs after the key `after` that ended before that time; at the end, old deliveries
    too.

    Returns the last key examined (0 if no run is left) and how many runs had something to remove.
    """
    key = None if workspace is None else await workspaces.find(at, workspace)
    trimmed = 0
    until_s = monotonic() + _MAX_ORDER_S
    while monotonic() < until_s:
        after, count = await _with_pause(logs.trim(before=before, after=after, workspace=key))
        trimmed += count
        if not after:
            while await _with_pause(webhooks.forget_deliveries(at, before=before, workspace=key)):
                pass
            break
    return after, trimmed


async def _with_pause(work: Awaitable[T]) -> T:
    """Pauses after the work for as long as it took, so that others have the store for at least half of the time."""
    began_s = monotonic()
    value = await work
    await asyncio.sleep(monotonic() - began_s)
    return value


async def _back_up(store: Store, *, to: str) -> Copied:
    return await store.back_up(Path(to))


async def _shrink(store: Store) -> int:
    """Shrinks the store for a moment; returns by how many bytes, 0 if there is nothing left to do."""
    freed = 0
    until_s = monotonic() + _MAX_ORDER_S
    while monotonic() < until_s and (count := await _with_pause(store.shrink())):
        freed += count
    return freed


async def _cancel_run(at: Workspaces, logs: Logs, *, id: str, workspace: str | None = None) -> Cancelled:
    row = await operated_run(at, logs.stored.logs, id, workspace=workspace)
    return await cancel_run(logs, row.key, by="command line")


async def _unsupported_runs(at: Workspaces, logs: Logs, *, workspace: str | None = None) -> list[UnsupportedRun]:
    """Returns unfinished runs that this version leaves to a newer one, which has written to them or to others of their
    tree.
    """
    key = None if workspace is None else await workspaces.find(at, workspace)
    found: list[UnsupportedRun] = []
    before: int | None = None
    while rows := await logs.stored.runs(RunFilter(workspace=key, statuses=_UNFINISHED, before=before)):
        before = rows[-1].key
        found += [
            UnsupportedRun(ids.run_id(row.key, row.salt), row.name, row.status, unknown)
            for row in rows
            if (unknown := await left_alone(logs.stored.logs, row))
        ]
    return found


class UnsupportedRun(Struct):
    id: str
    name: str
    status: str
    unknown: str
    """What this version does not know about it."""
