"""Runs that clients give ids: used as they are, once in a workspace, and known by them wherever runs are named."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any, cast
from uuid import uuid4

import pytest

from commands import weftline_beside
from weftline.server.routes.every import ROUTES
from weftline.testing import ServerProcess

from .kit import Api, Json, Reply, check_error, local_tool, of_type

HELLO = {"modelId": "scripted:hello", "prompt": "hi"}
RUNS = "/api/v1/workspaces/{slug}/agent-runs/{runId}"
OF_A_RUN = [(route.method, route.path) for route in ROUTES if "{runId}" in route.path]


@pytest.mark.requirement("run.start.run_id")
async def test_given_id_is_used_and_otherwise_each_gets_one(api: Api) -> None:
    for name in ("nightly-2026_11", "0", "-", "x" * 128, "run_1" + 12 * "a"):
        reply = await api.post("agent-runs", {**HELLO, "runId": name})
        assert (reply.status, reply.headers["X-Run-Id"]) == (202, name)
        assert reply.json == {"runId": name, "streamUrl": f"{api.base}/agent-runs/{name}/stream"}
        frames = await api.events(name)
        assert frames[-1].type == "result"
        snapshot = await api.snapshot(name)
        assert (snapshot["id"], snapshot["runId"], snapshot["status"]) == (name, name, "succeeded")
    others = [await api.start("hello", runId=None) for _ in range(3)]
    assert len(set(others)) == 3


@pytest.mark.requirement("run.start.run_id")
@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "a/b", "é", "a\n", "=a", "x" * 129, 7])
async def test_any_other_id_is_refused_in_words(api: Api, name: object) -> None:
    for path in ("agent-runs", f"agent-sessions/{await api.session('hello')}/messages"):
        body = check_error(await api.post(path, {"prompt": "hi", "runId": name}), 400, "invalid_request")
        assert body["message"].startswith("runId: ")
        if isinstance(name, str):
            assert body["message"] == "runId: must have 1 to 128 letters, digits, '_' and '-'"
    assert (await api.get("agent-runs")).json["runs"] == []


@pytest.mark.requirement("run.start.run_id")
async def test_id_that_exists_is_refused_and_its_run_is_untouched(api: Api, other_api: Api) -> None:
    run = await api.start("stuck", runId="mine")
    async with api.stream(run) as stream:
        await stream.until("assistant_delta")
    before = await api.snapshot(run)
    session = await api.session("hello")
    for path in ("agent-runs", f"agent-sessions/{session}/messages"):
        refused = await api.post(path, {"prompt": "hi", "runId": run})
        assert "'mine'" in check_error(refused, 409, "run_exists")["message"]
    generated = await api.start("hello")
    check_error(await api.post("agent-runs", {**HELLO, "runId": generated}), 409, "run_exists")
    assert await api.snapshot(run) == before
    assert [one["id"] for one in (await api.get("agent-runs")).json["runs"]] == [generated, run]
    # Another workspace may use the same id, and learns nothing of this one's.
    check_error(await other_api.get("agent-runs/mine"), 404, "not_found")
    assert (await other_api.post("agent-runs", {**HELLO, "runId": "mine"})).status == 202
    assert (await other_api.events("mine"))[-1]["text"] == "Hello wörld"
    assert await api.snapshot(run) == before
    await api.cancel(run)
    check_error(await api.post("agent-runs", {**HELLO, "runId": run}), 409, "run_exists")


@pytest.mark.requirement("run.start.run_id")
async def test_of_creates_that_race_for_an_id_one_wins(api: Api) -> None:
    bodies = [{**HELLO, "runId": "race"}] * 6 + [HELLO] * 3
    replies = await asyncio.gather(*[api.post("agent-runs", body) for body in bodies])
    assert Counter(reply.status for reply in replies) == {202: 4, 409: 5}
    for reply in replies:
        if reply.status == 409:
            check_error(reply, 409, "run_exists")
    runs = (await api.get("agent-runs")).json["runs"]
    assert Counter(run["id"] == "race" for run in runs) == {True: 1, False: 3}
    assert len(of_type(await api.events("race"), "result")) == 1


async def test_create_repeated_with_its_key_returns_its_run(api: Api) -> None:
    body, headers = {**HELLO, "runId": "once"}, {"Idempotency-Key": "k"}
    replies = await asyncio.gather(*[api.post("agent-runs", body, headers=headers) for _ in range(3)])
    assert {(reply.status, reply.json["runId"]) for reply in replies} == {(202, "once")}
    check_error(await api.post("agent-runs", body, headers={"Idempotency-Key": "another"}), 409, "run_exists")
    check_error(await api.post("agent-runs", {**body, "prompt": "other"}, headers=headers), 409, "idempotency_conflict")


async def test_batch_starters_take_no_id(api: Api) -> None:
    for path, body in {
        "agent-sessions": {"runId": "a"},
        "agents": {"slug": "helper", "name": "Helper", "spec": {"runId": "a"}},
        "schedules": {"name": "n", "cron": "0 0 * * *", "spec": {**HELLO, "runId": "a"}},
    }.items():
        assert "runId" in check_error(await api.post(path, body), 400, "invalid_request")["message"]


def comparable(reply: Reply, run: str) -> Any:
    """A reply without what is different in any two runs."""
    if reply.headers["Content-Type"] != "application/json":
        return reply.status, [line for line in reply.body.decode().split("\n") if line.startswith("event: ")]

    def plain(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            fields = cast("Json", value)
            return {key: plain(one, key) for key, one in fields.items() if key not in ("spec", "agentSpec")}
        if isinstance(value, list):
            return [plain(one) for one in cast("list[Any]", value)]
        if isinstance(value, str) and run in value:
            return value.replace(run, "<run>")
        return (
            type(cast("object", value))
            if name.endswith(("At", "Ms", "Key", "Id", "key", "token", "streamUrl"))
            else value
        )

    return reply.status, plain(reply.json)


async def test_every_route_of_run_takes_given_id_like_generated_one(api: Api) -> None:
    """While it waits for its client, and when it has ended."""
    runs = [await api.start("lookup", tools=[local_tool()], **given) for given in ({"runId": "given-7"}, {})]
    assert runs[0] == "given-7"
    offers: list[str] = []
    for run in runs:
        async with api.stream(run) as stream:
            offers.append((await stream.until("local_tool_call"))["toolUseId"])
    body: Json = {"toolUseId": offers[0], "text": "more", "mode": "follow_up", "turn": 0, "outcome": "approved"}
    live = [route for route in OF_A_RUN if not route[1].endswith(("/stream", "/tool-results", "/cancel"))]
    for method, path in (*live, ("POST", f"{RUNS}/cancel"), *OF_A_RUN):
        replies: list[Any] = []
        for run in runs:
            whole = path.replace("{slug}", api.slug).replace("{runId}", run).replace("{awaitId}", "a")
            sent = body | {"token": "t"} if "heartbeat" in path or "release" in path else body | {"result": "found"}
            reply = await api.call(method, whole, sent if method == "POST" else None)
            assert reply.status != 404 or reply.json.get("reason") != "unknown_run", reply.body
            replies.append(comparable(reply, run))
        assert replies[0] == replies[1], path


async def test_client_answers_calls_of_run_by_its_given_id(api: Api) -> None:
    await api.start("lookup", tools=[local_tool()], runId="asks")
    async with api.stream("asks") as stream:
        call = await stream.until("local_tool_call")
        lease = (await api.post("agent-runs/asks/tool-leases", {"toolUseId": call["toolUseId"]})).json
        reply = await api.answer("asks", call["toolUseId"], result="it", leaseToken=lease["token"])
        assert (reply.status, (await stream.rest())[-1]["text"]) == (200, "found it")


async def test_lists_find_a_run_by_its_given_id(api: Api, other_api: Api) -> None:
    await api.start("pay", runId="invoice-7", tools=[{"kind": "server", "name": "pay"}])
    await api.start("hello", runId="invoice-8")
    await api.start("hello")
    await other_api.start("hello", runId="invoice-9")
    for prefix, found in {"invoice-7": 1, "invoice-": 2, "i": 2, "run_": 1, "r": 1, "nightly": 0, "INVOICE": 0}.items():
        assert len((await api.get(f"agent-runs?idPrefix={prefix}")).json["runs"]) == found, prefix
    check_error(await api.get("agent-runs?idPrefix=a.b"), 400, "invalid_request")
    async with api.stream("invoice-7") as stream:
        asked = await stream.until("await_opened")
        (open_,) = (await api.get("awaits?runId=invoice-7")).json["awaits"]
        assert (open_["runId"], open_["rootRunId"], open_["id"]) == ("invoice-7", "invoice-7", asked["awaitId"])
        reply = await api.post(f"agent-runs/invoice-7/awaits/{asked['awaitId']}", {"outcome": "approved"})
        assert reply.status == 200
        assert (await stream.rest())[-1].type == "result"
    assert [one["runId"] for one in (await api.get("agent-runs/invoice-7/grants")).json["grants"]] == ["invoice-7"]


async def test_every_command_takes_a_given_id(api: Api, other_api: Api, server: ServerProcess) -> None:
    """At the server and on its store, whole or by its beginning. One that two workspaces have needs the workspace."""
    run = f"named-{uuid4().hex[:8]}"
    await api.events(await api.start("echo", runId=run, tools=[{"kind": "server", "name": "echo"}]))
    here = ("--db", str(server.db))
    there = ("--url", server.url, "--workspace", api.slug)
    key = {"WEFTLINE_API_KEY": api.key}

    async def done(*arguments: str) -> str:
        result = await weftline_beside(*arguments, env=key)
        assert result.code == 0, (arguments, result)
        return result.out

    for where in (here, there):
        for start in (run, run[:-3]):
            assert json.loads(await done("runs", "show", start, *where, "--json"))["id"] == run
            assert "heard" in await done("runs", "follow", start, *where)
            assert json.loads(await done("calls", start, *where, "--json"))[0]["runId"] == run
            assert (await done("runs", "cancel", start, *where)).strip() == "succeeded"
            assert (await done("grants", start, *where, "--json")).strip() == "[]"
            fork = (await done("fork", start, "--turn", "1", *where)).strip()
            assert fork.startswith("run_")
            await api.events(fork)
            assert run in await done("compare", start, fork, *here)
    await other_api.start("hello", runId=run)
    refused = await weftline_beside("runs", "show", run, *here)
    assert refused.code == 1 and "Several workspaces" in refused.err
    slug = ("--workspace", api.slug)
    assert json.loads(await done("runs", "show", run, *here, *slug, "--json"))["status"] == "succeeded"
    assert (await done("runs", "cancel", run, *here, *slug)).strip() == "succeeded"
