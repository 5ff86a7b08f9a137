"""Budgets over HTTP: limits are set, read, kept to and refused."""

from __future__ import annotations

from typing import Any

import pytest

from .kit import Api, check_error, of_type

ECHO = {"kind": "server", "name": "echo"}
CALLS = {"unit": "calls", "limit": 3}


@pytest.mark.requirement("run.tree.report")
async def test_budget_amounts_are_read_for_every_level_and_unit(api: Api) -> None:
    agent = (await api.post("agents", {"name": "Greedy", "spec": {"modelId": "scripted:greedy"}})).json["id"]
    session = (await api.post("agent-sessions", {"agentId": agent, "tools": [ECHO]})).json["sessionId"]
    limits = [{"unit": unit, "limit": 10**6, "period": "month"} for unit in ("tokens", "seconds", "calls")]
    for about in ({"level": "workspace"}, {"level": "agent", "id": "greedy"}):
        reply = await api.call("PUT", "budgets", {**about, "limits": limits})
        assert reply.status == 200 and len(reply.json["limits"]) == 3, reply.body
    total = [{"unit": "calls", "limit": 100, "onExceeded": "stop"}]
    assert (await api.call("PUT", "budgets", {"level": "thread", "id": session, "limits": total})).status == 200
    run = await api.send(session, budget={"calls": 3, "tokens": 10**6})
    frames = await api.events(run)
    assert [frame["how"] for frame in of_type(frames, "tool_result")] == ["returned"] * 3 + ["cap"]
    [forced] = of_type(frames, "final_forced")
    assert (forced["reason"], forced["level"], forced["unit"]) == ("budget", "run", "calls")
    assert (frames[-1]["subtype"], frames[-1]["terminationReason"]) == ("success", "budget")
    shown = (await api.get(f"agent-runs/{run}/budgets")).json["budgets"]
    assert [(one["level"], one["id"]) for one in shown] == [
        ("run", run),
        ("thread", session),
        ("agent", agent),
        ("workspace", None),
    ]
    for budget in shown:
        [calls] = [limit for limit in budget["limits"] if limit["unit"] == "calls"]
        assert (calls["spent"], calls["reserved"], calls["remaining"]) == (3, 0, calls["limit"] - 3)
        for limit in budget["limits"]:
            assert limit["spent"] >= 0 and limit["reserved"] == 0
            assert limit["remaining"] == pytest.approx(limit["limit"] - limit["spent"])
    listed = (await api.get("budgets")).json["budgets"]
    assert {(one["level"], one["id"]) for one in listed} == {("agent", agent), ("thread", session), ("workspace", None)}
    assert all(limit["setBy"] and limit["setAt"] for one in listed for limit in one["limits"])


async def test_deleted_file_is_not_listed(api: Api) -> None:
    agent = (await api.post("agents", {"name": "Gone", "spec": {"modelId": "scripted:hello"}})).json["id"]
    session = await api.session("hello")
    run = await api.start("stuck", budget={"calls": 3})
    for about in ({"level": "agent", "id": agent}, {"level": "thread", "id": session}, {"level": "run", "id": run}):
        assert (await api.call("PUT", "budgets", {**about, "limits": [CALLS]})).status == 200
    listed = (await api.get("budgets")).json["budgets"]
    assert {(one["level"], one["id"]) for one in listed} == {("agent", agent), ("thread", session), ("run", run)}
    await api.call("DELETE", f"agents/{agent}")
    await api.call("DELETE", f"agent-sessions/{session}")
    await api.cancel(run)
    assert (await api.get("budgets")).json["budgets"] == []


