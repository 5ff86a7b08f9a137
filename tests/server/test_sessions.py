"""Sessions: a conversation of runs, one after another."""

from __future__ import annotations

import asyncio

import pytest

from .kit import Api, Json, check_error, local_tool, of_type


def spoken(messages: list[Json]) -> list[Json]:
    """Who said what."""
    return [{name: one[name] for name in ("role", "content")} for one in messages]


@pytest.mark.requirement("wire.session.create")
async def test_a_session_is_created_from_a_spec_without_input(api: Api) -> None:
    reply = await api.post("agent-sessions", {"modelId": "scripted:hello", "name": "talk"})
    assert reply.status == 201 and set(reply.json) == {"sessionId", "name", "createdAt"}
    assert reply.json["sessionId"].startswith("ses_") and reply.json["name"] == "talk"
    bad: list[Json] = [
        {"prompt": "hi"},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"budgets": 5},
        {"tools": [{}]},
    ]
    for extra in bad:
        check_error(await api.post("agent-sessions", {"modelId": "scripted:hello", **extra}), 400, "invalid_request")
    check_error(await api.post("agent-sessions", {"modelId": "scripted:nobody"}), 400, "invalid_model")


async def test_a_session_shows_what_its_runs_used(api: Api) -> None:
    session = await api.session("hello")
    for _ in range(2):
        await api.events(await api.send(session))
    usage = (await api.get(f"agent-sessions/{session}")).json["usage"]
    assert (usage["runs"], usage["turns"]) == (2, 2)
    assert usage["tokens"] == {"inputTokens": 20, "cachedTokens": 0, "reasoningTokens": 0, "outputTokens": 10}
    assert usage["costUsd"] is None  # a scripted model has no price


@pytest.mark.requirement("wire.session.info")
async def test_a_session_can_be_read(api: Api) -> None:
    session = await api.session("hello", metadata={"a": "1"}, systemPrompt="be kind")
    shown = (await api.get(f"agent-sessions/{session}")).json
    assert set(shown) == {
        "id",
        "name",
        "status",
        "createdAt",
        "lastUsedAt",
        "endedAt",
        "agentSpec",
        "messages",
        "metadata",
        "usage",
    }
    assert shown["id"] == session and shown["name"] == "ephemeral" and shown["status"] == "active"
    assert shown["endedAt"] is None and shown["messages"] == [] and shown["metadata"] == {"a": "1"}
    assert shown["agentSpec"]["systemPrompt"] == "be kind"


@pytest.mark.requirement("wire.session.message", "wire.session.history")
async def test_each_message_sees_what_was_said_before(api: Api) -> None:
    session = await api.session("seen")
    first = await api.send(session, "one")
    assert (await api.events(first))[-1]["text"] == "one / 1"
    second = await api.send(session, "two")
    assert (await api.events(second))[-1]["text"] == "one | two / 3"
    assert (await api.snapshot(second))["sessionId"] == session
    shown = (await api.get(f"agent-sessions/{session}")).json
    runs = {run: await api.snapshot(run) for run in (first, second)}
    assert shown["messages"] == [
        {
            "role": role,
            "content": content,
            "id": f"{session}.{position}",
            "runId": run,
            "createdAt": runs[run]["createdAt" if role == "user" else "finishedAt"],
        }
        for position, (role, content, run) in enumerate(
            [
                ("user", "one", first),
                ("assistant", "one / 1", first),
                ("user", "two", second),
                ("assistant", "one | two / 3", second),
            ]
        )
    ]
    assert shown["lastUsedAt"] >= shown["createdAt"]
    page = (await api.get(f"agent-sessions/{session}/events?lastMessages=1")).json
    (last,) = page["events"]
    assert {name: last[name] for name in ("id", "runId", "createdAt")} == {
        name: shown["messages"][-1][name] for name in ("id", "runId", "createdAt")
    }


