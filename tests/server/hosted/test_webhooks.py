"""Webhooks: told about every end, signed, tried again, and not lost when the server dies."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import json
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import web

from commands import weftline_beside
from loopback import listening
from weftline.client import verify_webhook
from weftline.testing import ServerProcess

from ..kit import TIMEOUT_S, Api, Json, check_error
from ..scripts import SCRIPTS

CONFIG = "[server]\nallow_private_egress = true\nwebhook_retry_s = [0.02, 0.02, 0.02]\n"
_numbers = itertools.count(1)


class Hit(NamedTuple):
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        return json.loads(self.body)


class Receiver:
    """An endpoint that keeps what it gets, and answers as it is told."""

    def __init__(self) -> None:
        self.hits: list[Hit] = []
        self.answers: list[int] = []
        self.url = ""
        self._more = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.Response:
        hit = Hit(dict(request.headers), await request.read())
        async with self._more:
            self.hits.append(hit)
            self._more.notify_all()
        return web.Response(status=self.answers.pop(0) if self.answers else 204)

    async def wait(self, count: int) -> list[Hit]:
        async with asyncio.timeout(TIMEOUT_S), self._more:
            await self._more.wait_for(lambda: len(self.hits) >= count)
        return self.hits


@pytest.fixture
async def receiver() -> AsyncGenerator[Receiver]:
    one = Receiver()
    app = web.Application()
    app.router.add_post("/hook", one.handle)
    async with listening(app) as url:
        one.url = f"{url}/hook"
        yield one


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("hooks"), scripts=SCRIPTS, config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def keys(hooked: ServerProcess) -> Callable[[], tuple[str, str]]:
    def make() -> tuple[str, str]:
        slug = f"hooks-{next(_numbers)}"
        return slug, hooked.create_key(slug)

    return make


@pytest.fixture
def credentials(keys: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    return keys()


@pytest.fixture
async def api(hooked: ServerProcess, http: aiohttp.ClientSession, credentials: tuple[str, str]) -> Api:
    return Api(http, hooked.url, *credentials)


async def hook(api: Api, receiver: Receiver, **fields: Any) -> Json:
    reply = await api.post("webhooks", {"url": receiver.url, **fields})
    assert reply.status == 201, reply.body
    return reply.json


async def deliveries(api: Api, webhook: Json, until: str) -> list[Json]:
    """What became of the deliveries, once the newest has that status."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = (await api.get(f"webhooks/{webhook['id']}/deliveries")).json["deliveries"]
            if found and found[0]["status"] == until:
                return found
            await asyncio.sleep(0)


