"""`asgi(engine)` in applications of other people's, over a real server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from fastapi import FastAPI
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from commands import new_secret
from weftline import Agent, Engine, WeftlineError, asgi, hook, tool
from weftline.errors import Conflict
from weftline.hooks import BeforeModel
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

from ..hosted.test_mcp import connected, text_of
from ..kit import TIMEOUT_S, Api, check_error


@tool
def weather(city: str) -> str:
    """The weather."""
    return f"{city}: sunny"


def new_engine(folder: Path) -> Engine:
    model = ScriptedModel([calls("weather", city="Lyon"), "{{system}} {{tool_results.0}}"])
    agent = Agent(model, name="support", instructions="Be kind.", tools=[weather])
    return Engine(folder / "data", agents=[agent], models=Catalog())


def in_starlette(engine: Engine) -> Any:
    async def hello(request: object) -> PlainTextResponse:
        return PlainTextResponse("hello")

    return Starlette(routes=[Mount("/agents", asgi(engine)), Route("/hello", hello)], lifespan=engine.lifespan)


def in_fastapi(engine: Engine) -> Any:
    app = FastAPI(lifespan=engine.lifespan)
    app.mount("/agents", asgi(engine))

    @app.get("/hello", response_class=PlainTextResponse)
    async def hello() -> str:  # pyright: ignore[reportUnusedFunction]
        return "hello"

    return app


@asynccontextmanager
async def listening(app: Any) -> AsyncGenerator[str]:
    """Any ASGI application, on a free port of this machine."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=5))
        server.capture_signals = lambda: _nothing()  # pyright: ignore[reportAttributeAccessIssue]
        task = asyncio.create_task(server.serve(sockets=[sock]))
        async with asyncio.timeout(TIMEOUT_S):
            while not server.started:
                assert not task.done(), "the application did not start"
                await asyncio.sleep(0)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, TIMEOUT_S)


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@asynccontextmanager
async def joined(url: str, db: Path, *agents: str) -> AsyncGenerator[Api]:
    """A client with a key that was made while the application has the store."""
    order = partial(new_secret, db, "acme", name="test", agents=agents)
    secret = await asyncio.to_thread(order)
    async with aiohttp.ClientSession() as http:
        yield Api(http, url, "acme", secret)


@pytest.mark.parametrize("mount", [in_starlette, in_fastapi])
async def test_a_mounted_engine_serves_its_agents_below_its_path(
    tmp_path: Path, mount: Callable[[Engine], Any]
) -> None:
    engine = new_engine(tmp_path)
    async with listening(mount(engine)) as url, joined(f"{url}/agents", tmp_path / "data") as api:
        made = await api.post("agent-runs", {"agentId": "support", "prompt": "Lyon?"})
        assert made.status == 202, made.body
        run = made.json["runId"]
        base = f"/agents/api/v1/workspaces/acme/agent-runs/{run}"
        assert made.headers["Location"] == base and made.json["streamUrl"] == f"{base}/stream"
        frames = await api.events(run)
        assert [frame.type for frame in frames][-1] == "result"
        assert (await api.snapshot(run))["finalText"] == "Be kind. Lyon: sunny"
        assert [one["id"] for one in (await api.get("agents")).json["agents"]] == ["support"]
        card = (await api.get("/api/a2a/acme/agents/support/.well-known/agent-card.json")).json
        assert card["url"] == f"{url}/agents/api/a2a/acme/agents/support"
        check_error(await api.get("agents", key="wrong"), 401, "unauthorized")
        about = (await api.get("/")).json
        assert about["openapi"] == "/agents/openapi.json" and about["runs"].startswith("/agents/api/v1/")
        page = (await api.get("/", headers={"Accept": "text/html"})).body
        assert b'href="/agents/openapi.json"' in page and b'href="/agents/readyz"' in page and b"POST /agents/" in page
        assert (await api.get("/openapi.json")).json["servers"] == [{"url": "/agents"}]
        async with api.http.get(f"{url}/hello") as other:
            assert await other.text() == "hello"
        async with api.http.get(f"{url}/agentsapi") as other:
            assert other.status == 404
        # The application's own code and the API see the same runs.
        result = await engine.start(engine.agents["support"], "Lyon?")
        assert (await result.result()).text == "Be kind. Lyon: sunny"
    assert not engine.is_open