async def test_answers_of_a_session_have_the_calls_of_their_runs_if_asked_for(api: Api) -> None:
    session = await api.session("echo", tools=[{"kind": "server", "name": "echo"}])
    run = await api.send(session, "one")
    await api.events(run)
    asked, answer = (await api.get(f"agent-sessions/{session}?calls=true")).json["messages"]
    assert "calls" not in asked and answer["calls"]
    assert answer["calls"] == (await api.get(f"agent-runs/{run}/calls")).json["calls"]
    plain = (await api.get(f"agent-sessions/{session}")).json["messages"]
    assert all("calls" not in one for one in plain) and [one["id"] for one in plain] == [asked["id"], answer["id"]]
    check_error(await api.get(f"agent-sessions/{session}?calls=yes"), 400, "invalid_request")


@pytest.mark.parametrize("value", [5, ["a:b"]])
async def test_model_fallbacks_of_a_message_are_ignored_with_a_warning(api: Api, value: object) -> None:
    session = await api.session("seen")
    reply = await api.post(f"agent-sessions/{session}/messages", {"prompt": "hi", "modelFallbacks": value})
    assert [one["path"] for one in reply.json["warnings"]] == ["modelFallbacks"]
    assert (await api.events(reply.json["runId"]))[-1]["text"] == "hi / 1"


@pytest.mark.requirement("wire.session.history")
async def test_a_message_may_bring_several_messages(api: Api) -> None:
    session = await api.session("seen")
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    reply = await api.post(f"agent-sessions/{session}/messages", {"messages": messages})
    await api.events(reply.json["runId"])
    shown = (await api.get(f"agent-sessions/{session}")).json["messages"]
    assert spoken(shown) == [*messages, {"role": "assistant", "content": "a | c / 3"}]
    assert len({one["id"] for one in shown}) == 4 and {one["runId"] for one in shown} == {reply.json["runId"]}


@pytest.mark.requirement("wire.session.history")
@pytest.mark.parametrize("script", ["cut", "fails_auth", "stuck"])
async def test_a_run_that_fails_or_is_cancelled_leaves_no_message(api: Api, script: str) -> None:
    session = await api.session(script)
    run = await api.send(session, "lost")
    if script == "stuck":
        await api.cancel(run)
    await api.events(run)
    assert (await api.get(f"agent-sessions/{session}")).json["messages"] == []


@pytest.mark.requirement("wire.session.queue")
async def test_messages_to_a_busy_session_wait_in_line(api: Api) -> None:
    session = await api.session("lookup", tools=[local_tool()])
    runs = [await api.send(session, f"message {number}") for number in range(4)]
    assert [(await api.snapshot(run))["status"] for run in runs[1:]] == ["queued"] * 3
    for number, run in enumerate(runs):
        async with api.stream(run) as stream:
            call = await stream.until("local_tool_call")
            await api.answer(run, call["toolUseId"], result=str(number))
            assert (await stream.rest())[-1]["text"] == f"found {number}"
    said = (await api.get(f"agent-sessions/{session}")).json["messages"]
    assert [message["content"] for message in said] == [
        text for number in range(4) for text in (f"message {number}", f"found {number}")
    ]
    starts = [(await api.snapshot(run))["startedAt"] for run in runs]
    ends = [(await api.snapshot(run))["finishedAt"] for run in runs]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


@pytest.mark.requirement("wire.session.queue")
async def test_queued_run_can_be_followed_and_cancelled_without_disturbing_line(api: Api) -> None:
    session = await api.session("lookup", tools=[local_tool()])
    first, second, third = [await api.send(session, f"m{number}") for number in range(3)]
    async with api.stream(second) as queued:
        assert (await queued.until("started")).seq == 1
        assert (await api.cancel(second)).json["status"] == "cancelled"
        assert (await queued.rest())[-1].type == "cancelled"
    for run in (first, third):
        async with api.stream(run) as stream:
            call = await stream.until("local_tool_call")
            await api.answer(run, call["toolUseId"], result="x")
            assert (await stream.rest())[-1].type == "result"
    said = [message["content"] for message in (await api.get(f"agent-sessions/{session}")).json["messages"]]
    assert said == ["m0", "found x", "m2", "found x"]


