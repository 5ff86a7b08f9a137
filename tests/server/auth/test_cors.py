"""Pages of other origins: what browsers are told, for every kind of answer, and which settings are refused."""

from __future__ import annotations

from typing import Any

import pytest

from weftline.config import Config
from weftline.errors import WeftlineError
from weftline.server.cors import Cors
from weftline.server.options import ServerOptions, server_options

from .kit import Reply, World

PAGE = "https://app.example"
RUNS = "/api/v1/workspaces/acme/agent-runs"
RUN = {"modelId": "scripted:hello", "prompt": "hi"}
ORIGIN = {"origin": PAGE}


def asking(method: str = "POST", headers: str = "authorization,content-type", origin: str = PAGE) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": headers,
    }


def allowed(reply: Reply) -> str | None:
    return reply.headers.get("access-control-allow-origin")


class TestWithoutTheSetting:
    async def test_no_page_of_another_origin_may_read_anything(self, world: World) -> None:
        key = await world.key()
        for reply in (
            await world.call("GET", RUNS, credential=key, headers=ORIGIN),
            await world.call("OPTIONS", RUNS, headers=asking()),
        ):
            assert allowed(reply) is None and "vary" not in reply.headers
        assert reply.status == 405


def test_early_refusal_is_open_only_if_every_origin_is() -> None:
    granted = (b"access-control-allow-origin", b"*")
    assert granted in Cors(frozenset({"*"})).early_headers(None)
    assert Cors(frozenset({PAGE})).early_headers(None) == ((b"vary", b"Origin"),)


class TestNamedOrigins:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(cors=Cors(frozenset({PAGE})), rate_limit_per_minute=3)

    async def test_a_preflight_is_answered_without_a_credential(self, world: World) -> None:
        asked = asking(headers="authorization, x-trace, bad name, last-event-id")
        reply = await world.call("OPTIONS", RUNS, headers=asked)
        assert (reply.status, reply.body, allowed(reply)) == (204, b"", PAGE)
        assert set(reply.headers["access-control-allow-methods"].split(", ")) == {"GET", "POST"}
        names = reply.headers["access-control-allow-headers"].split(", ")
        assert {"Authorization", "Content-Type", "Last-Event-ID", "Idempotency-Key", "X-API-Key", "x-trace"} <= {*names}
        assert "bad name" not in names and names.count("Authorization") == 1 and "authorization" not in names
        assert reply.headers["access-control-max-age"] == "600" and reply.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in reply.headers

    async def test_browser_pages_can_read_every_answer(self, world: World) -> None:
        key = await world.key()

        async def call(method: str = "GET", path: str = RUNS, **given: Any) -> Reply:
            headers = {**ORIGIN, **given.pop("headers", {})}
            credential = given.pop("credential", key)
            reply = await world.call(method, path, headers=headers, credential=credential, **given)
            assert allowed(reply) == PAGE and reply.headers["vary"] == "Origin", (path, reply)
            exposed = reply.headers["access-control-expose-headers"].split(", ")
            assert {"Location", "X-Run-Id", "X-Warnings", "X-Request-Id", "Retry-After"} <= {*exposed}
            return reply

        stream = await call("POST", body=RUN, headers={"accept": "text/event-stream"})
        assert stream.status == 200 and b"event: result" in stream.body
        run = stream.headers["x-run-id"]
        again = await call(path=f"{RUNS}/{run}/stream", headers={"last-event-id": "2"})
        assert again.status == 200 and b"id: 2\n" not in again.body and b"event: result" in again.body
        assert (await call(credential="wrong")).status == 401
        assert (await call(path=f"{RUNS}/run_1")).status == 404
        assert (await call(path="/nowhere")).status == 404
        assert (await call("PUT")).status == 405
        assert (await call("POST", body=b" " * (64 * 1024 * 1024))).status == 413
        limited = await call()
        assert limited.status == 429 and limited.headers["retry-after"]

    @pytest.mark.parametrize(
        "origin", ["https://evil.example", "null", f"{PAGE}.evil", "http://app.example", f"{PAGE}/"]
    )
    async def test_another_origin_is_refused_in_words_and_told_nothing(self, world: World, origin: str) -> None:
        key = await world.key()
        reply = await world.call("OPTIONS", RUNS, headers=asking(origin=origin))
        assert (reply.status, reply.json["code"], allowed(reply)) == (403, "forbidden", None)
        assert origin in reply.json["message"] and "cors_origins" in reply.json["hint"]
        seen = await world.call("GET", RUNS, credential=key, headers={"origin": origin})
        assert seen.status == 200 and allowed(seen) is None and seen.headers["vary"] == "Origin"

    async def test_requests_without_an_origin_keep_cache_headers(self, world: World) -> None:
        reply = await world.call("GET", "/healthz")
        assert reply.status == 200 and allowed(reply) is None and reply.headers["vary"] == "Origin"
        assert (await world.call("OPTIONS", RUNS)).status == 405

    async def test_unknown_path_fails_the_request_but_not_its_preflight(self, world: World) -> None:
        assert (await world.call("OPTIONS", "/nowhere", headers=asking())).status == 204


