"""The lists of runs and sessions."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

import pytest

from ..kit import Api, Json, check_error, local_tool


async def listed(api: Api, what: str, *filters: tuple[str, str]) -> list[Json]:
    """All pages of a list."""
    found: list[Json] = []
    cursor: str | None = None
    while True:
        query = urlencode([*filters, *([("cursor", cursor)] if cursor else [])])
        reply = await api.get(f"agent-{what}?{query}")
        assert reply.status == 200, reply.body
        more = {"limit", "offset", *(() if cursor else ("total",))} if what == "sessions" else set[str]()
        assert set(reply.json) == {what, "nextCursor", *more}
        found += reply.json[what]
        cursor = reply.json["nextCursor"]
        if cursor is None:
            return found


async def ids(api: Api, what: str, *filters: tuple[str, str]) -> list[str]:
    return [item["id"] for item in await listed(api, what, *filters)]


async def finished(api: Api, script: str = "hello", **spec: Any) -> str:
    run = await api.start(script, **spec)
    await api.events(run)
    return run


@pytest.mark.requirement("wire.list.filters")
async def test_runs_are_found_by_status_session_agent_and_metadata(api: Api) -> None:
    agent = (await api.post("agents", {"name": "a", "spec": {"modelId": "scripted:hello"}})).json["id"]
    session = await api.session("hello", metadata={"env": "prod"})
    plain = await finished(api, metadata={"env": "test", "team": "a:b"})
    failed = await finished(api, "fails_auth", metadata={"env": "test"})
    waiting = await api.start("lookup", tools=[local_tool()])
    async with api.stream(waiting) as stream:
        await stream.until("local_tool_call")
    of_agent = (await api.post("agent-runs", {"agentId": agent, "prompt": "x"})).json["runId"]
    await api.events(of_agent)
    of_session = await api.send(session, metadata={"team": "b"})
    await api.events(of_session)

    assert await ids(api, "runs") == [of_session, of_agent, waiting, failed, plain]
    assert await ids(api, "runs", ("status", "failed")) == [failed]
    assert await ids(api, "runs", ("status", "running")) == [waiting]
    assert await ids(api, "runs", ("status", "succeeded")) == [of_session, of_agent, plain]
    assert await ids(api, "runs", ("sessionId", session)) == [of_session]
    assert await ids(api, "runs", ("agentId", agent)) == [of_agent]
    assert await ids(api, "runs", ("metadata", "env:test")) == [failed, plain]
    assert await ids(api, "runs", ("metadata", "env:test"), ("metadata", "team:a:b")) == [plain]
    assert await ids(api, "runs", ("metadata", "env:prod"), ("metadata", "team:b")) == [of_session]
    assert await ids(api, "runs", ("metadata", "env:test"), ("status", "succeeded")) == [plain]
    assert await ids(api, "runs", ("metadata", "env:none")) == []
    assert await ids(api, "runs", ("agentId", "agent_none")) == []
    await api.cancel(waiting)


@pytest.mark.requirement("wire.list.filters")
async def test_every_listed_run_is_its_snapshot_without_the_spec(api: Api) -> None:
    run = await finished(api, "counted", name="n", metadata={"k": "v"})
    (item,) = await listed(api, "runs")
    snapshot = await api.snapshot(run)
    for only_alone in ("spec", "agentSpec", "cancelReceipt", "awaits", "forkedFrom", "labels"):
        del snapshot[only_alone]
    assert item == {**snapshot, "agentId": None}
    assert item["metadata"] == {"k": "v"} and item["tokens"]["inputTokens"] == 250


@pytest.mark.requirement("wire.list.filters")
async def test_sessions_are_found_by_status_agent_and_metadata(api: Api) -> None:
    agent = (await api.post("agents", {"name": "a", "spec": {"modelId": "scripted:hello"}})).json["id"]
    first = await api.session("hello", metadata={"env": "prod", "team": "a"})
    second = await api.session("hello", metadata={"env": "prod"})
    third = (await api.post("agent-sessions", {"agentId": agent})).json["sessionId"]
    await api.call("DELETE", f"agent-sessions/{second}")
    assert await ids(api, "sessions") == [third, second, first]
    assert await ids(api, "sessions", ("status", "active")) == [third, first]
    assert await ids(api, "sessions", ("status", "ended")) == [second]
    assert await ids(api, "sessions", ("agentId", agent)) == [third]
    assert await ids(api, "sessions", ("sessionId", first)) == [first]
    assert await ids(api, "sessions", ("metadata", "env:prod")) == [second, first]
    assert await ids(api, "sessions", ("metadata", "env:prod"), ("metadata", "team:a")) == [first]
    assert [item["metadata"] for item in await listed(api, "sessions")] == [
        {},
        {"env": "prod"},
        {"env": "prod", "team": "a"},
    ]


@pytest.mark.requirement("wire.list.filters")
@pytest.mark.parametrize(
    "query",
    [
        "status=done",
        "status=",
        "sessionId=nonsense",
        "agentId=a%20b",
        "metadata=nocolon",
        "metadata=bad%20key:v",
        "metadata=:v",
        "metadata=k:" + "v" * 513,
        "metadata=k:%00",
        "limit=0",
        "limit=201",
        "limit=ten",
        "limit=-1",
        "cursor=nonsense",
        "cursor=",
        "cursor=MTow%3D",
    ],
)
async def test_a_filter_that_cannot_be_used_is_a_bad_request(api: Api, query: str) -> None:
    check_error(await api.get(f"agent-runs?{query}"), 400, "invalid_request")
    check_error(await api.get(f"agent-sessions?{query}"), 400, "invalid_request")


@pytest.mark.requirement("wire.list.paging")
async def test_run_is_listed_once_while_others_are_created(api: Api) -> None:
    runs = [await api.start("hello", metadata={"n": str(n % 2)}) for n in range(23)]
    pages: list[list[str]] = []
    cursor = ""
    while True:
        reply = (await api.get(f"agent-runs?limit=5{cursor}")).json
        pages.append([item["id"] for item in reply["runs"]])
        if reply["nextCursor"] is None:
            break
        cursor = f"&cursor={reply['nextCursor']}"
        await asyncio.gather(*(api.start("hello") for _ in range(3)))
    assert [run for page in pages for run in page] == runs[::-1]
    assert [len(page) for page in pages] == [5, 5, 5, 5, 3]
    odd = await ids(api, "runs", ("metadata", "n:1"), ("limit", "4"))
    assert odd == runs[1::2][::-1]


@pytest.mark.requirement("wire.list.paging")
async def test_sessions_are_paged_in_the_same_way(api: Api) -> None:
    sessions = [await api.session("hello") for _ in range(7)]
    assert await ids(api, "sessions", ("limit", "3")) == sessions[::-1]


async def test_a_workspace_lists_its_own_runs_and_sessions_alone(api: Api, other_api: Api) -> None:
    await api.start("hello", metadata={"k": "v"})
    session = await api.session("hello", metadata={"k": "v"})
    for what in ("runs", "sessions"):
        assert await ids(other_api, what, ("metadata", "k:v")) == await ids(other_api, what) == []
    assert await ids(other_api, "runs", ("sessionId", session)) == []
