"""Credentials with an agent allow-list, route by route: tests made from the table of routes."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from weftline.server.router import Narrowed, Route
from weftline.server.routes.every import ROUTES
from weftline.threads import (
    Registry,
    SideConfig,
    ThreadState,
    define_agent,
    define_effect,
    define_prompt,
    define_thread_endpoint,
)
from weftline.threads.serving import Folder

from .kit import Browser, Reply, World, check_error
from .worlds import new_world

PAGE = Path(__file__).resolve().parents[3] / "docs" / "auth.md"
TOOL = {"kind": "local", "name": "lookup"}
NO_ID = "nothing_0123456789ab"


def named(route: Route) -> str:
    return f"{route.method} {route.path.replace('/api/v1/workspaces/{slug}', '…')}"


GUARDED = {named(route): route for route in ROUTES if route.access == "workspace"}
RULES: dict[str, Narrowed] = {name: route.narrowed for name, route in GUARDED.items()}
OF_ONE = [name for name, narrowed in RULES.items() if narrowed == "its agents" and re.search(r"\{(?!slug)", name)]
OVER_MCP = [name for name in RULES if name.endswith(" /api/mcp/{slug}")]
"""These need a whole MCP session; tests/server/hosted/test_mcp.py holds one with a narrowed key."""
OF_ALL = [
    name for name, narrowed in RULES.items() if narrowed == "its agents" and name not in OF_ONE and name not in OVER_MCP
]


class Belongings(Struct):
    """What an agent has; `id` is None for what was made without an agent."""

    id: str | None
    slug: str
    run: str
    session: str
    schedule: str = NO_ID
    effect: str = NO_ID

    def path(self, route: Route) -> str:
        params = {"slug": "acme", "agentId": self.id or NO_ID, "agentSlug": self.slug}
        params |= {"turn": "0", "runId": self.run, "sessionId": self.session, "scheduleId": self.schedule}
        params |= {"threadId": self.session, "key": "k", "name": "k", "rest": "own", "path": "k"}
        params |= {"effectId": self.effect}
        return re.sub(r"\{\*?(\w+)\}", lambda match: params.get(match[1], NO_ID), route.path)


class Office:
    """A workspace with two agents and work of each, and work of none; and a credential for the first agent alone."""

    def __init__(self, world: World, wide: str) -> None:
        self.world = world
        self.wide = wide
        self.narrow = ""
        self.usages: dict[str, str] = {}
        self.mine = self.theirs = self.nobodys = Belongings(None, "", "", "")

    async def call(self, name: str, path: str, credential: str, body: Any = None) -> Reply:
        return await self.world.call(name.partition(" ")[0], path, credential=credential, body=body)

    async def make(self, path: str, body: dict[str, Any], *, method: str = "POST") -> Any:
        reply = await self.world.call(method, f"/api/v1/workspaces/acme/{path}", credential=self.wide, body=body)
        assert reply.status in (200, 201, 202), reply.body
        return reply.json

    async def settle(self, name: str | None) -> Belongings:
        spec = {"modelId": "scripted:lookup", "tools": [TOOL]}
        agent: Any = await self.make("agents", {"name": name, "spec": spec}) if name else {"id": None, "slug": NO_ID}
        with_agent = {"agentId": agent["id"]} if name else spec
        run = await self.make("agent-runs", {**with_agent, "prompt": "hi"})
        session = await self.make("agent-sessions", with_agent)
        for path, value in (("values/k", 1), ("env/k", "v"), ("fs/k", "v")):
            await self.make(f"threads/{session['sessionId']}/{path}", {"value": value}, method="PUT")
        effect = NO_ID
        if name:
            self.world.app.folder = Folder(folder_for(agent["id"]))
            later = {"name": "later", "delayMs": 3_600_000}
            effect = (await self.make(f"threads/{session['sessionId']}/effects", later))["id"]
        yearly = {"name": "Yearly", "cron": "@yearly", "spec": {**with_agent, "prompt": "hi"}}
        schedule = await self.make("schedules", yearly)
        return Belongings(agent["id"], agent["slug"], run["runId"], session["sessionId"], schedule["id"], effect)


@pytest.fixture(scope="module")
def furnished(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Office]:
    """A store with an office in it, made once: each test works on a copy."""
    path = shutil.copytree(empty_store, tmp_path_factory.mktemp("office") / "store")

    async def furnish() -> Office:
        async with new_world(path) as world:
            office = Office(world, await world.key())
            office.mine, office.theirs = await office.settle("Mine"), await office.settle("Theirs")
            office.nobodys = await office.settle(None)
            office.narrow = await world.key(agents=[office.mine.id])
            return office

    return path, asyncio.run(furnish())


@pytest.fixture
async def world(furnished: tuple[Path, Office], tmp_path: Path) -> AsyncGenerator[World]:
    async with new_world(shutil.copytree(furnished[0], tmp_path / "store")) as world:
        yield world


@pytest.fixture
def office(furnished: tuple[Path, Office], world: World) -> Office:
    office = copy(furnished[1])
    office.world, office.usages = world, {}
    world.app.folder = Folder(folder_for(str(office.mine.id), str(office.theirs.id)))
    return office


def folder_for(*ids: str) -> Registry:
    """A folder of these agents, with an effect and an endpoint for each method."""

    async def later(state: ThreadState) -> None:
        """Does nothing."""

    async def answer(request: Any, state: Any, params: Any) -> str:
        return state.thread_id

    prompt = define_prompt(name="p", model="m", tool_description="x", prompt="x")
    agents = [define_agent(name=one, side_a=SideConfig(prompt="p")) for one in ids]
    endpoints = {
        f"own.{method}": define_thread_endpoint(answer) for method in ("get", "post", "put", "patch", "delete")
    }
    return Registry.of(prompts=[prompt], agents=agents, endpoints=endpoints, effects=[define_effect(later)])


BODIES: dict[str, Any] = {
    "POST …/agent-runs/{runId}/tool-results": {"toolUseId": "call_0_0", "result": "x"},
    "POST …/agent-runs/{runId}/tool-results/{awaitId}": {"results": [{"toolUseId": "call_0_0", "result": "x"}]},
    "POST …/agent-runs/{runId}/tool-leases": {"toolUseId": "call_0_0"},
    "POST …/agent-runs/{runId}/tool-leases/heartbeat": {"toolUseId": "call_0_0", "token": "none"},
    "POST …/agent-runs/{runId}/tool-leases/release": {"toolUseId": "call_0_0", "token": "none"},
    "POST …/agent-runs/{runId}/awaits/{awaitId}": {"outcome": "approved"},
    "POST …/agent-runs/{runId}/fork": {"turn": 0},
    "POST …/agent-runs/{runId}/messages": {"text": "hi"},
    "POST …/agent-sessions/{sessionId}/messages": {"prompt": "hi"},
    "PATCH …/threads/{threadId}/messages/{messageId}": {"metadata": {"seen": True}},
    "PUT …/threads/{threadId}/values/{key}": {"value": 2},
    "PUT …/threads/{threadId}/env/{name}": {"value": "x"},
    "POST …/threads/{threadId}/fs/{*path}": {"data": "eA=="},
    "PUT …/threads/{threadId}/fs/{*path}": {},
    "POST …/threads/{threadId}/effects": {"name": "later", "delayMs": 3_600_000},
    "PATCH …/schedules/{scheduleId}": {"enabled": False},
    "POST /api/a2a/{slug}/agents/{agentSlug}": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tasks/get",
        "params": {"id": "x"},
    },
}


def test_docs_table_has_every_guarded_route() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| ((?:`[^`]+`(?:, )?)+) \| (yes|its agents|no) \|$", PAGE.read_text(), re.MULTILINE
    )
    shown = [(route, narrowed) for _, routes, narrowed in rows for route in re.findall("`([^`]+)`", routes)]
    assert sorted(shown) == sorted(RULES.items())


def test_only_what_is_public_is_no_matter_of_credentials() -> None:
    assert {route.narrowed for route in ROUTES if route.access == "public"} == {"no"}


@pytest.mark.parametrize("name", [name for name, narrowed in RULES.items() if narrowed == "no"])
async def test_general_route_is_refused_to_narrowed_credentials(office: Office, name: str) -> None:
    body = None if name.startswith(("GET", "DELETE")) else b"{}"
    path = office.mine.path(GUARDED[name])
    check_error(await office.call(name, path, office.narrow, body), 403, "forbidden")
    assert (await office.call(name, path, office.wide, body)).status in (200, 201, 400, 404), (
        "a wide key gets as far as that"
    )


@pytest.mark.parametrize("name", [name for name, narrowed in RULES.items() if narrowed == "yes"])
async def test_public_routes_are_open_to_narrowed_credentials(office: Office, name: str) -> None:
    path = office.mine.path(GUARDED[name])
    narrow, wide = [await office.call(name, path, key) for key in (office.narrow, office.wide)]
    assert narrow.status == wide.status in (200, 404)


@pytest.mark.parametrize("name", OF_ONE)
async def test_resources_of_another_agent_look_nonexistent(office: Office, name: str) -> None:
    route, body = GUARDED[name], BODIES.get(name)
    absent = Belongings(NO_ID, NO_ID, "run_1000000000000000", "ses_1000000000000000")
    unknown = await office.call(name, absent.path(route), office.narrow, body)
    assert unknown.status == 404, unknown.body
    for other in (office.theirs, office.nobodys):
        reply = await office.call(name, other.path(route), office.narrow, body)
        assert (reply.status, told(reply, other)) == (unknown.status, told(unknown, absent))
    # Nothing has happened to it.
    snapshot = (await office.call("GET", f"{runs}/{office.theirs.run}", office.wide)).json
    assert snapshot["status"] in ("queued", "running")
    session = (await office.call("GET", f"{sessions}/{office.theirs.session}", office.wide)).json
    assert session["messages"] == [] and session.get("endedAt") is None
    if "stream" not in name:  # which goes on for as long as the run does
        reply = await office.call(name, office.mine.path(route), office.narrow, body)
        otherwise = ("unknown_await", "unknown_turn", "unknown_message", "not_paused", "run_unfinished", "lease_lost")
        assert reply.status in (200, 201, 202) or reply.json["code"] in otherwise, reply.body


OVER_A2A = [("0.3", "tasks/get"), ("0.3", "message/send"), ("1.0", "GetTask"), ("1.0", "SendMessage")]


@pytest.mark.parametrize(("version", "method"), OVER_A2A)
async def test_another_agent_does_not_exist_over_a2a_either(office: Office, version: str, method: str) -> None:
    headers, body = {"A2A-Version": version}, {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "x"}}

    async def ask(slug: str, **params: str) -> Reply:
        path = f"/api/a2a/acme/agents/{slug}"
        sent = {**body, "params": params or body["params"]}
        return await office.world.call("POST", path, credential=office.narrow, body=sent, headers=headers)

    for slug in (office.theirs.slug, "nobody"):
        assert check_error(await ask(slug), 404, "not_found")["agentId"] == slug
    if method.lower().endswith("task") or method.endswith("get"):
        hidden, absent = [await ask(office.mine.slug, id=run) for run in (office.theirs.run, "run_1000000000000000")]
        assert hidden.text.replace(office.theirs.run, "") == absent.text.replace("run_1000000000000000", "")
        assert "error" in hidden.json


runs, sessions = "/api/v1/workspaces/acme/agent-runs", "/api/v1/workspaces/acme/agent-sessions"
threads = "/api/v1/workspaces/acme/threads"
inbox, schedules = "/api/v1/workspaces/acme/awaits", "/api/v1/workspaces/acme/schedules"


def told(reply: Reply, named: Belongings) -> Any:
    """The answer without what the caller has said itself."""
    text = reply.text.replace(named.id or NO_ID, "(name)").replace(named.slug, "(name)")
    return {field: value for field, value in json.loads(text).items() if field != "requestId"}


Check = Callable[[Office], Awaitable[None]]


async def creates_runs(office: Office) -> None:
    for body in ({"agentId": office.theirs.id}, {"modelId": "scripted:hello"}):
        reply = await office.call("POST", runs, office.narrow, {**body, "prompt": "hi"})
        check_error(reply, 403, "forbidden")
    assert (await office.call("POST", runs, office.narrow, {"agentId": office.mine.id, "prompt": "hi"})).status == 202
    once = {"idempotency-key": "k1"}
    body = {"agentId": office.theirs.id, "prompt": "hi"}
    made = await office.world.call("POST", runs, credential=office.wide, body=body, headers=once)
    for accept in ("application/json", "text/event-stream"):
        headers = {**once, "accept": accept}
        for credential, told in ((office.wide, made.json["runId"]), (office.narrow, None)):
            reply = await office.world.call(
                "POST", runs, credential=credential, body={**body, "agentId": office.mine.id}, headers=headers
            )
            assert check_error(reply, 409, "idempotency_conflict").get("runId") == told


async def test_the_id_of_a_hidden_run_cannot_be_taken(office: Office) -> None:
    mine = (
        await office.call("POST", runs, office.narrow, {"agentId": office.mine.id, "prompt": "hi", "runId": "m"})
    ).json
    await office.make("agent-runs", {"agentId": office.theirs.id, "prompt": "hi", "runId": "hidden"})
    message = f"{sessions}/{office.mine.session}/messages"
    for path, body in ((runs, {"agentId": office.mine.id, "prompt": "hi"}), (message, {"prompt": "hi"})):
        for accept in ("application/json", "text/event-stream"):
            for name in ("hidden", office.theirs.run, office.nobodys.run):
                for data in (json.dumps({**body, "runId": name}), json.dumps({**body, "runId": name}, indent=2)):
                    reply = await office.world.call(
                        "POST", path, credential=office.narrow, body=data.encode(), headers={"accept": accept}
                    )
                    check_error(reply, 404, "not_found")
                    assert name not in reply.text
            reply = await office.call("POST", path, office.narrow, {**body, "runId": mine["runId"]})
            assert check_error(reply, 409, "run_exists")["runId"] == "m"
            reply = await office.call("POST", path, office.wide, {**body, "runId": "hidden"})
            check_error(reply, 409, "run_exists")
    listed = (await office.call("GET", runs, office.narrow)).json["runs"]
    assert {one["id"] for one in listed} == {"m", office.mine.run}


async def creates_sessions(office: Office) -> None:
    for body in ({"agentId": office.theirs.id}, {"modelId": "scripted:hello"}):
        check_error(await office.call("POST", sessions, office.narrow, body), 403, "forbidden")
    assert (await office.call("POST", sessions, office.narrow, {"agentId": office.mine.id})).status == 201


async def lists_runs(office: Office) -> None:
    async def listed(query: str = "") -> list[str]:
        return [one["id"] for one in (await office.call("GET", runs + query, office.narrow)).json["runs"]]

    assert await listed() == await listed(f"?agentId={office.mine.id}") == [office.mine.run]
    assert await listed(f"?agentId={office.theirs.id}") == await listed(f"?sessionId={office.theirs.session}") == []
    everything = (await office.call("GET", runs, office.wide)).json["runs"]
    assert len(everything) == 3


async def lists_sessions(office: Office) -> None:
    async def listed(query: str = "") -> list[str]:
        return [one["id"] for one in (await office.call("GET", sessions + query, office.narrow)).json["sessions"]]

    assert await listed() == await listed(f"?agentId={office.mine.id}") == [office.mine.session]
    assert await listed(f"?agentId={office.theirs.id}") == await listed(f"?sessionId={office.theirs.session}") == []
    assert len((await office.call("GET", sessions, office.wide)).json["sessions"]) == 3


async def creates_threads(office: Office) -> None:
    check_error(await office.call("POST", threads, office.narrow, {"agentId": office.theirs.id}), 403, "forbidden")
    assert (await office.call("POST", threads, office.narrow, {"agentId": office.mine.id})).status == 201


async def lists_threads(office: Office) -> None:
    async def listed(query: str = "") -> list[str]:
        found = (await office.call("GET", threads + query, office.narrow)).json["threads"]
        return [one["sessionId"] for one in found]

    assert await listed() == await listed(f"?agentId={office.mine.id}") == [office.mine.session]
    assert await listed(f"?agentId={office.theirs.id}") == []
    assert len((await office.call("GET", threads, office.wide)).json["threads"]) == 3


async def lists_awaits(office: Office) -> None:
    """A run of each agent asks; the credential sees, and answers, what its own agent asks."""
    asking = {"modelId": "scripted:ask", "tools": [{"kind": "server", "name": "ask_user"}], "prompt": "hi"}
    asked: list[str] = []
    for one in (office.mine, office.theirs):
        run = (await office.make("agent-runs", {**asking, "agentId": one.id}))["runId"]
        asked.append(run)
        async with asyncio.timeout(60):
            while not (await office.call("GET", f"{runs}/{run}/awaits", office.wide)).json["awaits"]:
                pass

    async def listed(query: str = "", *, credential: str = "") -> list[str]:
        found = await office.call("GET", f"{inbox}{query}", credential or office.narrow)
        return [one["runId"] for one in found.json["awaits"]]

    mine, theirs = asked
    assert await listed() == await listed(f"?agentId={office.mine.id}") == await listed(f"?runId={mine}") == [mine]
    assert await listed(f"?agentId={office.theirs.id}") == await listed(f"?runId={theirs}") == []
    assert await listed(f"?sessionId={office.theirs.session}") == []
    assert await listed(credential=office.wide) == asked
    (question,) = (await office.call("GET", inbox, office.narrow)).json["awaits"]
    said = {"outcome": "answered", "value": "because"}
    reply = await office.call("POST", f"{runs}/{theirs}/awaits/{question['id']}", office.narrow, said)
    check_error(reply, 404, "not_found")
    assert (await office.call("POST", f"{runs}/{mine}/awaits/{question['id']}", office.narrow, said)).status == 200


async def lists_schedules(office: Office) -> None:
    found = (await office.call("GET", schedules, office.narrow)).json["schedules"]
    assert [one["id"] for one in found] == [office.mine.schedule]
    assert len((await office.call("GET", schedules, office.wide)).json["schedules"]) == 3


async def creates_schedules(office: Office) -> None:
    yearly = {"name": "Yearly", "cron": "@yearly"}
    for spec in ({"agentId": office.theirs.id}, {"modelId": "scripted:hello"}):
        body = {**yearly, "spec": {**spec, "prompt": "hi"}}
        check_error(await office.call("POST", schedules, office.narrow, body), 403, "forbidden")
    once, mine = {"idempotency-key": "k1"}, {**yearly, "spec": {"agentId": office.mine.id, "prompt": "hi"}}
    for status in (201, 409):
        reply = await office.world.call("POST", schedules, credential=office.narrow, body=mine, headers=once)
        assert reply.status == status, reply.body
        given = {"spec": {"agentId": office.theirs.id, "prompt": "hi"}}
        if status == 201:
            await office.call("PATCH", f"{schedules}/{reply.json['id']}", office.wide, given)


async def lists_budgets(office: Office) -> None:
    path = "/api/v1/workspaces/acme/budgets"
    limits = [{"unit": "calls", "limit": 10}]
    for about in ({"level": "workspace"}, *[{"level": "agent", "id": one.id} for one in (office.mine, office.theirs)]):
        assert (await office.call("PUT", path, office.wide, {**about, "limits": limits})).status == 200
        check_error(await office.call("PUT", path, office.narrow, {**about, "limits": []}), 403, "forbidden")
    found = (await office.call("GET", path, office.narrow)).json["budgets"]
    assert [one["id"] for one in found] == [office.mine.id]
    assert len((await office.call("GET", path, office.wide)).json["budgets"]) == 3


async def lists_agents(office: Office) -> None:
    found = (await office.call("GET", "/api/v1/workspaces/acme/agents", office.narrow)).json["agents"]
    assert [one["id"] for one in found] == [office.mine.id]


async def lists_cards(office: Office) -> None:
    found = (await office.call("GET", "/api/a2a/acme/discovery", office.narrow)).json["agents"]
    assert [one["name"] for one in found] == ["Mine"]


CHECKS: dict[str, Check] = {
    "POST …/agent-runs": creates_runs,
    "GET …/agent-runs": lists_runs,
    "POST …/agent-sessions": creates_sessions,
    "GET …/agent-sessions": lists_sessions,
    "POST …/threads": creates_threads,
    "GET …/threads": lists_threads,
    "GET …/awaits": lists_awaits,
    "GET …/budgets": lists_budgets,
    "GET …/schedules": lists_schedules,
    "POST …/schedules": creates_schedules,
    "GET …/agents": lists_agents,
    "GET /api/a2a/{slug}/discovery": lists_cards,
}


@pytest.mark.parametrize("name", OF_ALL)
async def test_lists_and_creates_keep_to_the_agents_of_the_credential(office: Office, name: str) -> None:
    await CHECKS[name](office)


async def test_a_narrowed_token_is_held_to_the_same_table(office: Office, browser: Browser) -> None:
    """By its scope the token may write tools; by its allow-list it may not."""
    scope = "runs:write runs:read tools:write"
    client = await office.world.client(scopes=scope.split())
    tokens: list[str] = []
    for agents in ("", office.mine.id or ""):
        code = (await browser.approve(client, scope=scope, agents=agents)).redirect["code"]
        tokens.append((await client.exchange(code)).json["access_token"])
    wide, narrow = tokens
    path = "/api/v1/workspaces/acme/tools"
    assert (await office.call("POST", path, wide, {"name": "x", "url": "https://x.example"})).status == 201
    check_error(await office.call("POST", path, narrow, {"name": "y", "url": "https://x.example"}), 403, "forbidden")
    assert (await office.call("GET", f"{runs}/{office.theirs.run}", wide)).status == 200
    check_error(await office.call("GET", f"{runs}/{office.theirs.run}", narrow), 404, "not_found")
    assert (await office.call("GET", f"{runs}/{office.mine.run}", narrow)).status == 200