@pytest.mark.requirement("wire.session.overrides")
async def test_message_settings_hold_for_its_run_alone(api: Api) -> None:
    session = await api.session("inside", reasoningLevel="low", tools=[local_tool("a")])
    cases: list[tuple[Json, str]] = [
        ({}, "|a|30"),
        ({"reasoningLevel": 80, "tools": [local_tool("b"), local_tool("c")]}, "|b,c|80"),
        ({"reasoningLevel": None, "tools": []}, "|a|30"),
        ({"tools": None, "reasoningLevel": "off"}, "|a|0"),
    ]
    for fields, seen in cases:
        run = await api.send(session, **fields)
        assert (await api.events(run))[-1]["text"] == seen, fields
    spec = (await api.get(f"agent-sessions/{session}")).json["agentSpec"]
    assert spec["reasoningLevel"] == "low" and spec["tools"] == [local_tool("a")]


@pytest.mark.requirement("wire.session.overrides")
async def test_a_message_can_replace_the_guards_and_the_output_schema(api: Api) -> None:
    echo = [{"kind": "mantyx_plugin", "name": "echo"}]
    session = await api.session(
        "echo_loop", tools=echo, budgets={"maxToolTurns": 1}, toolBudgets={"echo": {"maxCalls": 0}}
    )
    plain = await api.events(await api.send(session))
    assert plain[-1]["subtype"] == "error_max_tool_turns" and len(of_type(plain, "tool_budget_exceeded")) == 1
    free = await api.events(await api.send(session, budgets={"maxToolTurns": 5}, toolBudgets={}, loopDetection=False))
    assert len(of_type(free, "tool_call")) == 5 and not of_type(free, "tool_budget_exceeded")
    misfit = await api.events(await api.send(await api.session("hello"), outputSchema={"schema": {"type": "object"}}))
    assert misfit[-1]["code"] == "invalid_output"


@pytest.mark.requirement("wire.session.metadata")
async def test_a_messages_metadata_lies_over_the_sessions(api: Api) -> None:
    session = await api.session("hello", metadata={"a": "1", "b": "1"})
    run = await api.send(session, metadata={"b": "2", "c": "2"})
    plain = await api.send(session)
    assert (await api.snapshot(run))["metadata"] == {"a": "1", "b": "2", "c": "2"}
    assert (await api.snapshot(plain))["metadata"] == {"a": "1", "b": "1"}
    assert (await api.get(f"agent-sessions/{session}")).json["metadata"] == {"a": "1", "b": "1"}
    too_many = {f"k{number}": "v" for number in range(15)}
    check_error(
        await api.post(f"agent-sessions/{session}/messages", {"prompt": "x", "metadata": too_many}),
        400,
        "invalid_request",
    )


@pytest.mark.requirement("wire.session.end", "wire.event.cancelled")
async def test_ending_a_session_cancels_its_runs_and_keeps_it_readable(api: Api) -> None:
    session = await api.session("stuck")
    runs = [await api.send(session, f"m{number}") for number in range(3)]
    for _ in range(2):
        reply = await api.call("DELETE", f"agent-sessions/{session}")
        assert reply.status == 200 and reply.json == {"ok": True}
    for run in runs:
        last = (await api.events(run))[-1]
        assert (last.type, last["reason"]) == ("cancelled", "session_ended")
        assert (await api.snapshot(run))["status"] == "cancelled"
    shown = (await api.get(f"agent-sessions/{session}")).json
    assert shown["status"] == "ended" and shown["endedAt"] >= shown["createdAt"] and shown["messages"] == []
    late = await api.post(f"agent-sessions/{session}/messages", {"prompt": "anyone?"})
    check_error(late, 409, "session_ended")


async def test_a_message_that_breaks_a_rule_starts_no_run(api: Api) -> None:
    session = await api.session("hello")
    bad: list[Json] = [
        {},
        {"prompt": "a", "messages": []},
        {"prompt": 5},
        {"prompt": "a", "tools": [{"kind": "nope"}]},
    ]
    for body in bad:
        check_error(await api.post(f"agent-sessions/{session}/messages", body), 400, "invalid_request")
    assert (await api.get(f"agent-sessions/{session}")).json["messages"] == []


