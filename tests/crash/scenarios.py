"""What a client does with a server that may die at any moment, and what must have come of it."""

from __future__ import annotations

import sqlite3
import subprocess
from itertools import pairwise
from typing import Any

from weftline.kernel.control import CallClaimed, CallUnclaimed
from weftline.kernel.entries import (
    AttemptStarted,
    BudgetExceeded,
    CallClosed,
    CallStarted,
    FinalForced,
    HistoryPinned,
    LoopDetected,
    OutputRejected,
    TurnCompleted,
)

from .crashing import LOST, CrashingServer, Event
from .log import RunLog, abandoned, streamed_tokens
from .scripts import spec

MODEL_CALLS = 7
"""Of the script `tools`, undisturbed; one of them fails and is made again."""
TOKENS_OUT = 5 * 6


def tools(server: CrashingServer) -> None:
    """Model turns, a failed model call, server tools of all four effects, and a client tool."""
    run = server.create(spec("tools"))
    seen = server.follow(run, on_offer=lambda offer: server.answer(run, offer))
    (log,) = server.check().values()
    doubted = _check_doubt(server, log)
    result = seen[-1].data
    assert seen[-1].type == "result" and result["subtype"] == "success", result
    expected = ["put a cup", "paid 5", "booked 7", "looked at here", "yes"]
    got = result["text"].removeprefix("All: ").split(" || ")
    assert len(got) == len(expected) and [g for g in got if g not in expected] == got[1:2] * doubted
    ran = [note.tool for note in server.notes() if note.kind == "ran"]
    assert ran.count("book") == 1, "a booking that can be looked up was made twice or not at all"
    assert ran.count("pay") == 1 or doubted
    assert ran.count("put") == 1 + _cut(server, "put") and ran.count("look") == 1 + _cut(server, "look")
    _check_counts(seen, log)


def _check_doubt(server: CrashingServer, log: RunLog) -> bool:
    """A call is in doubt when, and only when, a process died with a `once` call begun and not closed."""
    hit: set[str] = set()
    for death in server.deaths:
        for before in death.logs.values():
            begun = {(fact.turn, fact.index) for fact in before.of(CallStarted)} - before.closed
            hit |= {name for name in _names(log, begun) if name == "pay"}
    in_doubt = [fact for fact in log.of(CallClosed) if fact.how == "in_doubt"]
    assert all(fact.is_error for fact in in_doubt)
    doubted = {fact.name for fact in in_doubt}
    assert doubted == hit
    return bool(doubted)


def _cut(server: CrashingServer, tool: str) -> int:
    """How often a process died after `tool` had run and before its result was durable: it must run again then."""
    counts = [0]
    for death in server.deaths:
        closed = any(fact.name == tool for log in death.logs.values() for fact in log.of(CallClosed))
        if not closed:
            counts.append([note.tool for note in death.notes if note.kind == "ran"].count(tool))
    return sum(later > earlier for earlier, later in pairwise(counts))


def _names(log: RunLog, calls: set[tuple[int, int]]) -> set[str]:
    return {fact.name for fact in log.of(CallClosed) if (fact.turn, fact.index) in calls}


def _check_counts(seen: list[Event], log: RunLog) -> None:
    """Every model call counts once; a cut one is one more attempt of its turn and is marked."""
    cut = abandoned(log)
    assert len(log.of(AttemptStarted)) == MODEL_CALLS + len(cut) == seen[-1].data["attempts"]
    assert len(log.of(TurnCompleted)) == MODEL_CALLS - 1
    assert all(fact.estimated and fact.usage.input > 0 for fact in cut)
    assert [fact.usage.output for fact in cut] == [streamed_tokens(log, fact) for fact in cut]
    assert seen[-1].data["tokens"]["outputTokens"] == TOKENS_OUT + sum([fact.usage.output for fact in cut])
    restarted = [event for event in seen if event.type == "turn_restarted"]
    assert [event.data["reason"] for event in restarted].count("abandoned") == len(cut)
    for fact in log.of(TurnCompleted):
        text = next(e.data["text"] for e in seen if e.type == "assistant_message" and e.data["turn"] == fact.turn)
        deltas = [e.data for e in seen if e.type == "assistant_delta" and e.data["turn"] == fact.turn]
        whole = "".join(delta["text"] for delta in deltas if delta["attempt"] == fact.attempt)
        assert text == whole, "a turn's text is not that of its completed attempt"


