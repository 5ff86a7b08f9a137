"""People answer over HTTP: once, checked, under the name of their credential."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from .kit import Api, Frame, Json, Reply, Stream, check_error, of_type, types

TOOLS: list[Json] = [{"kind": "server", "name": name} for name in ("pay", "ask_user", "present_plan", "echo")]
YES: Json = {"outcome": "approved"}
NO: Json = {"outcome": "denied", "reason": "Too much."}


@asynccontextmanager
async def asking(api: Api, script: str = "pay", *, count: int = 1) -> AsyncGenerator[tuple[str, list[Frame], Stream]]:
    """A run that waits for people: its id, what it asks, and its stream."""
    run = await api.start(script, tools=TOOLS)
    async with api.stream(run) as stream:
        yield run, [await stream.until("await_opened") for _ in range(count)], stream


async def answer(api: Api, run: str, id: str, said: Json, **options: Any) -> Reply:
    return await api.post(f"agent-runs/{run}/awaits/{id}", said, **options)


async def inbox(api: Api, query: str = "") -> list[Json]:
    reply = await api.get(f"awaits{query}")
    assert reply.status == 200, reply.body
    return reply.json["awaits"]


async def key_id(api: Api, secret: str = "") -> str:
    """Who the log says that somebody with this key is."""
    keys = (await api.get("api-keys")).json["keys"]
    return f"key:{next(one['id'] for one in keys if (secret or api.key).startswith(one['prefix']))}"


@pytest.mark.requirement("run.await.http", "run.confirm.prompt", "run.confirm.audit", "run.status.values")
async def test_a_call_waits_until_somebody_approves_it(api: Api) -> None:
    async with asking(api) as (run, (asked,), stream):
        (open_,) = (await api.get(f"agent-runs/{run}/awaits")).json["awaits"]
        assert {name: open_[name] for name in ("kind", "question", "name", "args", "runId", "rootRunId")} == {
            "kind": "confirm",
            "question": "Pay 5 to Ann?",
            "name": "pay",
            "args": {"amount": 5, "payee": "Ann"},
            "runId": run,
            "rootRunId": run,
        }
        assert (open_["id"], open_["toolUseId"]) == (asked["awaitId"], asked["toolUseId"])
        assert await inbox(api) == [open_]
        snapshot = await api.snapshot(run)
        assert (snapshot["status"], snapshot["paused"], snapshot["awaits"]) == ("running", True, [open_])
        reply = await answer(api, run, asked["awaitId"], YES | {"by": "user:boss"})
        by = await key_id(api)
        assert reply.status == 200 and reply.json["by"] == by
        assert [warning["path"] for warning in reply.json["warnings"]] == ["by"]
        frames = await stream.rest()
    assert types(frames) == [
        "started",
        "assistant_message",
        "await_opened",
        "await_closed",
        "tool_call",
        "tool_result",
        "assistant_message",
        "result",
    ]
    (closed,) = of_type(frames, "await_closed")
    assert closed.payload == {
        "awaitId": asked["awaitId"],
        "outcome": "approved",
        "by": by,
        "reason": "",
        "digest": asked["digest"],
    }
    assert frames[-1]["text"] == "paid 5 to Ann"
    assert await inbox(api) == [] and (await api.snapshot(run))["awaits"] == []
    assert [frame.raw for frame in await api.events(run)] == [frame.raw for frame in frames]


@pytest.mark.requirement("run.confirm.denied")
async def test_denied_call_is_not_carried_out_and_model_reads_why(api: Api) -> None:
    async with asking(api) as (run, (asked,), stream):
        assert (await answer(api, run, asked["awaitId"], NO)).json["outcome"] == "denied"
        frames = await stream.rest()
    (result,) = of_type(frames, "tool_result")
    assert (result["ok"], result["how"]) == (True, "denied") and "Too much." in result["result"]
    assert of_type(frames, "await_closed")[0]["reason"] == "Too much."


async def test_an_approval_may_change_the_arguments_and_cover_later_calls(api: Api) -> None:
    async with asking(api, "pay_twice") as (run, (asked,), stream):
        said = YES | {"args": {"amount": 4, "payee": "Ann"}, "remember": {"payee": "An*"}}
        assert (await answer(api, run, asked["awaitId"], said)).status == 200
        frames = await stream.rest()
    (closed,) = of_type(frames, "await_closed")
    assert closed["args"] == {"amount": 4, "payee": "Ann"} and closed["digest"] != asked["digest"]
    assert closed["remember"] == {"tool": "pay", "prefixes": {"payee": "An"}}
    assert len(of_type(frames, "await_opened")) == 1
    assert "paid 4 to Ann" in frames[-1]["text"] and "paid 6 to Ann" in frames[-1]["text"]


@pytest.mark.parametrize(
    ("script", "said", "heard"),
    [
        ("ask", {"outcome": "answered", "value": "blue"}, "blue"),
        ("plan", YES, "approved"),
        ("plan", YES | {"reason": "Soon."}, "Soon."),
        ("plan", YES | {"args": {"plan": "1. Wait."}}, "1. Wait."),
        ("plan", {"outcome": "answered", "value": "Slower."}, "Slower."),
        ("plan", {"outcome": "denied", "reason": "No."}, "No."),
    ],
)
async def test_questions_and_plans_are_answered(api: Api, script: str, said: Json, heard: str) -> None:
    async with asking(api, script) as (run, (asked,), stream):
        assert asked["kind"] == ("question" if script == "ask" else "plan")
        assert (await answer(api, run, asked["awaitId"], said)).status == 200
        frames = await stream.rest()
    assert heard in frames[-1]["text"]


@pytest.mark.requirement("run.await.http", "run.await.answer_checked")
async def test_unfitting_answer_is_refused_and_the_run_waits(api: Api) -> None:
    async with asking(api) as (run, (asked,), stream):
        id = asked["awaitId"]

        async def refused(said: Json, status: int = 400, code: str = "invalid_answer") -> list[str]:
            body = check_error(await answer(api, run, id, said), status, code)
            return [f"{issue['path']}: {issue['message']}" for issue in body["issues"]]

        assert await refused({"outcome": "answered", "value": "yes"}) == [
            "outcome: a confirm cannot be answered, only approved or denied"
        ]
        assert await refused({"outcome": "denied", "args": {}, "remember": True, "value": 1}) == [
            "args: only the approval of a call or a plan can change it",
            "remember: only the approval of a call covers others",
            "value: only an answer has a value",
        ]
        wrong = await refused(YES | {"args": {"amount": "many"}})
        assert [one.partition(":")[0] for one in wrong] == ["args.amount", "args.payee"]
        assert await refused(YES | {"remember": {"payee": "Ben"}}) == [
            "remember: the pattern does not cover the call itself"
        ]
        odd: list[Json] = [{}, {"outcome": "yes"}, YES | {"args": 1}, YES | {"reason": 7}, YES | {"remember": "always"}]
        for body in odd:
            assert await refused(body, code="invalid_request")
        for remember in ("always", None):
            assert await refused(YES | {"remember": remember}, code="invalid_request") == [
                "remember: must be true, false or a JSON object of arguments"
            ]
        check_error(await answer(api, run, "await_9_9", YES), 404, "unknown_await")
        check_error(await answer(api, "run_1000000000000000", id, YES), 404, "not_found")
        assert [one["id"] for one in await inbox(api)] == [id]
        assert (await answer(api, run, id, YES)).status == 200
        assert (await stream.rest())[-1]["text"] == "paid 5 to Ann"
    check_error(await answer(api, run, id, NO), 409, "await_closed")
    check_error(await answer(api, run, "await_9_9", YES), 409, "run_terminal")


async def test_unknown_option_is_refused_with_the_known_ones(api: Api) -> None:
    async with asking(api, "ask") as (run, (asked,), _):
        for value in ("green", "", None, ["red"], {"a": 1}):
            said = {"outcome": "answered", "value": value}
            body = check_error(await answer(api, run, asked["awaitId"], said), 400, "invalid_answer")
            assert body["issues"] == [{"path": "value", "message": "must be one of 'red', 'blue'"}]
        check_error(await answer(api, run, asked["awaitId"], YES), 400, "invalid_answer")
        await api.cancel(run)
        check_error(
            await answer(api, run, asked["awaitId"], {"outcome": "answered", "value": "red"}), 409, "await_closed"
        )
    assert await inbox(api) == []


@pytest.mark.requirement("run.await.once")
async def test_one_of_three_racing_answers_counts(api: Api, second_key: str) -> None:
    async with asking(api) as (run, (asked,), stream):
        replies = await asyncio.gather(
            answer(api, run, asked["awaitId"], YES),
            answer(api, run, asked["awaitId"], YES, key=second_key),
            answer(api, run, asked["awaitId"], NO),
        )
        frames = await stream.rest()
    (won,) = [reply.json for reply in replies if reply.status == 200]
    (closed,) = of_type(frames, "await_closed")
    assert (closed["outcome"], closed["by"]) == (won["outcome"], won["by"])
    for reply in replies:
        if reply.status != 200:
            assert won["by"] in check_error(reply, 409, "await_closed")["message"]


async def test_the_same_request_may_come_again_and_another_may_not(api: Api, second_key: str) -> None:
    once = {"Idempotency-Key": "click-1"}
    async with asking(api) as (run, (asked,), stream):
        first = await answer(api, run, asked["awaitId"], YES, headers=once)
        again = await answer(api, run, asked["awaitId"], YES, headers=once)
        assert first.json == again.json and again.status == 200
        for said in (NO, YES | {"reason": "changed"}):
            reply = await answer(api, run, asked["awaitId"], said, headers=once)
            assert "another answer" in check_error(reply, 409, "idempotency_conflict")["message"]
        check_error(await answer(api, run, asked["awaitId"], NO), 409, "await_closed")
        check_error(await answer(api, run, asked["awaitId"], YES), 409, "await_closed")
        check_error(await answer(api, run, asked["awaitId"], YES, headers=once, key=second_key), 409, "await_closed")
        await stream.rest()
    assert (await answer(api, run, asked["awaitId"], YES, headers=once)).json == first.json


async def test_several_open_awaits_are_listed_by_pages_and_filters(api: Api) -> None:
    async with asking(api, "pay_two", count=2) as (run, asked, stream), asking(api, "ask") as (other, (question,), _):
        ids = [one["awaitId"] for one in asked]
        first = (await api.get("awaits?limit=1")).json
        second = (await api.get(f"awaits?limit=1&cursor={first['nextCursor']}")).json
        third = (await api.get(f"awaits?limit=1&cursor={second['nextCursor']}")).json
        pages = [page["awaits"][0]["id"] for page in (first, second, third)]
        assert pages == [*ids, question["awaitId"]] and third["nextCursor"] is None
        for query, found in {
            "kind=question": [other],
            "kind=plan": [],
            "name=pay": [run, run],
            f"runId={run}": [run, run],
            "runId=run_1000000000000000": [],
            "runId=nobodys": [],
            "agentId=nobody": [],
            "sessionId=ses_1000000000000000": [],
            "waitingSince=2020-01-01T00:00:00Z": [],
            "waitingSince=2120-01-01T00:00:00Z": [run, run, other],
        }.items():
            assert [one["runId"] for one in await inbox(api, f"?{query}")] == found, query
        for query in ("kind=x", "runId=x.y", "waitingSince=today", "waitingSince=2020-01-01", "cursor=x", "limit=0"):
            body = check_error(await api.get(f"awaits?{query}"), 400, "invalid_request")
            assert body["issues"][0]["path"] == query.partition("=")[0]
        assert (await answer(api, run, ids[1], NO)).status == 200
        assert (await answer(api, run, ids[0], YES)).status == 200
        assert "paid 1 to Ann" in (await stream.rest())[-1]["text"]
        await api.cancel(other)


async def test_another_workspace_can_neither_see_nor_answer(api: Api, other_api: Api) -> None:
    async with asking(api) as (run, (asked,), _):
        assert await inbox(other_api) == [] and await inbox(other_api, f"?runId={run}") == []
        for reply in (
            await other_api.get(f"agent-runs/{run}/awaits"),
            await answer(other_api, run, asked["awaitId"], YES),
            await other_api.post(f"agent-runs/{run}/pause"),
            await other_api.post(f"agent-runs/{run}/resume"),
        ):
            check_error(reply, 404, "not_found")
        assert len(await inbox(api)) == 1
        await api.cancel(run)


BOMBS: dict[str, bytes] = {
    "deep": b'{"outcome":"approved","args":' + b'{"a":' * 150 + b"1" + b"}" * 151,
    "deeper": b'{"outcome":"answered","value":' + b"[" * 100_000,
    "many": b'{"outcome":"answered","value":[' + b"[]," * 300_000 + b"[]]}",
    "long number": b'{"outcome":"answered","value":' + b"9" * 5_000 + b"}",
    "half a character": b'{"outcome":"answered","value":"\\ud83d"}',
    "a character that cannot be stored": b'{"outcome":"answered","value":"\\u0000"}',
    "not JSON": b"{",
    "a list": b"[]",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
async def test_body_that_is_bomb_is_refused_and_run_still_waits(api: Api, bomb: bytes) -> None:
    script = "ask" if b"answered" in bomb else "pay"
    async with asking(api, script) as (run, (asked,), _):
        reply = await api.post(f"agent-runs/{run}/awaits/{asked['awaitId']}", data=bomb)
        assert reply.status == 400 and reply.json["code"] in ("invalid_request", "invalid_answer"), reply.body
        too_much = await api.post(f"agent-runs/{run}/awaits/{asked['awaitId']}", data=b" " * (5 * 1024 * 1024))
        check_error(too_much, 413, "body_too_large")
        assert len(await inbox(api)) == 1
        await api.cancel(run)


@pytest.mark.requirement("run.pause.request", "run.pause.resume", "run.pause.while_waiting", "run.await.http")
async def test_paused_run_accepts_an_answer_and_continues_when_resumed(api: Api) -> None:
    async with asking(api) as (run, (asked,), stream):
        check_error(await api.post(f"agent-runs/{run}/resume"), 409, "not_paused")
        by = await key_id(api)
        held = await api.post(f"agent-runs/{run}/pause", {"reason": "lunch", "labels": {"ticket": "7"}})
        assert held.status == 200 and held.json == {"ok": True, "by": by}
        assert (await api.post(f"agent-runs/{run}/pause", {"reason": "again"})).status == 200
        assert (await answer(api, run, asked["awaitId"], YES)).status == 200
        await stream.until("await_closed")
        assert (await api.snapshot(run))["paused"] is True
        assert (await api.snapshot(run))["reason"] == "lunch"
        (listed,) = (await api.get(f"agent-runs?idPrefix={run}")).json["runs"]
        assert (listed["paused"], listed["reason"]) == (True, "lunch")
        said = {"notes": "back", "labels": {"ticket": "8"}, "messages": ["Be quick.", "Really."]}
        assert (await api.post(f"agent-runs/{run}/resume", said)).status == 200
        frames = await stream.rest()
    assert (await api.snapshot(run))["reason"] is None
    (paused,) = of_type(frames, "run_paused")
    assert paused.payload == {"reason": "lunch", "requestedBy": by, "labels": {"ticket": "7"}}
    (resumed,) = of_type(frames, "run_resumed")
    assert resumed.payload == {
        "notes": "back",
        "requestedBy": by,
        "labels": {"ticket": "8"},
        "messageCount": 2,
    }
    assert of_type(frames, "messages_taken")[0]["texts"] == ["Be quick.", "Really."]
    for verb in ("pause", "resume"):
        check_error(await api.post(f"agent-runs/{run}/{verb}"), 409, "run_terminal")
        check_error(await api.post(f"agent-runs/run_1000000000000000/{verb}"), 404, "not_found")
        odd: list[Json] = [{"reason": 7, "notes": 7}, {"labels": {"a": 1}}, {"labels": "a"}]
        for body in odd:
            check_error(await api.post(f"agent-runs/{run}/{verb}", body), 400, "invalid_request")


async def test_run_says_how_long_and_which_people_have_to_approve(api: Api) -> None:
    frames = await api.play("pay", tools=TOOLS, awaits={"timeoutMs": 1})
    (closed,) = of_type(frames, "await_closed")
    assert (closed["outcome"], frames[-1].type) == ("expired", "result")
    frames = await api.play("pay", tools=TOOLS, awaits={"timeoutMs": 1, "onExpired": "end"})
    assert (frames[-1].type, frames[-1]["code"]) == ("error", "await_expired")
    run = await api.start("pay", tools=TOOLS, awaits={"fourEyes": True})
    async with api.stream(run) as stream:
        asked = await stream.until("await_opened")
        check_error(await answer(api, run, asked["awaitId"], YES), 403, "four_eyes")
        assert len(await inbox(api)) == 1
        await api.cancel(run)
