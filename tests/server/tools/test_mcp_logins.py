"""Logins at MCP servers: made by a person with a command, stored sealed, renewed, and used by the workspace's runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from commands import operate, weftline_beside
from weftline.cli.browser import Loopback, PastedRedirect
from weftline.messages import joined_text
from weftline.net.dial import Dialer
from weftline.runtime.tool_calls.tool_source import StoredLogins
from weftline.store import open_store
from weftline.store.base import Store
from weftline.testing import ServerProcess
from weftline.tools.base import ToolContext
from weftline.tools.mcp.login import Login, LoginLost
from weftline.tools.mcp.pool import McpAddress, McpPool
from weftline.tools.mcp.tools import McpEntry, McpUnavailable, list_tools, offered
from weftline.tools.schema import EMPTY_OBJECT_SCHEMA
from weftline.workspace import mcp_logins, workspaces
from weftline.workspace.context import Workspaces

from ..hosted.test_mcp_oauth import new_person
from ..kit import Api, Json
from .peers import Handler, Peer, answering, serving

NOW_US = 1_800_000_000_000_000


class Clock:
    us = NOW_US

    def now_us(self) -> int:
        return self.us


async def test_person_logs_in_by_command_and_runs_use_login(
    api: Api, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that is dialled is this one: its agents, over MCP, behind OAuth."""
    person = await new_person(server, api.slug)
    assert (await api.post("agents", {"name": "Helper", "spec": {"modelId": "scripted:hello"}})).status == 201
    url = f"{api.url}/api/mcp/{api.slug}"
    tools = [{"kind": "mcp", "name": "own", "url": url}]
    before = await api.play("hosted_unavailable", tools=tools)
    assert "weftline mcp login" in before[-1]["text"]

    loop = asyncio.get_running_loop()
    visits: list[Any] = []

    async def ask(self: Loopback, page: str) -> None:
        visits.append(asyncio.run_coroutine_threadsafe(visit(page), loop))

    async def visit(page: str) -> None:
        await person.ask(page)
        async with aiohttp.ClientSession() as browser, browser.get(await person.answer()) as reply:
            assert reply.status == 200 and "close this page" in await reply.text()

    monkeypatch.setattr(Loopback, "ask", ask)
    done = await weftline_beside("mcp", "login", url, "--workspace", api.slug, "--db", str(server.db))
    assert done.code == 0, done.err
    assert "Weftline" in person.pages[0]
    after = await api.play("hosted", tools=tools)
    assert after[-1]["text"] == "heard Hello there", after[-1]
    listed = await weftline_beside("mcp", "list", "--workspace", api.slug, "--db", str(server.db), "--json")
    (shown,) = json.loads(listed.out)
    assert shown["url"] == url and set(shown) == {"url", "createdAt", "renewedAt"}

    gone = await weftline_beside("mcp", "logout", url, "--workspace", api.slug, "--db", str(server.db))
    assert gone.code == 0
    assert "weftline mcp login" in (await api.play("hosted_unavailable", tools=tools))[-1]["text"]
    again = await weftline_beside("mcp", "logout", url, "--workspace", api.slug, "--db", str(server.db))
    assert again.code == 1 and "no login" in again.err


async def test_a_login_that_cannot_be_made_says_why(api: Api, server: ServerProcess, tmp_path: Path) -> None:
    async def open_to_all(request: web.Request) -> web.Response:
        return web.Response(status=500)

    async with serving(open_to_all) as peer:
        done = await weftline_beside("mcp", "login", peer.url, "--workspace", api.slug, "--db", str(server.db))
        typo = await weftline_beside("mcp", "login", peer.url, "--workspace", "nobody", "--db", str(server.db))
        none = await weftline_beside("mcp", "login", peer.url, "--workspace", "acme", "--db", str(tmp_path / "none"))
    assert done.code == 1 and "Could not log in to 127.0.0.1" in done.err
    assert typo.code == 1 and "no workspace 'nobody'" in typo.err
    assert none.code == 1 and not (tmp_path / "none").exists()
    bad = await weftline_beside("mcp", "login", "nonsense", "--workspace", api.slug, "--db", str(server.db))
    assert bad.code == 1 and "http" in bad.err


