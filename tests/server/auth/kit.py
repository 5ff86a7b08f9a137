"""A whole server in this process, on a clock that the test holds, and a browser that keeps its cookies."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from html import unescape
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from argon2 import PasswordHasher

from weftline.cases import keys
from weftline.server.app import App
from weftline.server.http import DISCONNECT, Disconnect
from weftline.server.offline import ask
from weftline.server.operators import PATHS
from weftline.server.router import Route
from weftline.store.base import Store
from weftline.workspace import apps
from weftline.workspace.grants import challenge_of

NOW_US = 1_800_000_000_000_000
SECOND_US = 1_000_000
PASSWORD = "a long enough password"
VERIFIER = "v" * 43
CALLBACK = "https://app.example/callback"
SCOPES = "runs:write runs:read mantyx.identity:read"


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.us = NOW_US

    def now_us(self) -> int:
        return self.us

    def pass_s(self, seconds: float) -> None:
        self.us += int(seconds * SECOND_US)


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    cookies: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def token(self) -> str:
        """The hidden field of a page's form."""
        found = re.search(r'name="token" value="([^"]+)"', self.text)
        assert found is not None, self.text
        return unescape(found[1])

    @property
    def redirect(self) -> dict[str, str]:
        """The parameters that a redirect hands over."""
        assert self.status == 302, self.body
        return {name: values[0] for name, values in parse_qs(urlsplit(self.headers["location"]).query).items()}


class World:
    """The server. `call` is a request; `admin` an operation, as the command line sends it."""

    def __init__(self, app: App, store: Store, clock: Clock) -> None:
        self.app = app
        self.store = store
        self.clock = clock

    async def operate(self, method: str, path: str, body: Any = None) -> Any:
        """What the operator alone can do; `path` is below that of the operator."""
        sent = b"" if body is None else json.dumps(body).encode()
        answer = await ask(self.app, method, f"{PATHS}{path}", sent, operator="root")
        assert answer.status in (200, 201), answer
        return json.loads(answer.body)

    async def switch(self, workspace: str, feature: str, *, on: bool) -> None:
        await self.operate("PATCH", f"workspaces/{workspace}", {"features": {feature: on}})

    async def new_key(self, workspace: str = "acme", **arguments: Any) -> tuple[str, str]:
        """The id of a new key, and the key."""
        made = await keys.add(self.app.workspaces, workspace, **arguments)
        return made.key.id, made.secret

    async def key(self, workspace: str = "acme", **arguments: Any) -> str:
        _, secret = await self.new_key(workspace, **arguments)
        return secret

    async def user(self, email: str = "ann@example.com", *workspaces: str) -> str:
        # The cheapest hash there is: what it costs is not what is tested.
        hashed = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
        asked = {"email": email, "password": hashed, "workspaces": list(workspaces or ("acme",))}
        return (await self.operate("POST", "users", asked))["id"]

    async def client(self, workspace: str = "acme", **fields: Any) -> Client:
        given: dict[str, Any] = {"name": "Notes", "redirect_uris": [CALLBACK], "scopes": SCOPES.split(), **fields}
        new = apps.checked_app(**given, schemes=self.app.workspaces.redirect_schemes)
        app, secret = await apps.register_app(self.app.workspaces, new, slug=workspace)
        return Client(self, app.client_id, secret)

    async def own_token(self, workspace: str = "acme", *scopes: str) -> str:
        """An access token of an app that acts for itself."""
        client = await self.client(workspace, redirect_uris=[], client_credentials=True, scopes=list(scopes))
        return (await client.token(grant_type="client_credentials")).json["access_token"]

    async def call(
        self,
        method: str,
        path: str,
        *,
        credential: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        form: Mapping[str, str] | None = None,
        address: str = "192.0.2.1",
        disconnect: Disconnect | None = None,
        takes: int | None = None,
        begun: asyncio.Event | None = None,
        halfway: Callable[[], Awaitable[object]] | None = None,
        scope: Mapping[str, Any] | None = None,
    ) -> Reply:
        """`takes` is how many messages of the answer the client takes, all by default; `begun` is set by the first.
        `halfway` is called when the server has one byte of the body and waits for the rest."""
        sent = {"host": "weft.example", **(headers or {})}
        data = b""
        if credential is not None:
            sent["authorization"] = f"Bearer {credential}"
        if form is not None:
            data = urlencode(form).encode()
            sent.setdefault("content-type", "application/x-www-form-urlencoded")
        elif body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
        path, _, query = path.partition("?")
        head: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "client": (address, 4711),
            **(scope or {}),
        }
        if disconnect is not None:
            head[DISCONNECT] = disconnect
        messages: list[Any] = []
        unread = [{"type": "http.request", "body": data, "more_body": False}]
        if halfway is not None:
            unread[0]["body"] = data[1:]
            unread.append({"type": "http.request", "body": data[:1], "more_body": True})

        async def receive() -> dict[str, Any]:
            if not unread:
                await asyncio.Event().wait()
            if halfway is not None and len(unread) == 1:
                await halfway()
            return unread.pop()

        async def send(message: Any) -> None:
            if takes is not None and len(messages) >= takes:
                await asyncio.Event().wait()
            messages.append(message)
            if begun is not None:
                begun.set()

        await self.app(head, receive, send)
        if not messages:
            raise ConnectionResetError
        pairs = [(name.decode(), value.decode()) for name, value in messages[0]["headers"]]
        cookies = dict(value.split(";")[0].split("=", 1) for name, value in pairs if name == "set-cookie")
        return Reply(
            messages[0]["status"], dict(pairs), b"".join(message.get("body", b"") for message in messages[1:]), cookies
        )


