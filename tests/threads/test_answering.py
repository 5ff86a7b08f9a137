"""Endpoints and controllers of a served folder: what requests find, what handlers are given, and what clients get."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest

from commands import new_secret
from server.auth.worlds import new_world
from server.kit import Api, check_error, logged
from weftline.server.routes import endpoints
from weftline.testing import ServerProcess
from weftline.threads import (
    PackedExports,
    PackedMeta,
    Registry,
    Request,
    SideConfig,
    ThreadState,
    define_agent,
    define_effect,
    define_prompt,
    define_thread_endpoint,
)
from weftline.threads.serving import Folder

from .folders import SMALL, write

_numbers = itertools.count(1)
FILES = {
    **SMALL,
    "scripts.json": '{"desk": {"turns": [{"text": "hello"}]}}',
    "shared/seen.py": "left = []\nkept = []\n",
    "agents/api/status.py": """
@define_thread_endpoint
async def status(request: Request, state: ThreadState, params: dict[str, str]) -> dict[str, object]:
    return {
        "thread": state.thread_id, "agent": state.agent_id, "execution": state.execution, "params": params,
        "method": request.method, "path": request.path, "query": dict(request.query), "headers": dict(request.headers),
    }
""",
    "agents/api/index.py": """
@define_thread_endpoint
async def index(request, state, params):
    return "index"
""",
    "agents/api/notes/[id].put.py": """
@define_thread_endpoint
async def note(request: Request, state: ThreadState, params: dict[str, str]) -> Response:
    await state.set_value(params["id"], await request.json())
    return Response.json({"kept": params["id"]}, status=201, headers={"X-Note": "yes", "Content-Length": "999"})
""",
    "agents/api/notes/[id].py": """
@define_thread_endpoint
def read(request, state, params):
    return Response.text(str(state.get_value(params["id"])) + " " + type(state).__name__)
""",
    "agents/api/echo.post.py": """
@define_thread_endpoint
def echo(request, state, params):
    return request.body()
""",
    "agents/api/files/[*].py": """
@define_thread_endpoint
async def files(request, state, params):
    return params
""",
    "agents/api/fails.post.py": """
@define_thread_endpoint
async def fails(request, state, params):
    how = await request.text()
    if how == "header":
        return Response(b"", headers={"x": "a\\nb"})
    if how == "status":
        return Response(b"", status=99)
    if how == "json":
        return object()
    if how == "set":
        await state.set_value("a", 1)
    raise ValueError("the secret is 1234")
""",
    "agents/api/flow.py": """
@define_thread_endpoint
async def flow(request, state, params):
    await state.set_value("began", True)
    yield b"one "
    yield "two "
    if request.query.get("fail"):
        raise ValueError("no")
    yield str(await state.get_value("began")).encode()
""",
    "agents/api/waits.py": """
import asyncio
from ...shared import seen

@define_thread_endpoint
async def waits(request, state, params):
    seen.kept.append(state)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        seen.left.append(state.thread_id)
        raise
""",
    "agents/api/left.py": """
from ...shared import seen

@define_thread_endpoint
async def left(request, state, params):
    try:
        await seen.kept[0].get_value("a")
    except Exception as error:
        return {"left": seen.left, "late": error.code}
""",
    "agents/api/key.post.py": """
@define_thread_endpoint
async def key(request, state, params):
    return state.idempotency_key
""",
    "agents/api/hook.post.py": """
@define_thread_endpoint(public=True)
async def hook(request: Request, state: ThreadState, params: dict[str, str]) -> object:
    await state.set_value("hooked", await request.json())
""",
    "agents/api/about/[id].py": """
@define_controller
async def about(context: ControllerContext) -> dict[str, object]:
    try:
        context.registries["agents"]["nobody"]()
    except KeyError:
        unknown = "KeyError"
    return {
        "url": context.url, "path": context.request.path, "params": context.params, "home": "PATH" in context.env,
        "loads": context.registries["agents"]["tone"]().name, "unknown": unknown, "lazy": sorted(context.registries),
    }
