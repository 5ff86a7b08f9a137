"""Policies in the spec of a run, as clients send them and see what comes of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from commands import new_secret
from weftline.testing import ServerProcess

from .kit import Api, check_error, local_tool, of_type

ECHO = {"kind": "server", "name": "echo"}


@pytest.mark.requirement("run.cap.tool_calls")
async def test_run_at_its_cap_says_so_in_event_and_snapshot(api: Api) -> None:
    run = await api.start("greedy", tools=[ECHO], policy={"maxToolCalls": 3, "timeBudgetMs": 60_000})
    frames = await api.events(run)
    assert [frame["how"] for frame in of_type(frames, "tool_result")] == ["returned"] * 3 + ["cap"]
    assert [frame["reason"] for frame in of_type(frames, "final_forced")] == ["tool_cap"]
    assert (frames[-1]["subtype"], frames[-1]["terminationReason"]) == ("success", "tool_cap")
    snapshot = (await api.get(f"agent-runs/{run}")).json
    assert (snapshot["status"], snapshot["reason"]) == ("succeeded", "tool_cap")


@pytest.mark.requirement("run.policy.overrides")
async def test_agent_editors_may_loosen_a_runs_policy(api: Api, server: ServerProcess) -> None:
    spec = {"modelId": "scripted:greedy", "tools": [ECHO], "policy": {"maxToolCalls": 3, "timeBudgetMs": 60_000}}
    agent = (await api.post("agents", {"name": "Held", "slug": "held", "spec": spec})).json["id"]
    secret = await asyncio.to_thread(new_secret, server.db, api.slug, agents=[agent])
    narrow = Api(api.http, api.url, api.slug, secret)

    async def ends(as_: Api, most: int) -> str | None:
        policy = {"maxToolCalls": most, "timeBudgetMs": 0, "toolTimeoutMs": None}
        body = {"agentId": agent, "prompt": "x", "policy": policy}
        run = (await as_.post("agent-runs", body)).json["runId"]
        await as_.events(run)
        return (await as_.get(f"agent-runs/{run}")).json["reason"]

    assert [await ends(api, 9), await ends(narrow, 9)] == [None, "tool_cap"]
    assert [await ends(api, 2), await ends(narrow, 2)] == ["tool_cap", "tool_cap"]


@pytest.mark.parametrize(
    "policy",
    [
        {"maxToolCalls": -1},
        {"timeBudgetMs": -5},
        {"maxCalls": 3},
        {"perToolTimeoutMs": {"echo": -1}},
        {"tagClauses": [{"allowed": ["x"]}]},
        {"allowedTags": "safe"},
        [],
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused(api: Api, policy: Any) -> None:
    reply = await api.post("agent-runs", {"modelId": "scripted:greedy", "prompt": "x", "policy": policy})
    assert reply.status == 400
    assert "policy" in str(reply.json)


@pytest.mark.requirement("run.filter.tags")
async def test_tools_of_the_client_are_known_by_their_tags(api: Api) -> None:
    tools = [local_tool() | {"tags": ["slow"]}, ECHO]
    frames = await api.play("greedy", tools=tools, policy={"deniedTags": ["slow"], "restrictToTool": "echo"})
    assert {frame["how"] for frame in of_type(frames, "tool_result")} == {"returned"}
    run = await api.start(
        "looper", tools=tools, loopDetection=False, policy={"deniedTags": ["slow"], "maxToolCalls": 1}
    )
    async with api.stream(run) as stream:
        refused = await stream.until("tool_result")
        await api.cancel(run)
        frames = await stream.rest()
    assert refused["how"] == "excluded"
    assert not of_type(frames, "local_tool_call")


async def test_a_run_that_takes_no_interruptions_is_not_paused(api: Api) -> None:
    run = await api.start("looper", tools=[local_tool()], policy={"interruptsAllowed": False})
    async with api.stream(run) as stream:
        await stream.until("local_tool_call")
        reply = await api.post(f"agent-runs/{run}/pause", {})
        check_error(reply, 403, "interrupts_not_allowed")
        await api.cancel(run)
        await stream.rest()
