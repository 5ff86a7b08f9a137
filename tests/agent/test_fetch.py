"""The tool `fetch` of an agent in Python."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from server.tools.peers import serving
from weftline import Agent, Engine, fetch
from weftline.testing import ScriptedModel, calls


async def page(request: web.Request) -> web.Response:
    return web.Response(text="<h1>Tides</h1><p>High water twice a day.</p>", content_type="text/html")


async def read(url: str, **options: object) -> str:
    model = ScriptedModel([calls("fetch", url=url), "Done."])
    agent = Agent(model, tools=[fetch(**options)])  # type: ignore[arg-type]
    async with Engine() as engine:
        result = await agent.run("Read it.", engine=engine)
    return result.calls[0].result


async def test_an_agent_reads_the_pages_that_it_was_let_read() -> None:
    async with serving(page) as peer:
        assert "High water twice a day." in await read(peer.url, private=True)
        assert "High water twice a day." in await read(peer.url, hosts=["127.0.0.1"])


async def test_private_name_is_refused_with_advice() -> None:
    async with serving(page) as peer:
        refused = await read(peer.url)
    assert "has a loopback address, which is not connected to" in refused
    assert "The program can allow it with fetch(hosts=[…]) or fetch(private=True)." in refused
    guarded = await read("http://169.254.169.254/latest/meta-data", private=True)
    assert "has a metadata or link-local address" in guarded


async def test_runs_on_several_loops_have_separate_connections() -> None:
    agent = Agent("scripted:x", tools=[fetch(private=True)])
    async with serving(page) as peer:

        def model() -> ScriptedModel:
            return ScriptedModel([calls("fetch", url=peer.url), "Done."])

        def elsewhere() -> str:
            return agent.run_sync("3", model=model()).calls[0].result

        async with Engine() as one, Engine() as other:
            first = await agent.run("1", engine=one, model=model())
            second = await agent.run("2", engine=other, model=model())
            third = await asyncio.to_thread(elsewhere)
    assert all("High water" in text for text in (first.calls[0].result, second.calls[0].result, third))


def test_one_name_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match=r"hosts=\['intranet'\]"):
        fetch(hosts="intranet")