async def test_mcp_callers_reach_a_mounted_engine(tmp_path: Path) -> None:
    engine = new_engine(tmp_path)
    async with (
        listening(in_starlette(engine)) as url,
        joined(f"{url}/agents", tmp_path / "data") as api,
        connected(api) as client,
    ):
        assert [one.name for one in (await client.list_tools()).tools] == ["support"]
        assert text_of(await client.call_tool("support", {"message": "hi"})) == "Be kind. Lyon: sunny"


async def test_an_engine_that_closes_tells_the_mcp_callers_that_wait(tmp_path: Path) -> None:
    model = ScriptedModel([{"deltas": ["begun", "never"], "delay_ms": 3_600_000}])
    engine = Engine(tmp_path / "data", agents=[Agent(model, name="support")], models=Catalog(), drain_s=0.1)
    begun = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        begun.set()

    async with (
        listening(in_starlette(engine)) as url,
        joined(f"{url}/agents", tmp_path / "data") as api,
        connected(api, mode="legacy") as client,
    ):
        call = asyncio.ensure_future(client.call_tool("support", {"message": "hi"}, progress_callback=on_progress))
        await begun.wait()
        await engine.close()
        with pytest.raises(MCPError) as stopped:
            await call
        assert stopped.value.code == CONNECTION_CLOSED and stopped.value.error.data["retryable"]
        refused = await api.get("agents")
        check_error(refused, 503, "unavailable")
        assert refused.headers["Retry-After"] == "1"


async def test_a_public_url_is_what_cards_and_metadata_name(tmp_path: Path) -> None:
    engine = new_engine(tmp_path)
    mounted = asgi(engine, public_url="https://example.com/agents/")
    app = Starlette(routes=[Mount("/agents", mounted)], lifespan=engine.lifespan)
    async with listening(app) as url, joined(f"{url}/agents", tmp_path / "data") as api:
        headers = {"Host": "evil.example"}
        card = (await api.get("/api/a2a/acme/agents/support/.well-known/agent-card.json", headers=headers)).json
        assert card["url"] == "https://example.com/agents/api/a2a/acme/agents/support"
        metadata = (await api.get("/.well-known/oauth-authorization-server", headers=headers)).json
        assert metadata["issuer"] == "https://example.com/agents"


async def test_links_do_not_repeat_the_host_that_a_client_names(tmp_path: Path) -> None:
    engine = new_engine(tmp_path)
    async with listening(in_starlette(engine)) as url, joined(f"{url}/agents", tmp_path / "data") as api:
        metadata = (await api.get("/.well-known/oauth-authorization-server", headers={"Host": "evil.example"})).json
        assert metadata["issuer"] == f"{url}/agents"


async def test_open_engine_can_be_served_on_its_own(tmp_path: Path) -> None:
    async with new_engine(tmp_path) as engine:
        app = Starlette(routes=[Mount("/agents", asgi(engine))])
        async with listening(app) as url, aiohttp.ClientSession() as http:
            async with http.get(f"{url}/agents/healthz") as reply:
                assert reply.status == 200
            async with joined(f"{url}/agents", tmp_path / "data") as api:
                assert [one["id"] for one in (await api.get("agents")).json["agents"]] == ["support"]
    async with listening(asgi(engine)) as url, joined(url, tmp_path / "data") as api:
        assert engine.is_open
        assert [one["id"] for one in (await api.get("agents")).json["agents"]] == ["support"]
    assert not engine.is_open