@pytest.mark.parametrize("given", [None, "nightly-7"])
async def test_the_end_of_a_run_is_posted_and_signed(api: Api, receiver: Receiver, given: str | None) -> None:
    webhook = await hook(api, receiver)
    run = await api.start("hello", metadata={"k": "v"}, runId=given)
    (hit,) = await receiver.wait(1)
    assert hit.json["type"] == "run.ended" and hit.json["workspace"] == api.slug
    shown = hit.json["run"]
    assert (shown["id"], shown["status"], shown["finalText"]) == (run, "succeeded", "Hello wörld")
    assert shown["metadata"] == {"k": "v"} and "spec" not in shown
    stamp, mark = (part.split("=", 1)[1] for part in hit.headers["Weftline-Signature"].split(","))
    expected = hmac.new(webhook["secret"].encode(), f"{stamp}.".encode() + hit.body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(mark, expected) and abs(time.time() - int(stamp)) < 3600
    header = hit.headers["Weftline-Signature"]
    assert verify_webhook(hit.body, header, webhook["secret"], tolerance_s=3600) == hit.json
    (one,) = await deliveries(api, webhook, "delivered")
    assert one["id"] == hit.headers["Weftline-Delivery"] == hit.json["id"]
    assert (one["runId"], one["attempts"], one["lastStatus"], one["lastError"]) == (run, 1, 204, "")


async def test_only_asked_for_ends_of_own_workspace_are_told(
    api: Api, receiver: Receiver, keys: Callable[[], tuple[str, str]]
) -> None:
    await hook(api, receiver, events=["failed"])
    other = Api(api.http, api.url, *keys())
    for where, script in ((api, "hello"), (other, "fails_auth")):
        await where.events(await where.start(script))
    failed = await api.start("fails_auth")
    (hit,) = await receiver.wait(1)
    assert hit.json["run"]["id"] == failed and hit.json["run"]["error"] == "the model says auth"


async def test_a_delivery_is_tried_again_until_it_is_taken(api: Api, receiver: Receiver) -> None:
    webhook = await hook(api, receiver)
    receiver.answers = [500, 302]
    await api.start("hello")
    hits = await receiver.wait(3)
    assert len({hit.headers["Weftline-Delivery"] for hit in hits}) == 1
    assert len({hit.body for hit in hits}) == 1
    (one,) = await deliveries(api, webhook, "delivered")
    assert one["attempts"] == 3


async def test_rejected_delivery_is_given_up_and_can_be_requested_again(api: Api, receiver: Receiver) -> None:
    webhook = await hook(api, receiver)
    receiver.answers = [503] * 4
    await api.start("hello")
    (one,) = await deliveries(api, webhook, "failed")
    assert (one["attempts"], one["lastStatus"], one["nextAttemptAt"]) == (4, 503, None)
    assert one["lastError"].startswith("HTTP 503")
    reply = await api.post(f"webhooks/{webhook['id']}/deliveries/{one['id']}/redeliver")
    assert reply.status == 202
    assert (await deliveries(api, webhook, "delivered"))[0]["id"] == one["id"]
    assert len(receiver.hits) == 5


async def test_a_webhook_that_is_off_is_not_told(api: Api, receiver: Receiver) -> None:
    webhook = await hook(api, receiver)
    path = f"webhooks/{webhook['id']}"
    assert (await api.call("PATCH", path, {"enabled": False})).json["enabled"] is False
    await api.events(await api.start("hello"))
    await api.call("PATCH", path, {"enabled": True})
    run = await api.start("hello")
    assert [hit.json["run"]["id"] for hit in await receiver.wait(1)] == [run]


async def test_secret_is_told_once_and_what_is_removed_is_gone(api: Api, receiver: Receiver) -> None:
    webhook = await hook(api, receiver)
    assert webhook["secret"].startswith("whsec_")
    path = f"webhooks/{webhook['id']}"
    shown = (await api.get(path)).json
    assert "secret" not in shown and (await api.get("webhooks")).json == {"webhooks": [shown]}
    assert (await api.call("DELETE", path)).json == {"ok": True}
    check_error(await api.get(path), 404, "not_found")
    await api.events(await api.start("hello"))
    assert receiver.hits == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": "ftp://x"},
        {"url": "nothing"},
        {"url": "http://x", "events": ["created"]},
        {"url": 7},
        {"url": "http://127.1/"},
        {"url": "http://127.0.0.1%00.example.com/"},
        {"url": "http://[::ffff:127.1]/"},
        {"url": "http://x:99999/"},
    ],
)
async def test_a_webhook_that_cannot_be_is_refused(api: Api, body: Json) -> None:
    refused = check_error(await api.post("webhooks", body), 400, "invalid_request")
    assert "pattern" not in refused["message"]


async def test_nothing_is_lost_when_server_is_killed_before_it_delivers(
    tmp_path: Path, http: aiohttp.ClientSession, receiver: Receiver
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS, config=CONFIG) as server:
        api = Api(http, server.url, "acme", await asyncio.to_thread(server.create_key, "acme"))
        await hook(api, receiver)
        run = await api.start("lookup", tools=[{"kind": "local", "name": "lookup"}])
        async with api.stream(run) as stream:
            call = await stream.until("local_tool_call")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start, env={"WEFTLINE_CRASH": "run.ended:after"})
        with suppress(aiohttp.ClientError):  # the process dies right after the commit that ends the run
            await api.answer(run, call["toolUseId"], result="42")
        await asyncio.to_thread(server.wait)
        assert receiver.hits == []
        await asyncio.to_thread(server.start)
        (hit,) = await receiver.wait(1)
        assert hit.json["run"]["id"] == run and hit.json["run"]["finalText"] == "found 42"


