"""What one workspace may have of the server: runs under way, queued runs, streams; and turns for the rest."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from weftline.config import Config
from weftline.errors import WeftlineError
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.server.options import server_options
from weftline.testing import ServerProcess

from .conftest import new_key
from .kit import TIMEOUT_S, Api, check_error, logged
from .scripts import SCRIPTS

FEW = """
[server]
max_runs_per_workspace = 2
max_queued_runs_per_workspace = 3
max_streams_per_workspace = 2
"""
FEW_FILES = """
import resource

import weftline

resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))  # before the server looks


@weftline.tool
def nothing() -> None:
    "Does nothing."
"""
RUN = {"modelId": "scripted:stuck", "prompt": "x"}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("few"), scripts=SCRIPTS, config=FEW) as running:
        yield running


async def workspace(http: aiohttp.ClientSession, server: ServerProcess, slug: str) -> Api:
    key = await asyncio.to_thread(new_key, server, slug)
    return Api(http, server.url, slug, key)


async def test_workspace_queues_runs_up_to_its_cap(few: ServerProcess, http: aiohttp.ClientSession) -> None:
    greedy, other = await workspace(http, few, "greedy"), await workspace(http, few, "other")
    once = {"Idempotency-Key": "the first"}
    first = await greedy.post("agent-runs", RUN, headers=once)
    runs = [first.json["runId"]] + [await greedy.start("stuck") for _ in range(4)]
    refused = await greedy.post("agent-runs", RUN)
    body = check_error(refused, 429, "too_many_runs")
    assert body["limit"] == 3 and refused.headers["Retry-After"] == "5"
    # What was accepted stays accepted, and another workspace has its own places.
    assert (await greedy.post("agent-runs", RUN, headers=once)).json["runId"] == runs[0]
    assert (await other.play("hello"))[-1].type == "result"
    # A queued run that ends makes room in the queue; one that was under way lets a queued one move up.
    await greedy.cancel(runs[4])
    runs.append(await greedy.start("hello"))
    check_error(await greedy.post("agent-runs", RUN), 429, "too_many_runs")
    for run in runs[:4]:
        await greedy.cancel(run)
    assert (await greedy.events(runs[5]))[-1].type == "result"


async def test_few_open_files_mean_fewer_runs_per_workspace(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS, tools=FEW_FILES) as server:
        await logged(server, "only 512 files may be open")
        greedy, other = await workspace(http, server, "greedy"), await workspace(http, server, "other")
        runs = [await greedy.start("stuck") for _ in range(66)]
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                listed = (await greedy.get("agent-runs?limit=100")).json["runs"]
                if Counter(run["status"] for run in listed) == {"running": 64, "queued": 2}:
                    break
        assert (await other.play("hello"))[-1].type == "result"
        for run in runs[:2]:
            await greedy.cancel(run)
        async with greedy.stream(runs[-1]) as stream:
            await stream.until("assistant_delta")


async def test_waiting_messages_are_queued_runs_too(few: ServerProcess, http: aiohttp.ClientSession) -> None:
    api = await workspace(http, few, "talker")
    session = await api.session("stuck")
    runs = [await api.send(session) for _ in range(4)]
    path = f"agent-sessions/{session}/messages"
    check_error(await api.post(path, {"prompt": "one more"}), 429, "too_many_runs")
    await api.cancel(runs[3])
    runs.append(await api.send(session))
    for run in runs:
        await api.cancel(run)
    assert (await api.play("hello"))[-1].type == "result"


async def test_streams_are_capped_and_a_closed_one_makes_room(few: ServerProcess, http: aiohttp.ClientSession) -> None:
    greedy, other = await workspace(http, few, "readers"), await workspace(http, few, "quiet")
    run = await greedy.start("stuck")
    async with greedy.stream(run) as first:
        await first.next()
        async with greedy.stream(run) as second:
            await second.next()
            body = check_error(await greedy.get(f"agent-runs/{run}/stream"), 429, "too_many_streams")
            assert body["limit"] == 2
            assert (await other.play("hello"))[-1].type == "result"
    await greedy.cancel(run)
    async with asyncio.timeout(TIMEOUT_S):
        while (await greedy.call("HEAD", f"agent-runs/{run}/stream")).status == 429:
            pass  # the server notices in its own time that a client has gone


async def test_create_without_room_for_its_stream_makes_no_run(few: ServerProcess, http: aiohttp.ClientSession) -> None:
    api = await workspace(http, few, "oneshots")
    events = {"Accept": "text/event-stream"}
    # Refused creates give their places back.
    for _ in range(5):
        check_error(await api.post("agent-runs", {**RUN, "modelId": "nobody"}, headers=events), 400, "invalid_model")
    run = await api.start("stuck")
    async with api.stream(run) as first, api.stream(run) as second:
        await asyncio.gather(first.next(), second.next())
        refused = await api.post("agent-runs", RUN, headers=events)
        assert check_error(refused, 429, "too_many_streams")["limit"] == 2 and refused.headers["Retry-After"] == "5"
        assert [one["id"] for one in (await api.get("agent-runs")).json["runs"]] == [run]
    await api.cancel(run)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_connections", 0),
        ("max_connections", 1.5),
        ("max_connections_per_address", -1),
        ("max_head_bytes", 10),
        ("max_head_bytes", "64k"),
        ("head_timeout_s", 0),
        ("body_timeout_s", -1),
        ("body_pause_s", 0),
        ("max_body_bytes_held", 10),
        ("max_body_bytes_held_per_workspace", 1.5),
        ("keep_alive_s", True),
        ("stall_timeout_s", "soon"),
        ("max_runs_per_workspace", 0),
        ("max_queued_runs_per_workspace", None),
        ("max_streams_per_workspace", -5),
        ("max_tool_threads_per_workspace", 0),
        ("max_tool_threads_per_workspace", 1025),
        ("max_recoveries", 0),
        ("max_recoveries", 101),
        ("max_recoveries", 2.5),
        ("max_recoveries", True),
        ("trusted_proxies", "10.0.0.1"),
        ("trusted_proxies", ["10.0.0.1/8"]),
        ("trusted_proxies", ["somewhere"]),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(WeftlineError) as caught:
        server_options(Config(path="weft.toml", server={name: value}))
    assert caught.value.code == "bad_config" and f"server.{name}" in caught.value.message


def test_settings_are_taken_as_they_are_given() -> None:
    given: dict[str, Any] = {
        "max_connections": 7,
        "max_connections_per_address": 0,
        "head_timeout_s": 3,
        "max_streams_per_workspace": 9,
        "max_recoveries": 1,
        "trusted_proxies": ["10.0.0.0/8", "::1"],
    }
    options = server_options(Config(server=given))
    assert (options.connections.max_connections, options.connections.max_connections_per_address) == (7, 0)
    assert options.connections.head_timeout_s == 3 and options.workspaces.max_streams_per_workspace == 9
    assert options.max_recoveries == 1
    assert [str(network) for network in options.trusted_proxies] == ["10.0.0.0/8", "::1/128"]


@pytest.mark.parametrize(("files", "runs"), [(None, 2048), (20_000, 2048), (1024, 128), (100, 64)])
def test_a_workspace_may_use_an_eighth_of_the_files(files: int | None, runs: int) -> None:
    assert WorkspaceLimits().within_files(files).max_runs_per_workspace == runs
    assert WorkspaceLimits(max_runs_per_workspace=2).within_files(files).max_runs_per_workspace == 2
