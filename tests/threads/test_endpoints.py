"""Routes of endpoints: what file names say, and which route a request is for."""

from __future__ import annotations

from itertools import permutations

import pytest

from weftline.threads import Request, Response, Route
from weftline.threads.definitions.endpoints import BadRoute, find_route, routes_of

NAMES = [
    ("foo", "GET", "/foo"),
    ("bar.post", "POST", "/bar"),
    ("bar.PoSt", "POST", "/bar"),
    ("index", "GET", "/"),
    ("index.delete", "DELETE", "/"),
    ("foobar/index", "GET", "/foobar"),
    ("foobar/[id].put", "PUT", "/foobar/[id]"),
    ("[*].patch", "PATCH", "/[*]"),
]


@pytest.mark.parametrize(("key", "method", "path"), NAMES)
@pytest.mark.requirement("thread.endpoint.routes")
def test_file_name_says_method_and_path(key: str, method: str, path: str) -> None:
    route = Route.parse(key)
    assert (route.method, route.path) == (method, path)
    assert Route.parse(route.key) == route


@pytest.mark.parametrize("key", ["a.head", "[*]/a", "[id]/[id]", "a b", "[]", "a//b", "[a-b]", "v1.2"])
def test_file_name_that_is_no_route_is_refused(key: str) -> None:
    with pytest.raises(BadRoute):
        Route.parse(key)


REQUESTS: list[tuple[str, str, dict[str, str] | None]] = [
    ("notes/[id]", "/notes/7", {"id": "7"}),
    ("notes/[id]", "/notes/a%20b%C3%A9", {"id": "a bé"}),
    ("notes/[id]", "/notes/a%2Fb", None),
    ("notes/[id]", "/notes/", None),
    ("notes/[id]", "/notes", None),
    ("notes/[id]", "/notes/7/8", None),
    ("notes/[*]", "/notes/7/8", {"*": "7/8"}),
    ("notes/[*]", "/notes/a%20b/c", {"*": "a b/c"}),
    ("notes/[*]", "/notes", {"*": ""}),
    ("notes/[*]", "/note", None),
    ("[*]", "/", {"*": ""}),
    ("index", "/", {}),
    ("index", "/index", None),
    ("status", "/status/", None),
]


@pytest.mark.parametrize(("key", "path", "params"), REQUESTS)
@pytest.mark.requirement("thread.endpoint.params")
def test_segments_in_brackets_take_segments_of_the_path(key: str, path: str, params: dict[str, str] | None) -> None:
    assert Route.parse(key).match("GET", path) == params
    assert Route.parse(key).match("POST", path) is None


@pytest.mark.requirement("thread.endpoint.precedence")
def test_static_segment_beats_a_named_one_beats_the_rest() -> None:
    for order in permutations(["a/b", "a/[x]", "[x]/b", "a/[*]", "[*]"]):
        check_order(order)


def check_order(order: tuple[str, ...]) -> None:
    routes = routes_of(order)
    found = {path: find_route(routes, "GET", path) for path in ("/a/b", "/a/c", "/c/b", "/a/b/c", "/c/d", "/a")}
    assert {path: one[0] for path, one in found.items() if one} == {
        "/a/b": "a/b",
        "/a/c": "a/[x]",
        "/c/b": "[x]/b",
        "/a/b/c": "a/[*]",
        "/c/d": "[*]",
        "/a": "a/[*]",
    }


async def test_request_reads_its_body_once() -> None:
    reads: list[int] = []

    async def read() -> bytes:
        reads.append(1)
        return b'{"a": 1}'

    request = Request("POST", "/x", headers={"X-Kind": "y"}, read=read)
    assert (await request.json(), await request.text(), len(reads)) == ({"a": 1}, '{"a": 1}', 1)
    assert request.headers == {"x-kind": "y"}


def test_response_has_the_type_of_its_body() -> None:
    made = Response.json({"a": 1}, status=201)
    assert (made.body, made.status, made.headers) == (b'{"a":1}', 201, {"content-type": "application/json"})
    assert Response.text("é", headers={"x": "y"}).headers == {"content-type": "text/plain; charset=utf-8", "x": "y"}