class TestCredentials:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(cors=Cors(frozenset({PAGE}), credentials=True))

    async def test_cookies_may_come_along_but_never_to_pages_for_people(self, world: World) -> None:
        reply = await world.call("GET", "/healthz", headers=ORIGIN)
        assert reply.headers["access-control-allow-credentials"] == "true" and allowed(reply) == PAGE
        for path in ("authorize", "authorize/decide", "sign-in", "sign-out", "grants", "grants/g1"):
            path = f"/api/oauth/{path}"
            for method in ("GET", "POST", "DELETE"):
                assert allowed(await world.call(method, path, headers=ORIGIN, form={})) is None, path
            assert allowed(await world.call("OPTIONS", path, headers=asking())) is None, path


class TestAnyOrigin:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(cors=Cors(frozenset({"*"})))

    async def test_every_page_may_use_server_with_key_and_without_cookies(self, world: World) -> None:
        reply = await world.call("GET", "/healthz", headers={"origin": "https://anywhere.example"})
        assert allowed(reply) == "*" and "vary" not in reply.headers
        assert "access-control-allow-credentials" not in reply.headers
        assert (await world.call("OPTIONS", RUNS, headers=asking(origin="null"))).status == 204


def cors(**server: Any) -> Cors | None:
    return server_options(Config(path="weft.toml", server=server)).cors


def test_origins_are_read_as_browsers_write_them() -> None:
    given = ["HTTPS://App.Example:443", "http://localhost:5173", "https://bücher.example", "chrome-extension://abc"]
    made = cors(cors_origins=given, cors_credentials=True)
    assert made == Cors(
        frozenset(
            {"https://app.example", "http://localhost:5173", "https://xn--bcher-kva.example", "chrome-extension://abc"}
        ),
        credentials=True,
    )
    assert cors() is None and cors(cors_origins=[]) is None and cors(cors_origins=["*"]) == Cors(frozenset({"*"}))


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ({"cors_origins": "https://app.example"}, "must be a list of origins"),
        ({"cors_origins": [7]}, "7 is not an origin"),
        ({"cors_origins": ["app.example"]}, "write it as https://app.example.com"),
        ({"cors_origins": ["https://app.example/"]}, "write https://app.example instead"),
        ({"cors_origins": ["https://me:secret@app.example"]}, "write https://app.example instead"),
        ({"cors_origins": ["https://*.example"]}, "patterns are not supported"),
        ({"cors_origins": ["null"]}, "sandboxed page"),
        ({"cors_origins": [""]}, "is not an origin"),
        ({"cors_origins": ["https://"]}, "is not an origin"),
        ({"cors_origins": ["*"], "cors_credentials": True}, "name the origins"),
        ({"cors_origins": [PAGE], "cors_credentials": "yes"}, "must be true or false"),
        ({"cors_credentials": True}, "without cors_origins"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(server: dict[str, Any], says: str) -> None:
    with pytest.raises(WeftlineError) as caught:
        cors(**server)
    assert caught.value.code == "bad_config" and says in caught.value.message
    assert caught.value.message.startswith("weft.toml: server.cors_")
