"""The route of a request. What is remembered about one request says nothing about another."""

from __future__ import annotations

from weftline.server.router import Match, Router, WrongMethod
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
