"""Finished turns of a run that goes on, read from outside its process's own API."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from weftline import Agent, Engine, asgi, tool
from weftline.client import AsyncClient
from weftline.events import TurnFinished
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

from ..kit import TIMEOUT_S
from .test_mounted import joined, listening


@pytest.mark.requirement("loop.thread.saved")
async def test_client_reads_finished_turns_of_run_that_goes_on(tmp_path: Path) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @tool  # begins when what led to it is stored
    async def hold() -> str:
        """Holds."""
        begun.set()
        await release.wait()
        return "held"

    turn = {"text": "One moment.", **calls("hold")}
    agent = Agent(ScriptedModel([turn, "Done."]), name="held", tools=[hold])
    engine = Engine(tmp_path / "data", agents=[agent], models=Catalog(), workspace="acme")
    async with (
        asyncio.timeout(TIMEOUT_S),
        listening(asgi(engine)) as url,
        joined(url, tmp_path / "data") as api,
        AsyncClient(api_key=api.key, workspace="acme", base_url=url) as client,
    ):
        run = await engine.start(agent, "Go.")
        await begun.wait()
        assert (await client.get_run(run.id)).status == "running"
        async with await client.attach(run.id, dispatch=False) as there:
            finished = await anext(
                frame.event async for frame in there.frames() if isinstance(frame.event, TurnFinished)
            )
            assert (finished.text, finished.run_id) == ("One moment.", run.id)
            release.set()
            await run.result()
        assert (await client.get_run(run.id)).status == "succeeded"