def ask(server: CrashingServer) -> None:
    """A call is offered to the client, and the client answers."""
    run = server.create(spec("ask"))
    answers: list[int] = []
    seen = server.follow(run, on_offer=lambda offer: answers.append(server.answer(run, offer).status))
    (log,) = server.check().values()
    assert len(answers) == 1, "the client was asked again"
    assert seen[-1].data["text"] == "yes" and len(log.of(CallClosed)) == 1


def leases(server: CrashingServer) -> None:
    """A client claims a call and gives it back; another one claims it and answers."""
    run = server.create(spec("ask"))
    offer = next(event for event in server.stream(run) if event.type == "local_tool_call")
    path, call = f"/agent-runs/{run}/tool-leases", {"toolUseId": offer.data["toolUseId"]}
    first = server.request("POST", path, {**call, "claimId": "one"})
    assert (first.status, first.body["attempt"]) == (200, 1), first
    plain = server.request("POST", f"/agent-runs/{run}/tool-results", {**call, "result": "no"})
    assert (plain.status, plain.body["code"]) == (409, "lease_held"), plain
    given_back = server.request("POST", f"{path}/release", {**call, "token": first.body["token"]})
    assert given_back.status == 200 or (given_back.tries > 1 and given_back.status == 409), given_back
    second = server.request("POST", path, {**call, "claimId": "two"})
    assert (second.status, second.body["attempt"]) == (200, 2), second
    late = server.request("POST", f"{path}/heartbeat", {**call, "token": first.body["token"]})
    assert (late.status, late.body["code"]) == (409, "lease_lost"), late
    result = {**call, "result": "yes", "leaseToken": second.body["token"]}
    assert server.request("POST", f"/agent-runs/{run}/tool-results", result).status == 200
    assert server.follow(run)[-1].data["text"] == "yes"
    (log,) = server.check().values()
    assert len({fact.token for fact in log.of(CallClaimed)}) == 2 and len(log.of(CallUnclaimed)) == 1


def doubtful(server: CrashingServer) -> None:
    """Calls whose tools cannot tell what became of them: one says so, one raises, one never answers."""
    run = server.create(spec("doubtful"))
    assert server.follow(run)[-1].data["text"] == "I do not know."
    (log,) = server.check().values()
    assert [(fact.how, fact.is_error) for fact in log.of(CallClosed)] == [("in_doubt", True)] * 3
    assert sorted(note.kind for note in server.notes()) == ["asked"] * 3 + ["ran"] * 3


def session(server: CrashingServer) -> None:
    """Two messages of one session, the second queued behind the first."""
    created = server.request("POST", "/agent-sessions", {"modelId": "scripted:short"})
    assert created.status == 201
    path = f"/agent-sessions/{created.body['sessionId']}"
    runs: list[str] = []
    for prompt in ("A", "B"):
        sent = server.request("POST", f"{path}/messages", {"prompt": prompt}, idempotency_key=prompt)
        assert sent.status == 202
        runs.append(sent.body["runId"])
    texts = [server.follow(run)[-1].data["text"] for run in runs]
    assert texts == ["You said: A", "You said: A | B"]
    logs = server.check()
    assert [log.run for log in logs.values()] == runs
    assert [log.of(HistoryPinned)[0].upto for log in logs.values()] == [0, 2]
    messages = server.request("GET", path).body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2


def cancel(server: CrashingServer) -> None:
    """A run that waits for its client is cancelled."""
    run = server.create(spec("ask"))
    receipts: list[dict[str, Any]] = []

    def stop(offer: Event) -> None:
        receipts.append(server.request("POST", f"/agent-runs/{run}/cancel").body)

    seen = server.follow(run, on_offer=stop)
    assert seen[-1].type == "cancelled" and seen[-1].data["reason"] == "user"
    receipts.append(server.request("POST", f"/agent-runs/{run}/cancel").body)
    assert receipts[0] == receipts[1] and receipts[0]["status"] == "cancelled"
    (log,) = server.check().values()
    assert log.end.status == "cancelled" and len(log.of(AttemptStarted)) == 1
    late = server.request(
        "POST", f"/agent-runs/{run}/tool-results", {"toolUseId": log.of(CallClosed)[0].id, "result": ""}
    )
    assert late.body == {"ok": True, "ignored": True}


def guards(server: CrashingServer) -> None:
    """A budget of none, and a model that repeats itself until it is stopped."""
    run = server.create(spec("guards", toolBudgets={"put": {"maxCalls": 0}}))
    seen = server.follow(run)
    (log,) = server.check().values()
    assert seen[-1].data["text"] == "I stop here." and log.end.reason == "loop_detected"
    assert len(log.of(BudgetExceeded)) == len(log.of(FinalForced)) == 1
    assert [fact.hard for fact in log.of(LoopDetected)] == [False, True]
    looked = [fact for fact in log.of(CallClosed) if fact.name == "look" and fact.how == "returned"]
    assert len(looked) == 2 and not [note for note in server.notes() if note.tool == "put"]


