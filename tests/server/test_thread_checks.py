"""Threads that no run can begin on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.kit import workspace_of
from weftline import Agent, Engine, WeftlineError
from weftline.errors import Conflict, InvalidRequest, NotFound
from weftline.store.rows import RunFilter
from weftline.testing import ScriptedModel

from .kit import Api, check_error

PATIENCE_S = 60


@pytest.mark.requirement("run.start.thread_checks")
async def test_refused_start_on_a_thread_leaves_nothing(api: Api, tmp_path: Path) -> None:
    await over_http(api)
    model = ScriptedModel(["Done."])
    agent = Agent(model, name="a")
    refused: dict[str, WeftlineError] = {}
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        await (await engine.start(agent, "Go.", thread="over")).result()
        await engine.thread("over").end()
        await engine.thread("over").end()
        asked = len(model.requests)
        for thread in ("", "  ", "ses_1000000000000000", "over"):
            with pytest.raises(WeftlineError) as error:
                await engine.start(agent, "Go.", thread=thread)
            refused[thread] = error.value
        with pytest.raises(WeftlineError) as error:
            await agent.run("Go.", thread="t")  # a run that belongs to nobody else
        refused["alone"] = error.value
        host = await engine.runtime()
        assert await host.stored.logs.count_runs(RunFilter(workspace=await workspace_of(engine))) == 1
        assert len(model.requests) == asked
    assert {thread: (type(error), error.code) for thread, error in refused.items()} == {
        "": (InvalidRequest, "blank_thread"),
        "  ": (InvalidRequest, "blank_thread"),
        "ses_1000000000000000": (NotFound, "not_found"),
        "over": (Conflict, "thread_ended"),
        "alone": (InvalidRequest, "thread_not_allowed"),
    }


async def over_http(api: Api) -> None:
    session = await api.session("hello")
    await api.events(await api.send(session))
    await api.call("DELETE", f"agent-sessions/{session}")
    before = (await api.get("agent-runs")).json["runs"]
    message = {"prompt": "x"}
    check_error(await api.post("agent-sessions/%20/messages", message), 400, "blank_thread")
    check_error(await api.post("agent-sessions/ses_1000000000000000/messages", message), 404, "not_found")
    check_error(await api.post(f"agent-sessions/{session}/messages", message), 409, "session_ended")
    one_shot = {"modelId": "scripted:hello", "prompt": "x", "sessionId": session}
    check_error(await api.post("agent-runs", one_shot), 400, "thread_not_allowed")
    assert (await api.get("agent-runs")).json["runs"] == before
    started = await api.post("agent-runs", {**one_shot, "sessionId": None})
    assert started.status == 202
    await api.events(started.json["runId"])


async def test_thread_of_server_is_gone_on_with_by_its_id(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(["{{user_messages}}"]), name="a")
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        await agent.run("Go.", thread="t", engine=engine)
        run = await engine.start(agent, "On.", thread="t")
        thread = (await run.snapshot()).thread
        assert thread is not None and (await run.result()).text == "Go. | On."
        assert (await agent.run("And on.", thread=thread, engine=engine)).text == "Go. | On. | And on."
        assert len(await engine.thread("t").messages()) == 6