async def test_key_narrowed_to_another_agent_does_not_reach_mounted_one(tmp_path: Path) -> None:
    engine = new_engine(tmp_path)
    async with (
        listening(in_starlette(engine)) as url,
        joined(f"{url}/agents", tmp_path / "data", "another") as api,
    ):
        check_error(await api.post("agent-runs", {"agentId": "support", "prompt": "x"}), 403, "forbidden")


def test_an_engine_in_memory_cannot_be_served() -> None:
    with pytest.raises(WeftlineError, match="on a directory"):
        asgi(Engine())
    with pytest.raises(WeftlineError, match="public_url"):
        asgi(Engine("./data"), public_url="example.com")


def test_engine_is_served_on_its_own_loop_only(tmp_path: Path) -> None:
    engine = new_engine(tmp_path)
    mounted = asgi(engine)
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/healthz", "headers": []}

    async def unused(*_: object) -> Any:
        raise AssertionError("the request was answered")

    with pytest.raises(Conflict, match="not open"):
        asyncio.run(mounted(scope, unused, unused))
    with engine, pytest.raises(Conflict, match="another loop"):
        asyncio.run(mounted(scope, unused, unused))


async def test_clients_read_the_agents_purpose_but_not_its_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @hook(BeforeModel, fail_closed=True)
    def fails(point: BeforeModel) -> None:
        raise KeyError("db password")

    agent = Agent(ScriptedModel(["Hi."]), name="broken", description="Breaks.", hooks=[fails])
    asks = ScriptedModel([calls("broken", task="Go."), "{{tool_results.0}}"])
    above = Agent(asks, name="above", tools=[agent.as_tool("Breaks.")])
    engine = Engine(tmp_path / "data", agents=[agent, above], models=Catalog())
    async with listening(in_starlette(engine)) as url, joined(f"{url}/agents", tmp_path / "data") as api:
        run = (await api.post("agent-runs", {"agentId": "broken", "prompt": "Go."})).json["runId"]
        frames = await api.events(run)
        snapshot = await api.snapshot(run)
        parent = (await api.post("agent-runs", {"agentId": "above", "prompt": "Go."})).json["runId"]
        frames += await api.events(parent)
        assert (await api.snapshot(parent))["status"] == "succeeded"
        card = (await api.get("/api/a2a/acme/agents/broken/.well-known/agent-card.json")).json
    assert card["description"] == "Breaks."
    assert snapshot["status"] == "failed" and run in snapshot["error"]
    assert "password" not in f"{snapshot}{frames}"
    assert any(run in record.message and "password" in record.message for record in caplog.records)


async def test_a_mounted_engine_starts_what_its_agents_have_scheduled(tmp_path: Path) -> None:
    swept = asyncio.Event()

    @tool
    async def sweep() -> str:
        """Sweeps."""
        swept.set()
        return "Swept."

    agent = Agent(ScriptedModel([calls("sweep"), "Done."]), name="sweeper", tools=[sweep])
    engine = Engine(tmp_path / "data", agents=[agent], models=Catalog())
    async with listening(in_starlette(engine)) as url, joined(f"{url}/agents", tmp_path / "data") as api:
        spec = {"agentId": "sweeper", "prompt": "Sweep."}
        for ahead_s in (0.1, 2, 20):  # on a busy machine, a time may have passed before the request arrives
            soon = (datetime.now(UTC) + timedelta(seconds=ahead_s)).isoformat()
            made = await api.post("schedules", {"name": "Soon", "at": soon, "spec": spec})
            if made.status == 201:
                break
        assert made.status == 201 and made.json["agentId"] == "sweeper", made.body
        async with asyncio.timeout(TIMEOUT_S):
            await swept.wait()
        (run,) = (await api.get(f"agent-runs?metadata=weftline.schedule:{made.json['id']}")).json["runs"]
        assert run["agentId"] == "sweeper"