async def test_an_address_that_the_configuration_closes_is_not_reached(
    tmp_path: Path, http: aiohttp.ClientSession, receiver: Receiver
) -> None:
    config = "[server]\nwebhook_retry_s = []\nallow_private_egress = false\n"
    with ServerProcess(tmp_path, scripts=SCRIPTS, config=config) as server:
        api = Api(http, server.url, "acme", await asyncio.to_thread(server.create_key, "acme"))
        webhook = await hook(api, receiver)
        await api.start("hello")
        (one,) = await deliveries(api, webhook, "failed")
        assert one["lastStatus"] is None and "allow_private_egress" in one["lastError"]
    assert receiver.hits == []


async def test_webhooks_are_kept_by_command_too(api: Api, receiver: Receiver, hooked: ServerProcess) -> None:
    async def command(*arguments: str) -> str:
        done = await weftline_beside("webhooks", *arguments, "--workspace", api.slug, "--db", str(hooked.db))
        assert done.code == 0, done.err
        return done.out.strip()

    identity, secret = (await command("create", "--url", receiver.url, "--event", "succeeded")).split()
    assert secret.startswith("whsec_") and await command("list", "-q") == identity
    run = await api.start("hello")
    assert [hit.json["run"]["id"] for hit in await receiver.wait(1)] == [run]
    await deliveries(api, {"id": identity}, "delivered")
    (one,) = json.loads(await command("deliveries", identity, "--json"))
    assert (one["runId"], one["status"], one["attempts"]) == (run, "delivered", 1)
    assert await command("delete", identity) == identity
    assert await command("list") == ""


async def test_an_endpoint_that_never_answers_holds_up_no_other(api: Api, receiver: Receiver) -> None:
    open_connections: list[asyncio.StreamWriter] = []

    def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.append(writer)

    endpoint = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = endpoint.sockets[0].getsockname()[1]
    slow = (await api.post("webhooks", {"url": f"http://127.0.0.1:{port}/"})).json
    runs = [await api.start("hello") for _ in range(70)]
    for run in runs:
        await api.events(run)
    await hook(api, receiver)
    last = await api.start("hello")
    assert [hit.json["run"]["id"] for hit in await receiver.wait(1)] == [last]
    await api.call("DELETE", f"webhooks/{slow['id']}")
    endpoint.close()
    for writer in open_connections:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for writer in open_connections), return_exceptions=True)


@pytest.mark.parametrize("answered_first", [False, True])
async def test_watchers_are_told_when_a_run_begins_to_wait(api: Api, receiver: Receiver, answered_first: bool) -> None:
    ends = await hook(api, receiver)
    waiting = await hook(api, receiver, events=["waiting"])
    assert (ends["events"], waiting["events"]) == (["cancelled", "failed", "succeeded"], ["waiting"])
    if answered_first:
        receiver.answers = [503]  # what is sent again tells how it stands by then
    run = await api.start("ask", tools=[{"kind": "server", "name": "ask_user"}])
    hit = (await receiver.wait(1))[0]
    assert hit.headers["Weftline-Event"] == hit.json["type"] == "await.opened"
    asked = hit.json["await"]
    assert (asked["runId"], asked["question"], asked["options"]) == (run, "Which one?", ["red", "blue"])
    assert hit.json["open"] is True and hit.json["run"]["paused"] in (True, False)
    assert (await api.post(f"agent-runs/{run}/awaits/{asked['id']}", {"outcome": "denied"})).status == 200
    (delivery,) = await deliveries(api, waiting, "delivered")
    assert (delivery["type"], delivery["awaitId"], delivery["runId"]) == ("await.opened", asked["id"], run)
    hits = await receiver.wait(3 if answered_first else 2)
    assert {one.json["type"] for one in hits} == {"await.opened", "run.ended"}
    again = [one.json["await"] for one in hits if one.json["type"] == "await.opened"]
    assert all(one == asked for one in again)
    (ended,) = await deliveries(api, ends, "delivered")
    assert (ended["type"], ended["awaitId"]) == ("run.ended", None)