@pytest.mark.requirement("run.tree.stop")
async def test_run_stopped_by_a_limit_says_where_and_how_much(api: Api) -> None:
    limits = [{**CALLS, "period": "day", "onExceeded": "stop"}]
    assert (await api.call("PUT", "budgets", {"level": "workspace", "limits": limits})).status == 200
    frames = await api.play("greedy", tools=[ECHO])
    assert (frames[-1].type, frames[-1]["code"]) == ("error", "budget_exceeded")
    assert frames[-1]["error"] == (
        "The budget of the workspace is used up: 3 calls per day, 3 calls spent. The next call asks for up to 1 call."
    )
    limits = [{"unit": "tokens", "limit": 100, "onExceeded": "stop"}]
    assert (await api.call("PUT", "budgets", {"level": "workspace", "limits": limits})).status == 200
    assert (await api.play("greedy", tools=[ECHO]))[-1]["error"].startswith(
        "The next call does not fit in the budget of the workspace: 100 tokens, "
    ), "there is something left of it"
    cleared = await api.call("PUT", "budgets", {"level": "workspace", "limits": []})
    assert cleared.json["limits"] == [] and (await api.get("budgets")).json["budgets"] == []
    assert (await api.play("greedy", tools=[ECHO], policy={"maxToolCalls": 4}))[-1].type == "result"


@pytest.mark.requirement("run.tree.levels")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"level": "workspace", "limits": [{"unit": "usd", "limit": -1}]}, "limits[0].limit: must be 0 or more"),
        ({"level": "workspace", "limits": [{"unit": "euro", "limit": 1}]}, "limits[0].unit"),
        ({"level": "workspace", "limits": [{"unit": "calls", "limit": 1.5}]}, "must be a whole number"),
        ({"level": "workspace", "limits": [{"unit": "usd", "limit": 10**9}]}, "must be at most 1,000,000"),
        ({"level": "workspace", "limits": [{"unit": "usd", "limit": 1e308}]}, "must be at most 1,000,000"),
        ({"level": "workspace", "limits": [{"unit": "usd", "limit": 1e-12}]}, "must be 0, or at least 0.000000001"),
        ({"level": "workspace", "limits": [{"unit": "calls", "limit": 10**400}]}, "limits[0].limit"),
        ({"level": "workspace", "limits": [{"unit": "calls", "limit": True}]}, "limits[0].limit"),
        ({"level": "workspace", "limits": [CALLS, CALLS]}, "two limits in calls"),
        ({"level": "workspace", "limits": [{**CALLS, "period": "week"}]}, "limits[0].period"),
        ({"level": "workspace", "limits": [{**CALLS, "onExceeded": "explode"}]}, "limits[0].onExceeded"),
        ({"level": "workspace", "id": "x", "limits": []}, "id: give the agent, the session or the run"),
        ({"level": "agent", "limits": []}, "id: give the agent, the session or the run"),
        ({"level": "child", "id": "x", "limits": []}, "level"),
        ({"level": "workspace"}, "limits"),
    ],
)
async def test_a_limit_that_makes_no_sense_is_refused(api: Api, body: dict[str, Any], words: str) -> None:
    error = check_error(await api.call("PUT", "budgets", body), 400, "invalid_request")
    assert words in error["message"]


async def test_missing_subject_has_no_budget(api: Api) -> None:
    missing = (("agent", "nobody"), ("thread", "ses_1abcdefabcdef"), ("run", "run_1abcdefabcdef"))
    for about in [{"level": level, "id": id} for level, id in missing]:
        check_error(await api.call("PUT", "budgets", {**about, "limits": [CALLS]}), 404, "not_found")
    session = (await api.post("agent-sessions", {"modelId": "scripted:hello"})).json["sessionId"]
    about = {"level": "thread", "id": session, "limits": [{**CALLS, "period": "day"}]}
    error = check_error(await api.call("PUT", "budgets", about), 400, "invalid_request")
    assert "a thread cannot have a limit per day or month" in error["message"]


