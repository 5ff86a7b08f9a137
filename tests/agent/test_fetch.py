"""The tool `fetch` of an agent: which addresses a model may make it reach is up to the program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from weftline import Agent, fetch
from weftline.testing import ScriptedModel, calls

PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<h1>Looms</h1><p>Old.</p>"


@asynccontextmanager
async def site() -> AsyncGenerator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(PAGE)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def read(url: str, **allowed: Any) -> str:
    model = ScriptedModel([calls("fetch", url=url), "Read."])
    result = await Agent(model, tools=[fetch(**allowed)]).run("Read it.")
    return result.calls[0].result


@pytest.mark.parametrize("allowed", [{"allow": ["127.0.0.1"]}, {"allow": ["127.0.0.0/8"]}, {"private": True}])
async def test_an_agent_reads_pages_that_its_program_allows(allowed: dict[str, Any]) -> None:
    async with site() as url:
        assert "Looms" in await read(url, **allowed)


async def test_an_address_inside_is_refused_unless_the_program_allows_it() -> None:
    async with site() as url:
        refused = await read(url)
    assert "127.0.0.1 has a loopback address, which is not reached" in refused
    assert "those that the program allows with fetch(allow=[…])" in refused


def test_what_is_allowed_has_to_be_hosts_and_networks() -> None:
    with pytest.raises(TypeError, match="allow must be a list of hosts, addresses and networks, not 'intranet'"):
        fetch(allow="intranet")
    with pytest.raises(ValueError, match=r"allow '10\.0\.0\.0/99' is not a network"):
        fetch(allow=["10.0.0.0/99"])