async def test_a_repeated_create_with_one_idempotency_key_is_one_session(api: Api, other_api: Api) -> None:
    body, headers = {"modelId": "scripted:seen", "name": "once"}, {"Idempotency-Key": "s-1"}
    replies = await asyncio.gather(*(api.post("agent-sessions", body, headers=headers) for _ in range(5)))
    first = replies[0]
    assert {reply.status for reply in replies} == {201} and all(reply.json == first.json for reply in replies)
    check_error(await api.post("agent-sessions", {**body, "name": "two"}, headers=headers), 409, "idempotency_conflict")
    others = [
        await api.post("agent-sessions", body),
        await api.post("agent-sessions", body, headers={"Idempotency-Key": "s-2"}),
        await other_api.post("agent-sessions", body, headers=headers),
    ]
    assert len({reply.json["sessionId"] for reply in (first, *others)}) == 4
    await api.call("DELETE", f"agent-sessions/{first.json['sessionId']}")
    assert (await api.post("agent-sessions", body, headers=headers)).json == first.json


async def test_a_repeated_message_with_one_idempotency_key_is_one_run(api: Api) -> None:
    session = await api.session("seen")
    body, headers = {"prompt": "once"}, {"Idempotency-Key": "m-1"}
    replies = await asyncio.gather(
        *(api.post(f"agent-sessions/{session}/messages", body, headers=headers) for _ in range(5))
    )
    (run,) = {reply.json["runId"] for reply in replies}
    await api.events(run)
    assert len((await api.get(f"agent-sessions/{session}")).json["messages"]) == 2


async def test_repeated_message_finds_its_run_though_session_has_ended(api: Api) -> None:
    session = await api.session("seen")
    body, headers = {"prompt": "once"}, {"Idempotency-Key": "m-1"}
    first = await api.post(f"agent-sessions/{session}/messages", body, headers=headers)
    await api.call("DELETE", f"agent-sessions/{session}")
    again = await api.post(f"agent-sessions/{session}/messages", body, headers=headers)
    assert (again.status, again.json) == (202, first.json)
    check_error(await api.post(f"agent-sessions/{session}/messages", body), 409, "session_ended")


async def test_many_sessions_keep_their_conversations_apart(api: Api) -> None:
    async def talk(name: str) -> str:
        session = await api.session("seen")
        texts = [(await api.events(await api.send(session, f"{name}{number}")))[-1]["text"] for number in range(3)]
        return texts[-1]

    names = [f"s{number}-" for number in range(12)]
    assert await asyncio.gather(*(talk(name) for name in names)) == [
        f"{name}0 | {name}1 | {name}2 / 5" for name in names
    ]


async def test_fork_of_sessions_run_has_session_of_its_own(api: Api) -> None:
    session = await api.session("seen", name="talk", metadata={"a2a_context_id": "c", "team": "red"})
    await api.events(await api.send(session, "one"))
    run = await api.send(session, "two")
    await api.events(run)
    path = f"agent-sessions/{session}"
    before = [(await api.get(one)).body for one in (path, f"agent-runs/{run}")]
    once = {"Idempotency-Key": "fork"}
    forks = [
        await api.post(f"agent-runs/{run}/fork", {"turn": 0, "message": "or three"}, headers=once) for _ in range(2)
    ]
    assert [reply.status for reply in forks] == [202, 202] and forks[0].json["runId"] == forks[1].json["runId"]
    fork = forks[0].json["runId"]
    assert (await api.events(fork))[-1]["text"] == "one | two | or three / 4"
    own = (await api.snapshot(fork))["sessionId"]
    assert own != session and [(await api.get(one)).body for one in (path, f"agent-runs/{run}")] == before
    sessions = (await api.get("agent-sessions?metadata.team=red")).json["sessions"]
    assert sorted(one["id"] for one in sessions) == sorted([own, session])
    shown = (await api.get(f"agent-sessions/{own}")).json
    assert (shown["name"], shown["metadata"], shown["usage"]["runs"]) == ("talk", {"team": "red"}, 1)
    assert [message["content"] for message in shown["messages"]][-3:] == ["two", "or three", "one | two | or three / 4"]
    assert (await api.events(await api.send(own, "four")))[-1]["text"].endswith("two | or three | four / 6")
    refused = await api.post(f"agent-runs/{run}/fork", {"turn": 0, "modelId": "scripted:nope"})
    assert refused.status == 400
    assert len((await api.get("agent-sessions?metadata.team=red")).json["sessions"]) == 2
