"""A server that begins to listen knows its first routes only; a request for another one has all of them loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from weftline.server.app import App
from weftline.server.router import Route
from weftline.server.routes import FIRST
from weftline.server.routes.every import ROUTES

from .kit import World


class Starting:
    """An app whose other routes are counted when they are loaded."""

    def __init__(self, world: World) -> None:
        self.loads = 0
        world.app = App(world.app.engine, world.store, world.app.models, FIRST, every_route=self._load)

    def _load(self) -> Sequence[Route]:
        self.loads += 1
        return ROUTES


async def test_the_first_routes_do_not_wait_for_the_others(world: World) -> None:
    starting = Starting(world)
    assert (await world.call("GET", "/healthz")).status == 200
    assert (await world.call("GET", "/api/v1/workspaces/acme/agent-runs")).status == 401
    assert starting.loads == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/oauth/userinfo", 401),
        ("GET", "/openapi.json", 200),
        ("GET", "/nowhere", 404),
        ("PATCH", "/api/v1/workspaces/acme/agent-runs", 405),
    ],
)
async def test_other_requests_load_models_and_are_answered(world: World, method: str, path: str, status: int) -> None:
    starting = Starting(world)
    assert (await world.call(method, path)).status == status
    assert starting.loads == 1


async def test_they_are_loaded_once(world: World) -> None:
    starting = Starting(world)
    paths = ["/openapi.json", "/nowhere", "/api/oauth/userinfo"]
    await asyncio.gather(world.app.load_routes(), *[world.call("GET", path) for path in paths])
    await world.app.load_routes()
    assert starting.loads == 1