def output(server: CrashingServer) -> None:
    """An answer that does not fit the schema, asked for once more."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    run = server.create(spec("output", outputSchema={"schema": schema}))
    seen = server.follow(run)
    (log,) = server.check().values()
    assert seen[-1].data["text"] == '{"ok": true}'
    assert len(log.of(OutputRejected)) == 1


def ended_session(server: CrashingServer) -> None:
    """A session is ended with one run waiting for its client and one queued; the request is not sent again."""
    created = server.request("POST", "/agent-sessions", spec("ask", prompt=None))
    assert created.status == 201, created
    path = f"/agent-sessions/{created.body['sessionId']}"
    runs = [
        server.request("POST", f"{path}/messages", {"prompt": prompt}, idempotency_key=prompt).body["runId"]
        for prompt in ("A", "B")
    ]
    offer = next(event for event in server.stream(runs[0]) if event.type == "local_tool_call")
    connection = server.connect()
    try:
        connection.request("DELETE", f"/api/v1/workspaces/acme{path}", headers=server.headers)
        connection.getresponse().read()
    except LOST:
        server.revive()
    finally:
        connection.close()
    if server.request("GET", path).body["endedAt"] is None:
        server.answer(runs[0], offer)
        server.follow(runs[0])
        server.follow(runs[1], on_offer=lambda offer: server.answer(runs[1], offer))
        assert [server.views[run][-1].type for run in runs] == ["result", "result"]
    else:
        ends = [server.follow(run)[-1] for run in runs]
        assert [(end.type, end.data["reason"]) for end in ends] == [("cancelled", "session_ended")] * 2
    server.check()


def new_key(server: CrashingServer) -> None:
    """A key is made while the server runs; who was not told of it makes another."""
    try:
        key = server.process.create_key("other")
    except subprocess.CalledProcessError:
        server.revive()
        key = server.process.create_key("other")
    models = server.request("GET", "/models", workspace="other", key=key)
    assert models.status == 200
    server.check()


def thread_state(server: CrashingServer) -> None:
    """Values and variables of a thread are set by requests that are sent again."""
    agent = server.request("POST", "/agents", {"name": "Keeper", "spec": {"modelId": "scripted:tools"}})
    thread = server.request("POST", "/threads", {"agentId": agent.body["id"]}, idempotency_key="t").body["id"]
    for count in (1, 2):
        server.request("PUT", f"/threads/{thread}/values/count", {"value": count})
        server.request("PUT", f"/threads/{thread}/env/COUNT", {"value": str(count), "type": "text"})
    assert server.request("GET", f"/threads/{thread}/values").body["values"] == [{"key": "count", "value": 2}]
    assert [one["value"] for one in server.request("GET", f"/threads/{thread}/env").body["env"]] == ["2"]
    assert len(server.request("GET", "/threads").body["threads"]) == 1
    server.check()


def files(server: CrashingServer) -> None:
    """A file of several chunks is written, and written over, by requests that are sent again."""
    agent = server.request("POST", "/agents", {"name": "Keeper", "spec": {"modelId": "scripted:tools"}})
    thread = server.request("POST", "/threads", {"agentId": agent.body["id"]}, idempotency_key="t").body["id"]
    path, size = f"/threads/{thread}/fs/a", 600 * 1024
    for letter in "ab":
        before = server.request("GET", f"/threads/{thread}/fs").body["entries"]
        assert [one["size"] for one in before] == ([] if letter == "a" else [size + 2])
        assert server.request("PUT", path, letter * size).status == 200
        assert server.request("GET", path).body == letter * size
    stats = server.request("GET", f"/threads/{thread}/fs?stats=1").body
    assert (stats["fileCount"], stats["totalSize"]) == (1, size + 2)
    with sqlite3.connect(f"file:{server.process.db / 'weftline.db'}?mode=ro", uri=True) as db:
        assert db.execute("SELECT count(*), sum(size) FROM contents").fetchall() == [(1, size + 2)]
        assert db.execute("SELECT sum(length(data)) FROM content_chunks").fetchall() == [(size + 2,)]
        assert db.execute("SELECT bytes FROM file_use WHERE thread = 0").fetchall() == [(size + 2,)]
    server.check()
