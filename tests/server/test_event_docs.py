"""The pages about events and routes are held to the code."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from pathlib import Path

from weftline.events.wire import ENDS, ROWS
from weftline.server.routes import (
    awaits,
    calls,
    forks,
    health,
    leases,
    models,
    provided,
    root,
    runs,
    sessions,
    workspaces,
)

from .kit import Api, Frame, Json, local_tool
from .test_client_tools import PARAMETERS

SECTION = re.compile(r"^### `(\w+)`$(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)


def documented(root: Path) -> dict[str, set[str]]:
    """Event type -> its fields, as docs/events.md has them."""
    text = (root / "docs" / "events.md").read_text(encoding="utf-8")
    return {
        kind: {field for row in ROW.findall(section) for field in re.findall(r"`(\w+)`", row)}
        for kind, section in SECTION.findall(text)
    }


def test_the_page_has_every_event_type_that_there_is(project_root: Path) -> None:
    types = {row.type for row in ROWS} | ENDS
    assert types >= {"started", "assistant_delta", "tool_result", "local_tool_call", "cancelled"}
    assert documented(project_root).keys() == types


async def test_the_page_has_every_field_that_real_runs_show(api: Api, project_root: Path) -> None:
    page = documented(project_root)
    echo = [{"kind": "mantyx_plugin", "name": "echo"}]
    peer: Json = {"kind": "a2a_local", "name": "peer", "agentCard": {"name": "Ann"}}
    entry: Json = {"name": "files_read", "annotations": {"readOnlyHint": True}}
    files: Json = {"kind": "mcp_local", "name": "files", "tools": [entry], "serverInfo": {"name": "fs"}}
    slow: Json = {"localToolTimeoutMs": 20}
    logs: list[list[Frame]] = await asyncio.gather(
        api.play("thoughts", reasoningLevel="low"),
        api.play("flaky"),
        api.play("cut"),
        api.play("fails_auth"),
        api.play("echo_loop", tools=echo),
        api.play("greedy", tools=echo, toolBudgets={"echo": {"maxCalls": 1}}),
        api.play("busy", tools=echo, budgets={"maxToolTurns": 1}),
        api.play("delegate", tools=[peer], budgets=slow),
        api.play("mcp", tools=[files], budgets=slow),
        api.play("wrong_args", tools=[local_tool(parameters=PARAMETERS)], budgets=slow),
        api.play("hello", outputSchema={"schema": {"type": "object"}}),
    )
    run = await api.start("lookup", tools=[local_tool()])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        leased = await api.post(f"agent-runs/{run}/tool-leases", {"toolUseId": call["toolUseId"]})
        given = {"toolUseId": call["toolUseId"], "token": leased.json["token"]}
        await api.post(f"agent-runs/{run}/tool-leases/release", given)
        await api.answer(run, call["toolUseId"], result="x")
        logs.append(await stream.rest())
    paying = await api.start("pay", tools=[{"kind": "server", "name": "pay"}])
    async with api.stream(paying) as stream:
        asked = await stream.until("await_opened")
        changed = {"amount": 4, "payee": "Ann"}
        yes = {"outcome": "approved", "args": changed, "remember": True}
        await api.post(f"agent-runs/{paying}/awaits/{asked['awaitId']}", yes)
        logs.append(await stream.rest())
    stuck = await api.start("stuck")
    await api.cancel(stuck)
    logs.append(await api.events(stuck))
    seen: dict[str, set[str]] = defaultdict(set)
    for frames in logs:
        for frame in frames:
            seen[frame.type] |= frame.payload.keys()
    undocumented = {kind: fields - page[kind] for kind, fields in seen.items() if fields - page[kind]}
    assert undocumented == {}
    assert seen.keys() == page.keys() - {
        "local_tool_fallback",
        "run_paused",
        "run_resumed",
        "tool_progress",
        "note",
        "messages_taken",
        "child_started",
        "child_ended",
        "context_compacted",
        "context_restored",
        "policy_decision",
    }


def test_serving_page_has_every_route_of_runs_and_sessions(project_root: Path) -> None:
    text = (project_root / "docs" / "http.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\| (\w+) \| `([^`]+)` \|", text, re.MULTILINE))
    routes = (
        *runs.ROUTES,
        *awaits.ROUTES,
        *leases.ROUTES,
        *provided.ROUTES,
        *calls.ROUTES,
        *forks.ROUTES,
        *sessions.ROUTES,
        *models.ROUTES,
        *workspaces.ROUTES,
        *root.ROUTES,
        *health.ROUTES,
    )
    there = {(route.method, route.path.replace("/api/v1/workspaces/{slug}", "…")) for route in routes}
    assert shown == there