class Client:
    """A registered app."""

    def __init__(self, world: World, client_id: str, secret: str) -> None:
        self.world = world
        self.id = client_id
        self.secret = secret

    def query(self, **changes: str | None) -> str:
        """An authorize request; a change to None leaves the parameter out."""
        given: dict[str, str | None] = {
            "client_id": self.id,
            "redirect_uri": CALLBACK,
            "response_type": "code",
            "scope": SCOPES,
            "state": "st/ate &1",
            "code_challenge": challenge_of(VERIFIER),
            "code_challenge_method": "S256",
            **changes,
        }
        return "/api/oauth/authorize?" + urlencode({name: value for name, value in given.items() if value is not None})

    async def post(self, endpoint: str, **form: str) -> Reply:
        sent = {"client_id": self.id, "client_secret": self.secret, **form}
        return await self.world.call("POST", f"/api/oauth/{endpoint}", form=sent)

    async def token(self, **form: str) -> Reply:
        return await self.post("token", **form)

    async def exchange(self, given: str, **changes: str) -> Reply:
        """Exchanges a code; `changes` are other fields than the right ones."""
        form = {
            "grant_type": "authorization_code",
            "code": given,
            "redirect_uri": CALLBACK,
            "code_verifier": VERIFIER,
            **changes,
        }
        return await self.token(**form)

    async def refresh(self, refresh_token: str, **form: str) -> Reply:
        return await self.token(grant_type="refresh_token", refresh_token=refresh_token, **form)

    async def introspect(self, token: str) -> Any:
        reply = await self.post("introspect", token=token)
        assert reply.status == 200, reply.body
        return reply.json

    async def granted(self, browser: Browser, **decision: str) -> dict[str, Any]:
        """The whole way: consent, code, tokens."""
        reply = await self.exchange((await browser.approve(self, **decision)).redirect["code"])
        assert reply.status == 200, reply.body
        return reply.json


class Browser:
    """Keeps cookies and sends forms as a browser does, with the page's origin."""

    def __init__(self, world: World, *, address: str = "192.0.2.1") -> None:
        self.world = world
        self.address = address
        self.cookies: dict[str, str] = {}

    async def get(self, path: str) -> Reply:
        return await self.send("GET", path)

    async def post(self, path: str, *, origin: str = "http://weft.example", **form: str) -> Reply:
        return await self.send("POST", path, form=form, headers={"origin": origin})

    async def send(self, method: str, path: str, **options: Any) -> Reply:
        headers = dict(options.pop("headers", {}))
        if self.cookies:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        reply = await self.world.call(method, path, headers=headers, address=self.address, **options)
        self.cookies.update(reply.cookies)
        return reply

    async def sign_in(
        self,
        email: str = "ann@example.com",
        *,
        password: str = PASSWORD,
        page: str = "/api/oauth/sign-in",
        disconnect: Disconnect | None = None,
    ) -> Reply:
        form = {"token": (await self.get(page)).token, "email": email, "password": password}
        headers = {"origin": "http://weft.example"}
        return await self.send("POST", "/api/oauth/sign-in", form=form, headers=headers, disconnect=disconnect)

    async def ask(self, client: Client, **changes: str | None) -> Reply:
        """The consent page."""
        reply = await self.get(client.query(**changes))
        assert reply.status == 200 and 'value="approve"' in reply.text, reply.text
        return reply

    async def decide(self, page: Reply, decision: str, **form: str) -> Reply:
        return await self.post("/api/oauth/authorize/decide", token=page.token, decision=decision, **form)

    async def approve(self, client: Client, *, scope: str | None = None, **form: str) -> Reply:
        page = await self.ask(client, **({} if scope is None else {"scope": scope}))
        return await self.decide(page, "approve", **form)


def check_error(reply: Reply, status: int, code: str) -> dict[str, Any]:
    """Asserts the one error shape and returns the body."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    body = reply.json
    assert body["code"] == code, body
    assert all(isinstance(body[field], str) and body[field] for field in ("error", "code", "message")), body
    return body


def check_oauth_error(reply: Reply, error: str, *, status: int = 400) -> None:
    """Asserts an error of RFC 6749."""
    assert reply.status == status, reply.body
    assert reply.headers["cache-control"] == "no-store"
    body = reply.json
    assert body["error"] == error and set(body) <= {"error", "error_description"}, body
