"""One real server for the whole folder, and a fresh workspace with a key of its own for every test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack

import aiohttp
import pytest

from commands import new_secret
from weftline.testing import ServerProcess

from .kit import Api
from .scripts import LARGE_SCRIPTS, SCRIPTS, TOOLS

CONFIG = '[server]\ndisplay_hints = { pay = "Paying {payee}" }\n'
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    scripts = SCRIPTS | LARGE_SCRIPTS
    with ServerProcess(tmp_path_factory.mktemp("server"), config=CONFIG, scripts=scripts, tools=TOOLS) as running:
        yield running


def new_key(server: ServerProcess, slug: str = "acme") -> str:
    """An API key, made over the own socket of the running server."""
    return new_secret(server.db, slug, name="test")


@pytest.fixture
def fresh_key(server: ServerProcess) -> Callable[[], tuple[str, str]]:
    """Makes a new workspace; returns its slug and a key for it."""

    def make() -> tuple[str, str]:
        slug = f"team-{next(_numbers)}"
        return slug, new_key(server, slug)

    return make


@pytest.fixture
def credentials(fresh_key: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    return fresh_key()


@pytest.fixture
def other_credentials(fresh_key: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    return fresh_key()


@pytest.fixture
async def http() -> AsyncGenerator[aiohttp.ClientSession]:
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        yield await stack.enter_async_context(aiohttp.ClientSession(connector=connector))


@pytest.fixture
async def api(server: ServerProcess, http: aiohttp.ClientSession, credentials: tuple[str, str]) -> Api:
    return Api(http, server.url, *credentials)


@pytest.fixture
async def other_api(server: ServerProcess, http: aiohttp.ClientSession, other_credentials: tuple[str, str]) -> Api:
    """Another workspace of the same server."""
    return Api(http, server.url, *other_credentials)


@pytest.fixture
def second_key(server: ServerProcess, credentials: tuple[str, str]) -> str:
    """One more key of the test's workspace."""
    return new_key(server, credentials[0])