async def test_browser_elsewhere_is_asked_for_what_it_came_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.readline", lambda: "http://127.0.0.1:8765/callback?code=c \n", raising=False)
    async with PastedRedirect(0) as person:
        assert person.redirect_uri == "http://127.0.0.1:8765/callback"
        assert await person.answer() == "http://127.0.0.1:8765/callback?code=c"


async def test_the_port_for_the_browser_answers_nobody_else() -> None:
    async with Loopback(0) as person, aiohttp.ClientSession() as http:
        base = person.redirect_uri.removesuffix("/callback")
        for path in ("/", "/favicon.ico", "/callback/x"):
            async with http.get(base + path) as reply:
                assert reply.status == 404
        async with http.post(person.redirect_uri) as reply:
            assert reply.status == 404
        async with http.get(f"{person.redirect_uri}?code=a&state=b") as reply:
            assert reply.status == 200
        assert (await person.answer()).endswith("/callback?code=a&state=b")
        await person.ask("http://example.com/again")  # the server wants another scope
        async with http.get(f"{person.redirect_uri}?code=c") as reply:
            assert reply.status == 200
        assert (await person.answer()).endswith("/callback?code=c")


def granting(asked: list[str], *, lists_to_all: bool = False) -> Handler:
    """An MCP server that wants the scope `read`, with its authorization server, which grants what it is asked for.

    With `lists_to_all`, it wants it for calls only.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        base = f"http://{request.host}"
        match request.path:
            case "/.well-known/oauth-protected-resource/mcp":
                return web.json_response({"resource": f"{base}/mcp", "authorization_servers": [base]})
            case "/.well-known/oauth-authorization-server":
                ends = {f"{name}_endpoint": f"{base}/{name}" for name in ("authorization", "token", "registration")}
                return web.json_response(
                    {"issuer": base, **ends, "response_types_supported": ["code"]}
                    | {"code_challenge_methods_supported": ["S256"]}
                )
            case "/registration":
                return web.json_response({**await request.json(), "client_id": "c"}, status=201)
            case "/authorization":
                asked.append(request.query["scope"])
                back = f"{request.query['redirect_uri']}?code=code&state={request.query['state']}"
                return web.Response(status=302, headers={"Location": back})
            case "/token":
                return web.json_response({"access_token": f"token-{len(asked)}", "token_type": "Bearer"})
            case _ if request.method != "POST":
                return web.Response(status=405)
            case _ if "Authorization" not in request.headers and not lists_to_all:
                return web.Response(status=401, headers={"WWW-Authenticate": 'Bearer scope="read"'})
            case _:
                return await answering({"tools/list": no_tools})(request)

    return answer


async def no_tools(request: web.Request, params: Json) -> Json:
    return {"tools": []}


async def test_another_login_asks_for_what_was_granted_and_more(
    api: Api, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, visits, asked = asyncio.get_running_loop(), list[Any](), list[str]()

    async def visit(page: str) -> None:
        async with aiohttp.ClientSession() as browser, browser.get(page) as reply:
            assert reply.status == 200

    async def ask(self: Loopback, page: str) -> None:
        visits.append(asyncio.run_coroutine_threadsafe(visit(page), loop))

    monkeypatch.setattr(Loopback, "ask", ask)
    async with serving(granting(anonymous := list[str](), lists_to_all=True)) as peer:
        own = (f"{peer.url}/mcp", "--workspace", api.slug, "--db", str(server.db))
        done = await weftline_beside("mcp", "login", *own, "--scope", "files:write")
        assert done.code == 0, done.err
    assert anonymous == ["files:write"]
    async with serving(granting(asked)) as peer:
        own = (f"{peer.url}/mcp", "--workspace", api.slug, "--db", str(server.db))
        for more in ((), ("--scope", "write", "--scope", "admin read"), ()):
            done = await weftline_beside("mcp", "login", *own, *more)
            assert done.code == 0, done.err
        await weftline_beside("mcp", "logout", *own)
        await weftline_beside("mcp", "login", *own)
    assert asked == ["read", "read write admin", "read write admin", "read"]


@pytest.mark.parametrize(
    ("challenge", "told"),
    [
        (
            'Bearer error="insufficient_scope", scope="files:write mail", resource_metadata="x"',
            "the scope 'files:write mail'",
        ),
        ("Bearer scope=files:write,error=insufficient_scope", "the scope 'files:write'"),
        ('Bearer error="insufficient_scope", scope="a\\b"', "a scope that the login does not have"),
        ('Bearer error="insufficient_scope"', "a scope that the login does not have"),
    ],
)
async def test_a_call_without_its_scope_says_which(
    pool: McpPool, context: ToolContext, challenge: str, told: str
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and (await request.json())["method"] == "tools/call":
            return web.json_response({"error": "no"}, status=403, headers={"WWW-Authenticate": challenge})
        return await answering({})(request)

    async with serving(answer) as peer:
        where = McpAddress(1, f"{peer.url}/mcp")
        entry = McpEntry("pay", "", EMPTY_OBJECT_SCHEMA, "once")
        (pay,) = offered("bank", (entry,), pool=pool, address=where, tool_filter=None)
        text = joined_text((await pay.invoke(b"{}", context)).parts)
    assert f"HTTP 403 Forbidden. It needs {told}." in text and "mcp login --scope" in text


async def test_a_401_is_told_although_initialize_fails_otherwise(pool: McpPool) -> None:
    async def answer(request: web.Request) -> web.Response:
        if "MCP-Protocol-Version" in request.headers:
            return web.Response(status=401)
        error = {"code": -32600, "message": "no version"}
        return web.json_response({"jsonrpc": "2.0", "id": None, "error": error}, status=400)

    async with serving(answer) as peer:
        with pytest.raises(McpUnavailable, match="weftline mcp login"):
            await list_tools(pool, McpAddress(1, f"{peer.url}/mcp"))


class Issuer:
    """An MCP server and its authorization server: takes the newest access token, and each refresh token once."""

    def __init__(self) -> None:
        self.greets_everybody = False
        """Whether `initialize` needs no token."""
        self.lets_pay = asyncio.Event()
        self.lets_pay.set()
        self.paying = asyncio.Event()
        self.number = 0
        self.refused = ""
        self.forms: list[Json] = []

    def handler(self) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            if request.path == "/token":
                return await self._token(request)
            if request.method != "POST":
                return web.Response(status=405)
            call: Json = await request.json()
            greeting = self.greets_everybody and call["method"] in ("initialize", "notifications/initialized")
            if not greeting and request.headers.get("Authorization") != f"Bearer access-token-{self.number}":
                return web.Response(status=401)
            if "id" not in call:
                return web.Response(status=202)
            if call["method"] == "tools/call":
                self.paying.set()
                await self.lets_pay.wait()
            echoed = request.headers.get("Authorization")
            results: dict[str, Json] = {
                "initialize": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "s", "version": "1"},
                },
                "tools/list": {"tools": [{"name": "pay", "inputSchema": {"type": "object"}, "description": echoed}]},
                "tools/call": {"content": [{"type": "text", "text": f"paid with {echoed}"}]},
            }
            return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": results[call["method"]]})

        return answer

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: values[0] for name, values in parse_qs(await request.text()).items()}
        self.forms.append(form)
        if self.refused:
            return web.json_response({"error": self.refused, "error_description": form["refresh_token"]}, status=400)
        assert form["refresh_token"] == f"refresh-token-{self.number}"
        self.number += 1
        tokens = {"access_token": f"access-token-{self.number}", "refresh_token": f"refresh-token-{self.number}"}
        return web.json_response({**tokens, "token_type": "Bearer", "expires_in": 3600})


class World:
    def __init__(self, store: Store, dialer: Dialer, peer: Peer) -> None:
        self.clock = Clock()
        self.at = Workspaces(store.records, store.vault, self.clock)
        self.logins = StoredLogins(store.records, store.vault, dialer, clock=self.clock)
        self.pool = McpPool(dialer, credentials=self.logins.find)
        self.url = f"{peer.url}/mcp"
        self.token_endpoint = f"{peer.url}/token"

    async def log_in(self, **fields: Any) -> McpAddress:
        login = Login(
            url=self.url,
            issuer="i",
            token_endpoint=self.token_endpoint,
            client_id="c",
            access_token="access-token-0",
            refresh_token="refresh-token-0",
            resource=self.url,
        )
        login = replace(login, **fields)
        await mcp_logins.save(self.at, login, slug="acme")
        return McpAddress(await workspaces.find(self.at, "acme"), self.url)

    async def pay(self, where: McpAddress, context: ToolContext) -> str:
        entries = await list_tools(self.pool, where)
        (pay,) = offered("bank", entries, pool=self.pool, address=where, tool_filter=None)
        output = await pay.invoke(b"{}", context)
        return f"{pay.spec.description} / {joined_text(output.parts)}"


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
async def world(tmp_path: Path, dialer: Dialer, issuer: Issuer) -> Any:
    store = open_store(tmp_path / "store")
    async with serving(issuer.handler()) as peer:
        world = World(store, dialer, peer)
        yield world
        await world.pool.aclose()
        await world.logins.aclose()
    await store.close()


async def test_expired_token_is_renewed_before_use(
    world: World, issuer: Issuer, context: ToolContext, dialer: Dialer, tmp_path: Path
) -> None:
    secret = {"client_secret": "client-secret-1", "client_auth": "client_secret_post"}
    where = await world.log_in(expires_at=NOW_US + 30_000_000, **secret)
    assert await world.pay(where, context) == "Bearer [redacted] / paid with Bearer [redacted]"
    assert issuer.number == 1
    (form,) = issuer.forms
    assert form["resource"] == world.url and form["client_secret"] == "client-secret-1"
    assert form["grant_type"] == "refresh_token" and form["client_id"] == "c"
    # The new tokens are stored: another process goes on with them.
    other = await StoredLogins(world.at.records, world.at.vault, dialer, clock=world.clock).find(where)
    assert other is not None and await other.token() == "access-token-1"
    for file in (tmp_path / "store").iterdir():
        assert b"-token-" not in file.read_bytes() and b"client-secret-1" not in file.read_bytes()


async def test_a_refused_token_is_renewed_once_for_all_who_wait(
    world: World, issuer: Issuer, context: ToolContext
) -> None:
    where = await world.log_in()
    await world.pay(where, context)
    issuer.number = 5  # the server has forgotten the token
    store = await world.log_in(access_token="access-token-4", refresh_token="refresh-token-5")
    world.pool.forget_logins()
    texts = await asyncio.gather(*(world.pay(store, context) for _ in range(5)))
    assert all("paid" in text for text in texts)
    assert len(issuer.forms) == 1


async def test_a_login_that_is_not_renewed_is_told_without_secrets(
    world: World, issuer: Issuer, context: ToolContext
) -> None:
    where = await world.log_in(expires_at=NOW_US)
    issuer.refused = "invalid_grant"
    with pytest.raises(McpUnavailable, match=r"invalid_grant\. .*weftline mcp login"):
        await list_tools(world.pool, where)
    issuer.refused = "refresh-token-0"
    with pytest.raises(McpUnavailable, match="HTTP 400"):
        await list_tools(world.pool, where)
    where = await world.log_in(expires_at=NOW_US, refresh_token=None)
    with pytest.raises(McpUnavailable, match="has expired"):
        await list_tools(world.pool, where)


async def test_a_login_is_used_where_the_connection_was_open_before(world: World, issuer: Issuer) -> None:
    issuer.greets_everybody = True
    where = McpAddress(await workspaces.ensure(world.at, "acme"), world.url)
    with pytest.raises(McpUnavailable, match="401"):
        await list_tools(world.pool, where)
    async with world.pool.use(where):  # somebody opens one again, and keeps it open
        await world.log_in()
        assert [one.name for one in await list_tools(world.pool, where)] == ["pay"]


async def test_refused_call_is_made_again_with_login_that_came(
    world: World, issuer: Issuer, context: ToolContext
) -> None:
    issuer.greets_everybody = True
    where = McpAddress(await workspaces.ensure(world.at, "acme"), world.url)
    entry = McpEntry("pay", "", EMPTY_OBJECT_SCHEMA, "once")
    async with world.pool.use(where):
        await world.log_in()
        (pay,) = offered("bank", (entry,), pool=world.pool, address=where, tool_filter=None)
        assert joined_text((await pay.invoke(b"{}", context)).parts) == "paid with Bearer [redacted]"


async def test_logging_in_again_does_not_cut_off_calls(world: World, issuer: Issuer, context: ToolContext) -> None:
    where = await world.log_in()
    issuer.lets_pay.clear()
    paying = asyncio.ensure_future(world.pay(where, context))
    await issuer.paying.wait()
    world.pool.forget_logins()
    assert await list_tools(world.pool, where)
    issuer.lets_pay.set()
    assert "paid" in await paying


async def test_new_login_is_used_at_once_where_strangers_are_served(api: Api, server: ServerProcess) -> None:
    async def tools(request: web.Request, _: Json) -> Json:
        who = "for members" if "Authorization" in request.headers else "for strangers"
        return {"tools": [{"name": "add", "inputSchema": {"type": "object"}, "description": who}]}

    async with serving(answering({"tools/list": tools})) as peer:
        named = [{"kind": "mcp", "name": "facts", "url": f"{peer.url}/mcp"}]
        assert (await api.play("described_facts", tools=named))[-1]["text"] == "for strangers"
        path = f"workspaces/{api.slug}/mcp-logins"
        login = {"url": f"{peer.url}/mcp", "issuer": "", "token_endpoint": "", "client_id": "c", "access_token": "t-1"}
        await asyncio.to_thread(operate, server.db, "PUT", path, login)
        assert (await api.play("described_facts", tools=named))[-1]["text"] == "for members"
        url = f"{peer.url}/mcp"
        await asyncio.to_thread(operate, server.db, "DELETE", path, None, url=url)
        assert (await api.play("described_facts", tools=named))[-1]["text"] == "for strangers"


async def test_a_login_is_for_its_workspace_and_its_address_alone(world: World, issuer: Issuer) -> None:
    where = await world.log_in()
    assert await list_tools(world.pool, where)
    await workspaces.ensure(world.at, "globex")
    for other in (
        McpAddress(await workspaces.find(world.at, "globex"), where.url),
        McpAddress(where.workspace, f"{where.url}/other"),
        McpAddress(where.workspace, where.url, (("Authorization", "Bearer mine"),)),
    ):
        with pytest.raises(McpUnavailable, match="401"):
            await list_tools(world.pool, other)
    assert issuer.forms == []


async def test_a_renewal_goes_on_when_the_call_is_given_up(world: World, issuer: Issuer) -> None:
    where = await world.log_in(expires_at=NOW_US)
    login = await world.logins.find(where)
    assert login is not None
    given_up = asyncio.ensure_future(login.token())
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait({given_up})
    await world.logins.aclose()
    assert issuer.number == 1
    again = await world.logins.find(where)
    assert again is not None and await again.token() == "access-token-1"
    await mcp_logins.delete(world.at, url=where.url, slug="acme")
    with pytest.raises(LoginLost):
        await again.replace_token("access-token-1")
