"""Several clients on one run: one has a call to itself, and when it is gone the run's rule says what happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .kit import Api, Json, check_error, local_tool, of_type

RECALL: Json = {"kind": "server", "name": "recall"}


async def offered(api: Api, script: str = "lookup", **spec: object) -> tuple[str, str]:
    """A run that waits for its client, and the call that it waits for."""
    run = await api.start(script, **{"tools": [local_tool()], **spec})
    async with api.stream(run) as stream:
        return run, (await stream.until("local_tool_call"))["toolUseId"]


async def claim(api: Api, run: str, call: str, **fields: object) -> Json:
    reply = await api.post(f"agent-runs/{run}/tool-leases", {"toolUseId": call, **fields})
    assert reply.status == 200, reply.json
    return reply.json


@pytest.mark.requirement("run.lease.claim")
async def test_one_of_several_claims_wins(api: Api) -> None:
    run, call = await offered(api)
    async with api.stream(run) as stream:
        wanted = [api.post(f"agent-runs/{run}/tool-leases", {"toolUseId": call}) for _ in range(4)]
        replies = await asyncio.gather(*wanted)
        (won,) = [reply.json for reply in replies if reply.status == 200]
        held = [check_error(reply, 409, "lease_held") for reply in replies if reply.status != 200]
        assert (won["leaseMs"], won["attempt"], won["toolUseId"]) == (30_000, 1, call)
        assert [one["leaseEndsAt"] for one in held] == [won["expiresAt"]] * 3
        seen = await stream.until("local_tool_claimed")
        assert (seen["toolUseId"], seen["name"], seen["leaseMs"]) == (call, "lookup", 30_000)
        assert seen["by"].startswith("key:") and "token" not in seen.payload
        assert (await api.answer(run, call, result="x", leaseToken=won["token"])).status == 200
        frames = await stream.rest()
    assert frames[-1]["text"] == "found x"


async def test_a_claim_whose_answer_got_lost_gets_its_token_again(api: Api) -> None:
    run, call = await offered(api)
    first = await claim(api, run, call, claimId="mine", leaseMs=5000)
    again = await claim(api, run, call, claimId="mine", leaseMs=5000)
    assert first["token"] == again["token"]
    other = await api.post(f"agent-runs/{run}/tool-leases", {"toolUseId": call, "claimId": "other"})
    check_error(other, 409, "lease_held")
    await api.cancel(run)


@pytest.mark.requirement("run.lease.plain_clients")
async def test_a_plain_client_answers_what_nobody_claimed_and_nothing_else(api: Api) -> None:
    run, call = await offered(api)
    assert (await api.answer(run, call, result="plain")).json == {"ok": True}
    assert (await api.events(run))[-1]["text"] == "found plain"
    run, call = await offered(api)
    lease = await claim(api, run, call)
    refused = check_error(await api.answer(run, call, result="mine"), 409, "lease_held")
    assert refused["leaseEndsAt"] == lease["expiresAt"]
    assert (await api.answer(run, call, result="held", leaseToken=lease["token"])).status == 200
    assert (await api.events(run))[-1]["text"] == "found held"


@pytest.mark.requirement("run.lease.heartbeat")
async def test_heartbeat_keeps_the_call_and_release_offers_it_again(api: Api) -> None:
    run, call = await offered(api)
    leases = f"agent-runs/{run}/tool-leases"
    async with api.stream(run) as stream:
        await stream.until("local_tool_call")
        first = await claim(api, run, call)
        body = {"toolUseId": call, "token": first["token"]}
        kept = (await api.post(f"{leases}/heartbeat", body)).json
        assert kept["expiresAt"] > first["expiresAt"] and kept["token"] == first["token"]
        assert (await api.post(f"{leases}/release", body)).json == {"ok": True, "toolUseId": call}
        again = await stream.until("local_tool_call")
        assert (again["toolUseId"], again["attempt"], again["args"]) == (call, 2, {"q": "one"})
        second = await claim(api, run, call)
        assert second["attempt"] == 2
        for path in ("heartbeat", "release"):
            check_error(await api.post(f"{leases}/{path}", body), 409, "lease_lost")
        check_error(await api.answer(run, call, result="old", leaseToken=first["token"]), 409, "lease_lost")
        await api.answer(run, call, result="new", leaseToken=second["token"])
        frames = await stream.rest()
    assert frames[-1]["text"] == "found new"
    assert len(of_type(frames, "local_tool_result_in")) == 1

    budgets = {"localToolTimeoutMs": 300, "onLocalToolTimeout": "report"}
    run, call = await offered(api, budgets=budgets)
    lease = await claim(api, run, call)
    await api.post(f"agent-runs/{run}/tool-leases/heartbeat", {"toolUseId": call, "token": lease["token"]})
    (closed,) = of_type(await api.events(run), "local_tool_result_in")
    assert closed["how"] == "timeout", "the lease was longer than the call's own time"


@pytest.mark.requirement("run.lease.lost")
async def test_lease_that_runs_out_is_handled_as_run_says(api: Api) -> None:
    async def lost(**spec: Any) -> tuple[str, str, str]:
        run, call = await offered(api, **spec)
        return run, call, (await claim(api, run, call, leaseMs=1000))["token"]

    again, told, fallen, once = await asyncio.gather(
        lost(),
        lost(budgets={"onLeaseLost": "error"}),
        lost(tools=[local_tool(), RECALL], budgets={"onLeaseLost": "fallback", "leaseFallbacks": {"lookup": "recall"}}),
        lost(tools=[local_tool(effect="once")]),
    )

    run, call, token = again
    async with api.stream(run) as stream:
        await stream.until("local_tool_claimed")
        assert (await stream.until("local_tool_call"))["attempt"] == 2
    taken = await claim(api, run, call)
    check_error(await api.answer(run, call, result="late", leaseToken=token), 409, "lease_lost")
    await api.answer(run, call, result="x", leaseToken=taken["token"])
    assert (await api.events(run))[-1]["text"] == "found x"

    frames = await api.events(told[0])
    (closed,) = of_type(frames, "local_tool_result_in")
    assert closed["how"] == "timeout" and "is gone" in closed["error"] and frames[-1]["ok"] is True

    frames = await api.events(fallen[0])
    (fell,) = of_type(frames, "local_tool_fallback")
    assert (fell["toolUseId"], fell["fallback"]) == (fallen[1], "recall")
    (result,) = of_type(frames, "tool_result")
    assert (result["how"], result["ok"], result["args"]) == ("returned", True, {"q": "one"})
    (logged,) = (await api.get(f"agent-runs/{fallen[0]}/calls")).json["calls"]
    assert (logged["name"], logged["attempts"], logged["how"]) == ("lookup", 1, "returned")

    frames = await api.events(once[0])
    (doubt,) = of_type(frames, "tool_result")
    assert doubt["inDoubt"] is True and not [
        one for one in of_type(frames, "local_tool_call") if "attempt" in one.payload
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "toolUseId"),
        ({"toolUseId": ""}, "toolUseId"),
        ({"toolUseId": "x", "leaseMs": 999}, "leaseMs"),
        ({"toolUseId": "x", "leaseMs": 600_001}, "leaseMs"),
        ({"toolUseId": "x", "leaseMs": "1000"}, "leaseMs"),
        ({"toolUseId": "x", "claimId": ""}, "claimId"),
        ({"toolUseId": "x", "claimId": "x" * 256}, "claimId"),
    ],
)
async def test_a_claim_that_says_nothing_sensible_is_refused(api: Api, body: Json, field: str) -> None:
    run, call = await offered(api)
    error = check_error(await api.post(f"agent-runs/{run}/tool-leases", body), 400, "invalid_request")
    assert [issue["path"] for issue in error["issues"]] == [field]
    check_error(await api.post(f"agent-runs/{run}/tool-leases", {"toolUseId": "x"}), 404, "unknown_tool_use")
    check_error(await api.post("agent-runs/run_none/tool-leases", {"toolUseId": call}), 404, "not_found")
    await api.cancel(run)
    check_error(await api.post(f"agent-runs/{run}/tool-leases", {"toolUseId": call}), 409, "run_terminal")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"budgets": {"onLeaseLost": "shrug"}}, "onLeaseLost"),
        ({"budgets": {"onLeaseLost": "fallback"}}, "names no tool"),
        ({"budgets": {"onLeaseLost": "error", "leaseFallbacks": {"lookup": "recall"}}}, "needs onLeaseLost"),
        ({"budgets": {"leaseFallbacks": {"nothing": "recall"}}}, "no client-side tool"),
        ({"budgets": {"leaseFallbacks": {"lookup": "lookup"}}}, "also executed by clients"),
        ({"budgets": {"leaseFallbacks": {"lookup": "recal"}}}, "is not a tool of the run. Did you mean 'recall'?"),
        (
            {"tools": [local_tool(effect="once")], "budgets": {"leaseFallbacks": {"lookup": "recall"}}},
            "declared `once`",
        ),
        ({"tools": [local_tool(effect="reconcile")]}, "effect"),
    ],
)
async def test_a_rule_that_cannot_be_meant_is_refused(api: Api, spec: Json, words: str) -> None:
    body = {"modelId": "scripted:lookup", "prompt": "go", "tools": [local_tool(), RECALL], **spec}
    assert words in check_error(await api.post("agent-runs", body), 400, "invalid_request")["message"]
