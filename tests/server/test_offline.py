"""A store that nobody has open: what commands ask of it is answered, and the rest is refused with what to do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protocols import members_of
from weftline.errors import Conflict
from weftline.runtime.engine import Engine
from weftline.server.offline import Answer, OfflineApp, StoredEngine, ask
from weftline.server.router import Route
from weftline.server.routes.every import ROUTES
from weftline.server.routes.operator import ROUTES as OPERATORS
from weftline.store import open_for_reading, open_store

from .auth.worlds import new_world

REFUSAL = "Nothing has this store open, so no run goes on: start `weftline serve"
SPEC = {"modelId": "scripted:hello"}
HTTP = "http://127.0.0.1:9/"
RUN = "/agent-runs/{runId}"
STORED: list[tuple[str, str, Any]] = [
    ("GET", "/agent-runs", None),
    ("GET", "/agent-runs?idPrefix=run_", None),
    ("GET", RUN, None),
    ("GET", f"{RUN}/snapshot", None),
    ("GET", f"{RUN}/calls?contents=true", None),
    ("GET", f"{RUN}/turns/last", None),
    ("GET", f"{RUN}/grants", None),
    ("GET", f"{RUN}/awaits", None),
    ("GET", f"{RUN}/budgets", None),
    ("GET", "/calls", None),
    ("GET", "/awaits", None),
    ("GET", "/agent-sessions", None),
    ("GET", "/agent-sessions/{sessionId}", None),
    ("GET", "/budgets", None),
    ("PUT", "/budgets", {"level": "workspace", "limits": [{"unit": "tokens", "limit": 9, "period": "day"}]}),
    ("GET", "/agents", None),
    ("GET", "/agents/known", None),
    ("POST", "/agents", {"name": "Another", "spec": {}}),
    ("PUT", "/agents/known", {"name": "Known", "spec": SPEC}),
    ("DELETE", "/agents/another", None),
    ("GET", "/tools", None),
    ("POST", "/tools", {"name": "look_up", "url": HTTP}),
    ("GET", "/tools/{toolId}", None),
    ("DELETE", "/tools/{toolId}", None),
    ("GET", "/providers", None),
    ("POST", "/providers", {"name": "mine", "family": "openai_chat", "apiKey": "k", "models": ["m"]}),
    ("GET", "/providers/{providerId}", None),
    ("DELETE", "/providers/{providerId}", None),
    ("GET", "/webhooks", None),
    ("POST", "/webhooks", {"url": HTTP}),
    ("GET", "/webhooks/{webhookId}", None),
    ("GET", "/webhooks/{webhookId}/deliveries", None),
    ("DELETE", "/webhooks/{webhookId}", None),
    ("GET", "/schedules", None),
    ("POST", "/schedules", {"name": "Yearly", "cron": "@yearly", "spec": {**SPEC, "prompt": "hi"}}),
    ("PATCH", "/schedules/{scheduleId}", {"enabled": False}),
    ("DELETE", "/schedules/{scheduleId}", None),
    ("GET", "/api-keys", None),
    ("POST", "/api-keys", {"name": "another"}),
    ("GET", "/api-keys/{keyId}", None),
    ("DELETE", "/api-keys/{keyId}", None),
    ("GET", "/oauth-apps", None),
    ("POST", "/oauth-apps", {"name": "Own", "allowedScopes": ["models:read"], "allowsClientCredentials": True}),
    ("GET", "/oauth-apps/{clientId}", None),
    ("DELETE", "/oauth-apps/{clientId}", None),
]
"""What commands ask for, below the workspace, in an order in which it is there."""
OPERATED: list[tuple[str, str, Any]] = [
    ("PUT", "workspaces/fresh", None),
    ("GET", "workspaces/acme", None),
    ("PATCH", "workspaces/acme", {"features": {}}),
    ("POST", "users", {"email": "ann@example.com", "password": "$argon2id$", "workspaces": ["acme"]}),
    ("GET", "users", None),
    ("GET", "users/ann@example.com", None),
    ("GET", "users/ann@example.com/grants", None),
    ("PUT", "users/ann@example.com/workspaces/fresh", None),
    ("DELETE", "users/ann@example.com/workspaces/fresh", None),
    ("DELETE", "users/ann@example.com", None),
    ("GET", "workspaces/acme/mcp-logins", None),
    ("GET", "registered-apps", None),
    ("GET", "unsupported-runs", None),
    ("POST", "store/trim", {"before": 0}),
    ("POST", "store/shrink", None),
    ("POST", "store/resume", None),
    ("POST", "store/backup", {"to": "{copy}"}),
]
REFUSED: list[tuple[str, str, Any, str]] = [
    ("POST", f"{RUN}/cancel", None, "cancel the run"),
    ("POST", f"{RUN}/pause", {}, "pause the run"),
    ("POST", f"{RUN}/resume", {}, "resume the run"),
    ("POST", f"{RUN}/messages", {"text": "hi"}, "send the message"),
    ("POST", f"{RUN}/awaits/await_1_0", {"outcome": "approved"}, "answer"),
    ("POST", f"{RUN}/fork", {"turn": 0}, "start the run"),
    ("POST", "/schedules/{scheduleId}/run", None, "start the run"),
]
"""What commands ask for in vain, each with what to do once a server has the store."""


@asynccontextmanager
async def offline(tmp_path: Path, *, writes: bool = True) -> AsyncGenerator[tuple[OfflineApp, dict[str, str]]]:
    """The app of a command on a store with a run that has ended, and the ids of what is in it."""
    async with new_world(tmp_path / "store") as world:
        await world.operate("PUT", "workspaces/acme")

        async def made(path: str, body: Any) -> Any:
            answer = await ask(world.app, "POST", f"/api/v1/workspaces/acme{path}", dumped(body), operator="root")
            assert answer.status < 300, answer
            return json.loads(answer.body)

        session = (await made("/agent-sessions", SPEC))["sessionId"]
        run = (await made(f"/agent-sessions/{session}/messages", {"prompt": "hi"}))["runId"]
        await ask(world.app, "GET", f"/api/v1/workspaces/acme/agent-runs/{run}/stream", operator="root")
        await made("/agents", {"name": "Known", "spec": SPEC})
    store = open_store(tmp_path / "store") if writes else open_for_reading(tmp_path / "store")
    try:
        yield OfflineApp(store), {"slug": "acme", "runId": run, "sessionId": session, "copy": str(tmp_path / "copy")}
    finally:
        await store.close()


def dumped(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body).encode()


async def asked(app: OfflineApp, method: str, path: str, body: Any, known: dict[str, str]) -> Answer:
    def filled(text: str) -> str:
        return re.sub(r"\{\*?(\w+)\}", lambda found: known.get(found[1], "none"), text)

    async with asyncio.timeout(60):
        return await app.answer(method, filled(path), filled(dumped(body).decode()).encode(), operator="ann")


def told(answer: Answer) -> str:
    return json.loads(answer.body)["message"]


async def test_what_commands_ask_of_a_store_is_answered(tmp_path: Path) -> None:
    ids = {"/tools": "toolId", "/providers": "providerId", "/webhooks": "webhookId", "/schedules": "scheduleId"}
    ids |= {"/api-keys": "keyId", "/oauth-apps": "clientId"}
    async with offline(tmp_path) as (app, known):
        for method, path, body in STORED:
            answer = await asked(app, method, f"/api/v1/workspaces/{{slug}}{path}", body, known)
            assert answer.status < 300, (method, path, answer)
            if method == "POST" and path in ids:
                made = json.loads(answer.body)
                known[ids[path]] = made["clientId"] if path == "/oauth-apps" else made["id"]
        for method, path, body in OPERATED:
            answer = await asked(app, method, f"/api/v1/operator/{path}", body, known)
            assert answer.status < 300, (method, path, answer)


async def test_what_commands_ask_of_runs_says_what_to_do(tmp_path: Path) -> None:
    async with offline(tmp_path) as (app, known):
        schedule = {"name": "Yearly", "cron": "@yearly", "spec": {**SPEC, "prompt": "hi"}}
        made = await asked(app, "POST", "/api/v1/workspaces/{slug}/schedules", schedule, known)
        known["scheduleId"] = json.loads(made.body)["id"]
        for method, path, body, then in REFUSED:
            answer = await asked(app, method, f"/api/v1/workspaces/{{slug}}{path}", body, known)
            assert answer.status == 409, (path, answer)
            assert told(answer).startswith(REFUSAL) and told(answer).endswith(f", then {then}."), (path, answer)


@pytest.mark.parametrize("writes", [True, False], ids=["owned", "read-only"])
async def test_no_route_fails_where_nobody_has_the_store_open(tmp_path: Path, writes: bool) -> None:
    """Those that need an engine say so; the others do what they can with an empty body."""

    def needs_engine(route: Route) -> bool:
        return route.live or route.access == "public"

    async with offline(tmp_path, writes=writes) as (app, known):
        for route in (*ROUTES, *OPERATORS):
            if not writes and route.method != "GET":
                continue
            answer = await asked(app, route.method, route.path, None if route.method == "GET" else {}, known)
            assert answer.status < 500, (route.method, route.path, answer)
            if needs_engine(route):
                assert answer.status == 409 and told(answer).startswith(REFUSAL), (route.path, answer)


async def test_a_store_that_is_only_read_refuses_what_its_owner_does(tmp_path: Path) -> None:
    async with offline(tmp_path, writes=False) as (app, known):
        for path in ("trim", "shrink", "resume", "backup"):
            body = {"before": 0, "to": "{copy}"} if path in ("trim", "backup") else None
            answer = await asked(app, "POST", f"/api/v1/operator/store/{path}", body, known)
            assert told(answer) == "The store was opened read-only.", (path, answer)


async def test_whatever_an_engine_can_do_is_there_or_refused_in_a_sentence(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    engine = StoredEngine(store)
    there = {name for name in vars(StoredEngine) if not name.startswith("_")} | set(vars(engine))
    assert members_of(Engine) <= there
    refused = [name for name, member in vars(StoredEngine).items() if getattr(member, "__name__", "") == "refuse"]

    async def use(name: str) -> None:
        await getattr(engine, name)()

    for name in (*refused, "messages"):
        with pytest.raises(Conflict, match=re.escape(REFUSAL)):
            await use(name)
    await store.close()