@pytest.mark.requirement("run.tree.levels")
@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"usd": -0.1}, "budget.usd: must be 0 or more"),
        ({"usd": 1e308}, "budget.usd: must be at most 1,000,000"),
        ({"usd": 1e-12}, "budget.usd: must be 0, or at least 0.000000001"),
        ({"seconds": 1e300}, "budget.seconds: must be at most 1,000,000,000"),
        ({"calls": 10**30}, "budget.calls: must be at most 1,000,000,000,000,000"),
        ({"tokens": -1}, "budget.tokens: must be 0 or more"),
        ({"calls": True}, "budget.calls"),
        ({"calls": 1.5}, "budget.calls"),
        ({"dollars": 3}, "budget.dollars"),
        ({"onExceeded": "explode"}, "budget.onExceeded"),
        ([], "budget"),
        (3, "budget"),
    ],
)
async def test_the_budget_of_a_run_is_checked(api: Api, budget: Any, words: str) -> None:
    reply = await api.post("agent-runs", {"modelId": "scripted:hello", "prompt": "x", "budget": budget})
    assert reply.status == 400 and words in reply.json["message"], reply.body


@pytest.mark.requirement("run.tree.ask")
async def test_a_run_asks_whoever_may_raise_its_limit(api: Api) -> None:
    run = await api.start("greedy", tools=[ECHO], budget={"calls": 3, "onExceeded": "ask"})
    async with api.stream(run) as stream:
        opened = await stream.until("await_opened")
        assert (opened["kind"], opened["args"]) == (
            "budget",
            {"level": "run", "unit": "calls", "period": "total", "limit": 3, "spent": 3, "reserved": 0, "asked": 1},
        )
        assert "Raise the limit and continue?" in opened["question"]
        [listed] = (await api.get("awaits?kind=budget")).json["awaits"]
        assert (listed["id"], listed["runId"]) == (opened["awaitId"], run)
        limits = [{"unit": "calls", "limit": 4, "onExceeded": "ask"}]
        assert (await api.call("PUT", "budgets", {"level": "run", "id": run, "limits": limits})).status == 200
        closed = await stream.until("await_closed")
        assert closed["outcome"] == "approved" and closed["by"]
        frames = await stream.rest()
    assert [frame["how"] for frame in of_type(frames, "tool_result")] == ["returned"] * 4
    assert frames[-1]["subtype"] == "success" and "terminationReason" not in frames[-1].body
    other = await api.start("greedy", tools=[ECHO], budget={"calls": 3, "onExceeded": "ask"})
    async with api.stream(other) as stream:
        opened = await stream.until("await_opened")
        answer = await api.post(f"agent-runs/{other}/awaits/{opened['awaitId']}", {"outcome": "denied"})
        assert answer.status == 200
        frames = await stream.rest()
    assert (frames[-1]["subtype"], frames[-1]["terminationReason"]) == ("success", "budget")
    check_error(await api.call("PUT", "budgets", {"level": "run", "id": run, "limits": limits}), 409, "conflict")


async def test_run_asking_before_its_first_turn_is_paused(api: Api) -> None:
    run = await api.start("hello", budget={"tokens": 1, "onExceeded": "ask"})
    async with api.stream(run) as stream:
        await stream.until("await_opened")
        shown = await api.snapshot(run)
        assert (shown["status"], shown["paused"]) == ("running", True)
        await api.cancel(run)
        await stream.rest()


@pytest.mark.requirement("run.tree.unpriced")
async def test_a_model_without_a_price_is_refused_at_create(api: Api) -> None:
    spec = {"modelId": "scripted:hello", "prompt": "x", "budget": {"usd": 1}}
    error = check_error(await api.post("agent-runs", spec), 400, "unpriced_model")
    assert error["model"] == "scripted:hello"


async def test_an_agents_budget_can_only_be_tightened(api: Api) -> None:
    spec = {"modelId": "scripted:greedy", "budget": {"calls": 3, "onExceeded": "stop"}}
    agent = (await api.post("agents", {"name": "Tight", "spec": spec})).json["id"]
    for asked in ({"calls": 100}, {"tokens": 10**6}):
        spec = {"agentId": agent, "prompt": "x", "tools": [ECHO], "budget": asked}
        run = (await api.post("agent-runs", spec)).json["runId"]
        await api.events(run)
        [budget] = (await api.get(f"agent-runs/{run}/budgets")).json["budgets"]
        [calls] = [limit for limit in budget["limits"] if limit["unit"] == "calls"]
        assert (calls["limit"], calls["spent"]) == (3, 3)