""",
    "agents/api/plain.post.py": """
@define_controller
def plain(context):
    return context.request.body()[::-1]
""",
    "agents/api/open.py": """
@define_controller(public=True)
def open_(context):
    return "open to all"
""",
    "agents/api/hook.py": """
@define_thread_endpoint
async def hooked(request, state, params):
    return await state.get_value("hooked")
""",
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("served")
    with ServerProcess(folder, arguments=(str(write(folder / "desk", FILES)),)) as running:
        yield running


@pytest.fixture
async def api(serving: ServerProcess) -> AsyncGenerator[Api]:
    slug = f"team-{next(_numbers)}"
    async with aiohttp.ClientSession() as http:
        yield Api(http, serving.url, slug, new_secret(serving.db, slug, name="test"))


@pytest.fixture
async def thread(api: Api) -> str:
    made = await api.post("threads", {"agentId": "tone", "userId": "ann"})
    assert made.status == 201, made.body
    return f"threads/{made.json['id']}"


async def test_handler_sees_request_without_its_credential(api: Api, thread: str) -> None:
    headers = {"X-Kind": "a", "X-API-Key": api.key, "Cookie": "c=d"}
    found = (await api.get(f"{thread}/status?a=1&b=%C3%A9&a=2", headers=headers)).json
    assert found["thread"] == thread.removeprefix("threads/") and found["agent"] == "tone"
    assert (found["execution"], found["params"]) == (None, {})
    assert (found["method"], found["path"], found["query"]) == ("GET", "/status", {"a": "1", "b": "é"})
    assert found["headers"]["x-kind"] == "a"
    assert found["headers"].keys() & {"authorization", "x-api-key", "cookie"} == set()


@pytest.mark.requirement("thread.endpoint.handler")
async def test_client_gets_what_the_handler_returns(api: Api, thread: str) -> None:
    made = await api.call("PUT", f"{thread}/notes/7", {"text": "hi"})
    assert (made.status, made.json, made.headers["X-Note"]) == (201, {"kept": "7"}, "yes")
    read = await api.get(f"{thread}/notes/7")
    assert (read.body.decode(), read.headers["Content-Type"]) == (
        "{'text': 'hi'} BlockingThread",
        "text/plain; charset=utf-8",
    )
    echoed = await api.call("POST", f"{thread}/echo", data=b"\x00\xff", headers={"Content-Type": "x/y"})
    assert (echoed.body, echoed.headers["Content-Type"]) == (b"\x00\xff", "application/octet-stream")
    assert (await api.call("HEAD", f"{thread}/status")).status == 200
    assert (await api.get(f"{thread}/")).json == "index"
    assert (await api.get(f"{thread}/files/a%20b/c")).json == {"*": "a b/c"}
    assert (await api.get(f"{thread}/files")).json == {"*": ""}
    session = (await api.get(thread)).json["sessionId"]
    assert (await api.get(f"threads/{session}/status")).json["thread"] == thread.removeprefix("threads/")


UNKNOWN = [
    ("GET", "nothing"),
    ("POST", "status"),
    ("DELETE", "notes/7"),
    ("OPTIONS", "status"),
    ("GET", "notes/a%2Fb"),
    ("GET", "notes/7/"),
    ("GET", "values/a/b"),
    ("GET", "status/"),
]


@pytest.mark.requirement("thread.endpoint.not_found")
@pytest.mark.parametrize(("method", "path"), UNKNOWN)
async def test_what_is_neither_route_nor_endpoint_is_not_found(api: Api, thread: str, method: str, path: str) -> None:
    check_error(await api.call(method, f"{thread}/{path}"), 404, "not_found")


@pytest.mark.requirement("thread.endpoint.errors")
async def test_handler_is_called_for_no_unknown_thread_and_its_errors_stay_inside(api: Api, thread: str) -> None:
    check_error(await api.get(f"threads/{uuid4()}/status"), 404, "not_found")
    check_error(await api.get("threads/nothing/status"), 404, "not_found")
    check_error(await api.get("threads//status"), 400, "invalid_request")
    for how in ("raise", "header", "status", "json"):
        reply = await api.call("POST", f"{thread}/fails", data=how.encode())
        error = check_error(reply, 500, "internal_error")
        assert error["requestId"] == reply.headers["X-Request-Id"]
        assert "1234" not in reply.body.decode() and "Traceback" not in reply.body.decode()
    await api.call("DELETE", thread)
    check_error(await api.call("POST", f"{thread}/fails", data=b"set"), 409, "thread_ended")


async def test_credential_of_another_workspace_finds_nothing(api: Api, thread: str, serving: ServerProcess) -> None:
    other = Api(api.http, api.url, "other", new_secret(serving.db, "other", name="test"))
    check_error(await other.get(f"{thread}/status"), 404, "not_found")
    check_error(await other.get(f"{api.base}/{thread}/status"), 404, "not_found")
    check_error(await api.get(f"{thread}/status", key=None), 401, "unauthorized")


@pytest.mark.requirement("thread.endpoint.limits")
async def test_response_may_be_a_stream_and_client_that_leaves_cancels(api: Api, thread: str) -> None:
    assert (await api.get(f"{thread}/flow")).body.decode() == "one two True"
    with pytest.raises(aiohttp.ClientPayloadError):
        await api.get(f"{thread}/flow?fail=1")
    check_error(await api.call("POST", f"{thread}/echo", data=b"x" * (16 * 1024 * 1024 + 1)), 413, "body_too_large")
    waiting = asyncio.ensure_future(api.get(f"{thread}/waits"))
    await asyncio.wait({waiting}, timeout=0.5)
    waiting.cancel()
    async with asyncio.timeout(60):
        while not (found := await api.get(f"{thread}/left")).json:
            pass
        while not found.json["left"]:
            found = await api.get(f"{thread}/left")
    assert found.json == {"left": [thread.removeprefix("threads/")], "late": "scope_ended"}


async def test_idempotency_key_is_that_of_a_request(api: Api, thread: str) -> None:
    async def key(**headers: str) -> str:
        return (await api.call("POST", f"{thread}/key", headers=headers)).json

    once = [await key(**{"Idempotency-Key": "a"}) for _ in range(2)]
    assert len({*once, await key(**{"Idempotency-Key": "b"}), await key(), await key()}) == 4


@pytest.mark.requirement("thread.endpoint.public")
async def test_public_endpoint_needs_only_the_threads_id(api: Api, thread: str, serving: ServerProcess) -> None:
    assert (await api.post(f"{thread}/hook", {"a": 1}, key=None)).status == 204
    check_error(await api.get(f"{thread}/hook", key=None), 401, "unauthorized")
    assert (await api.get(f"{thread}/hook")).json == {"a": 1}
    session = (await api.get(thread)).json["sessionId"]
    for path in (f"threads/{session}/hook", f"threads/{uuid4()}/hook"):
        check_error(await api.post(path, {}, key=None), 404, "not_found")
    for slug in ("nobody", "other"):
        new_secret(serving.db, "other", name="test")
        path = f"/api/v1/workspaces/{slug}/{thread}/hook"
        check_error(await api.post(path, {}, key=None), 404, "not_found")
    assert await logged(serving, "open without a credential: POST", "{threadId}/hook")


async def test_handler_that_sends_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "FIRST_BYTE_S", 0.05)
    cancelled: list[str] = []

    async def waits(request: Request, state: ThreadState, params: dict[str, str]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(state.thread_id)
            raise

    async with new_world(tmp_path / "store") as world:
        key = await world.key()
        base = "/api/v1/workspaces/acme"
        spec = {"name": "Known", "spec": {"modelId": "scripted:hello"}}
        agent = (await world.call("POST", f"{base}/agents", credential=key, body=spec)).json["id"]
        made = await world.call("POST", f"{base}/threads", credential=key, body={"agentId": agent})
        prompt = define_prompt(name="p", model="m", tool_description="x", prompt="x")
        agents = [define_agent(name=agent, side_a=SideConfig(prompt="p"))]
        slow = {"waits": define_thread_endpoint(waits)}
        world.app.folder = Folder(Registry.of(prompts=[prompt], agents=agents, endpoints=slow))
        path = f"{base}/threads/{made.json['id']}/waits"
        assert (await world.call("GET", path, credential=key)).json["code"] == "handler_timeout"
        assert cancelled == [made.json["id"]]
        monkeypatch.setattr(endpoints, "FIRST_BYTE_S", 1.0)
        replies = await asyncio.gather(*[world.call("GET", path, credential=key) for _ in range(300)])
        assert {reply.json["code"] for reply in replies} == {"handler_timeout", "too_many_streams"}


@pytest.mark.requirement("thread.endpoint.packed")
async def test_endpoints_of_packages_are_served_like_those_of_the_folder(tmp_path: Path) -> None:
    async def packed(request: Request, state: ThreadState, params: dict[str, str]) -> str:
        return await state.schedule_effect("boil", delay_ms=60_000)

    async def local(request: Request, state: ThreadState, params: dict[str, str]) -> str:
        return "local"

    async def boil(state: ThreadState) -> None:
        """Boils."""

    plain = PackedExports(meta=PackedMeta(package_id="plain"), effects={"boil": define_effect(boil)})
    of_tea = {"boil.post": define_thread_endpoint(packed), "status.get": define_thread_endpoint(packed)}
    tea = PackedExports(
        meta=PackedMeta(package_id="tea"), effects={"boil": define_effect(boil)}, thread_endpoints=of_tea
    )
    async with new_world(tmp_path / "store") as world:
        key = await world.key()
        base = "/api/v1/workspaces/acme"
        spec = {"name": "Known", "spec": {"modelId": "scripted:hello"}}
        agent = (await world.call("POST", f"{base}/agents", credential=key, body=spec)).json["id"]
        made = await world.call("POST", f"{base}/threads", credential=key, body={"agentId": agent})
        prompt = define_prompt(name="p", model="m", tool_description="x", prompt="x")
        registry = Registry.of(
            prompts=[prompt],
            agents=[define_agent(name=agent, side_a=SideConfig(prompt="p"))],
            endpoints={"status": define_thread_endpoint(local)},
            packages=[plain, tea],
        )
        world.app.folder = Folder(registry)
        path = f"{base}/threads/{made.json['id']}"
        scheduled = await world.call("POST", f"{path}/boil", credential=key)
        assert scheduled.status == 200, scheduled.body
        assert (await world.call("GET", f"{path}/status", credential=key)).json == "local"
        assert (await world.call("GET", f"{path}/tea/boil", credential=key)).status == 404
        [effect] = (await world.call("GET", f"{path}/effects", credential=key)).json["effects"]
        assert (effect["id"], effect["name"]) == (scheduled.json, "tea/boil")


async def test_thread_of_another_agent_has_no_endpoints(api: Api) -> None:
    agent = await api.post("agents", {"name": "Stored", "spec": {"modelId": "scripted:desk"}})
    made = (await api.post("threads", {"agentId": agent.json["id"]})).json["id"]
    check_error(await api.get(f"threads/{made}/status"), 404, "not_found")


@pytest.mark.requirement("thread.controller.context")
async def test_controller_answers_beside_the_threads(api: Api) -> None:
    found = (await api.get("endpoints/about/7?a=1")).json
    assert found == {
        "url": f"{api.url}{api.base}/endpoints/about/7?a=1",
        "path": "/about/7",
        "params": {"id": "7"},
        "loads": "tone",
        "unknown": "KeyError",
        "home": True,
        "lazy": ["agents", "controllers", "effects", "endpoints", "hooks", "models", "prompts", "tools"],
    }
    assert (await api.call("POST", "endpoints/plain", data=b"abc")).body == b"cba"
    assert (await api.get("endpoints/open", key=None)).json == "open to all"
    check_error(await api.get("endpoints/about/7", key=None), 401, "unauthorized")
    for path in ("endpoints", "endpoints/", "endpoints/nothing", "endpoints/plain"):
        check_error(await api.get(path), 404, "not_found")
