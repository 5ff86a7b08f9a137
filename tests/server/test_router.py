"""The route of a request. What is remembered about one request says nothing about another."""

from __future__ import annotations

import pytest

from weftline.api.principal import Principal
from weftline.server.http import Request, Response
from weftline.server.router import Match, Route, Router, WrongMethod
from weftline.server.routes.every import ROUTES


def test_methods_and_paths_are_told_apart_however_often_they_come() -> None:
    router = Router(ROUTES)
    for _ in range(2):
        created = router.match("POST", "/api/v1/workspaces/acme/agent-runs")
        other = router.match("POST", "/api/v1/workspaces/zoo/agent-runs")
        assert isinstance(created, Match) and isinstance(other, Match)
        assert created.route is other.route and created.route.method == "POST"
        assert (created.params, other.params) == ({"slug": "acme"}, {"slug": "zoo"})
        assert isinstance(router.match("PATCH", "/api/v1/workspaces/acme/agent-runs"), WrongMethod)
        assert router.match("POST", "/api/v1/workspaces//agent-runs") is None


def test_few_requests_are_remembered() -> None:
    router = Router(ROUTES)
    for number in range(1000):
        assert router.match("GET", f"/nowhere/{number}") is None
    assert router.match.cache_info().currsize <= 64


async def nothing(app: object, request: Request, principal: Principal) -> Response:
    return Response(b"")


_PATHS = (
    ("GET", "/t/{id}"),
    ("GET", "/t/{id}/fs"),
    ("PUT", "/t/{id}/fs/{*path}"),
    ("GET", "/t/{id}/{*rest}"),
    ("PUT", "/t/{id}/{*rest}"),
)
RESTS: list[tuple[str, str, str | None, dict[str, str]]] = [
    ("GET", "/t/1", "/t/{id}", {"id": "1"}),
    ("GET", "/t/1/", "/t/{id}/{*rest}", {"id": "1", "rest": ""}),
    ("GET", "/t/1/a/b", "/t/{id}/{*rest}", {"id": "1", "rest": "a/b"}),
    ("HEAD", "/t/1/a", "/t/{id}/{*rest}", {"id": "1", "rest": "a"}),
    ("GET", "/t//a", "/t/{id}/{*rest}", {"id": "", "rest": "a"}),
    ("GET", "/t//fs", "/t/{id}/{*rest}", {"id": "", "rest": "fs"}),
    ("GET", "/t/1/fs", "/t/{id}/fs", {"id": "1"}),
    ("PUT", "/t/1/fs/a/b", "/t/{id}/fs/{*path}", {"id": "1", "path": "a/b"}),
    ("GET", "/t/1/fs/a", "/t/{id}/{*rest}", {"id": "1", "rest": "fs/a"}),
    ("POST", "/t/1/a", None, {}),
    ("GET", "/t/", None, {}),
    ("GET", "/t", None, {}),
]


@pytest.mark.parametrize(("method", "path", "route", "params"), RESTS)
def test_rest_of_path_is_for_a_route_that_takes_it(
    method: str, path: str, route: str | None, params: dict[str, str]
) -> None:
    found = Router([Route(*one, nothing) for one in _PATHS]).match(method, path)
    assert (found.route.path, found.params) == (route, params) if isinstance(found, Match) else route is found is None
