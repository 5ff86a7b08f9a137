"""Entries as events: what each kind becomes, and that everything in a log becomes one event or none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from weftline.events.frames import delta_frames, observed, payload_of
from weftline.events.project import OF_FACTS
from weftline.kernel import bodies
from weftline.kernel.context import ContextCompacted, ContextRestored
from weftline.kernel.entries import (
    FACTS,
    KIND,
    AskedCall,
    AttemptFailed,
    AttemptStarted,
    BudgetExceeded,
    CallClosed,
    CallOpened,
    CallStarted,
    CancelRequested,
    ChildEnded,
    Fact,
    FinalForced,
    HistoryPinned,
    How,
    Limits,
    LoopDetected,
    MessageQueued,
    MessagesTaken,
    ModelRef,
    OutputRejected,
    RunAdopted,
    RunCreated,
    RunEnded,
    RunPaused,
    RunResumed,
    TimerFired,
    TurnCompleted,
)
from weftline.kernel.notes import PROVIDER_CALL, TEXT_DELTA
from weftline.kernel.policy import PolicyDecided
from weftline.messages import Assistant, Image, ProviderCall, Text, ToolCall, Usage

json = msgspec.json


def event(head: Fact, body: msgspec.Struct | None = None) -> tuple[str, Any]:
    shown = payload_of(head, b"" if body is None else bodies.encode(body), run_id="run_1")
    assert shown is not None
    return shown[0], json.decode(shown[1])


INTERNAL = {
    *("history.pinned", "instructions.rendered", "state.changed", "run.adopted", "attempt.failed"),
    *("output.accepted", "results.over_budget", "call.asked", "call.gated", "child.waits", "await.passed"),
    *("message.queued", "cancel.requested", "timer.fired", "context.measured", "compaction.started"),
    *("compaction.failed", "budget.refused", "cap.reached", "run.unattended", "deploy.adopted"),
    *("messages.edited", "seat.taken", "seat.closing", "seat.asked_on", "seat.forced", "run.stopped"),
}
"""Entries that clients do not see."""


def test_every_fact_is_an_event_or_internal() -> None:
    assert {KIND[fact] for fact in OF_FACTS} | INTERNAL == FACTS.keys()
    assert not {KIND[fact] for fact in OF_FACTS} & INTERNAL


@pytest.mark.parametrize(
    "head",
    [
        HistoryPinned(3),
        RunAdopted(2),
        AttemptFailed(0, 1, "server"),
        MessageQueued("m", "steer"),
        CancelRequested(),
        TimerFired(1),
    ],
    ids=lambda head: type(head).__name__,
)
def test_internal_facts_are_not_shown(head: Fact) -> None:
    assert KIND[type(head)] in INTERNAL
    assert payload_of(head, b"", run_id="run_1") is None


def test_start_names_only_the_run_and_agent() -> None:
    body = bodies.CreatedBody(Raw(b'{"v":1,"name":"a title"}'), Raw(b"{}"))
    assert event(RunCreated(1, Limits()), body) == ("started", {"runId": "run_1"})
    stored = bodies.CreatedBody(Raw(b'{"v":1,"name":"support","agent_id":"agt_1"}'), Raw(b"{}"))
    assert event(RunCreated(1, Limits()), stored) == ("started", {"runId": "run_1", "agent": "support"})


def test_a_message_shows_arguments_as_the_model_wrote_them() -> None:
    message = Assistant((Text("I look."), ToolCall("c1", "look", '{"at": "here"}'), ToolCall("c2", "look", "not JSON")))
    made = (bodies.TurnCall(Raw(b'{"at":"here","injected":1}')), bodies.TurnCall(Raw(b"{}"), "No."))
    body = bodies.TurnBody(message, made)
    calls = (AskedCall("c1", "look", "d1"), AskedCall("c2", "look", "d2", "invalid"))
    head = TurnCompleted(0, 1, "tool_use", calls=calls, metadata={"response_id": "r"})
    assert event(head, body) == (
        "assistant_message",
        {
            "text": "I look.",
            "turn": 0,
            "finishReason": "tool_use",
            "providerMetadata": {"response_id": "r"},
            "toolCalls": [
                {"id": "c1", "name": "look", "input": {"at": "here"}},
                {"id": "c2", "name": "look", "input": {}},
            ],
        },
    )
    plain = bodies.TurnBody(Assistant((Text("Done."),)))
    assert event(TurnCompleted(1, 1, "end_turn"), plain)[1] == {"text": "Done.", "turn": 1, "finishReason": "end_turn"}


def test_offer_shows_final_arguments_and_blocked_call_is_not_offered() -> None:
    body = bodies.OpenedBody(Raw(b'{"at":"here"}'), peer=bodies.McpPeer("files", "read"))
    args = {"at": "here"}
    server = {"toolUseId": "c1", "name": "look", "input": args, "args": args, "turn": 2, "displayHint": "Look"}
    client = {"toolUseId": "c1", "name": "look", "args": args, "kind": "mcp_local", "turn": 2, "displayHint": "Look"}
    client |= {"mcpServer": "files", "mcpToolName": "read"}
    assert event(CallOpened(2, 0, "c1", "look", "d"), body) == ("tool_call", server)
    assert event(CallOpened(2, 0, "c1", "look", "d", client="mcp_local"), body) == ("local_tool_call", client)
    assert payload_of(CallOpened(0, 0, "c1", "look", "d", blocked=True), bodies.encode(body), run_id="r") is None


OFFER = b'{"toolUseId":"c1","name":"look","args":{},"kind":"%s","turn":2,"displayHint":"Look",%s}'
PEERS = [
    (bodies.McpPeer("files", "look"), b'"mcpServer":"files","mcpToolName":"look"'),
    (
        bodies.McpPeer('d\u00e9j\u00e0 "vu"', "look", Raw(b'{"name": "F", "n": 1.0}'), Raw(b'{ "a":null }')),
        b'"mcpServer":"d\xc3\xa9j\xc3\xa0 \\"vu\\"","mcpToolName":"look",'
        b'"mcpServerInfo":{"name": "F", "n": 1.0},"annotations":{ "a":null }',
    ),
    (bodies.A2APeer(Raw(b'{"name": "A", "skills": [ ]}')), b'"agentCard":{"name": "A", "skills": [ ]}'),
]


@pytest.mark.requirement("wire.event.local_call")
@pytest.mark.parametrize(("peer", "fields"), PEERS)
def test_offer_names_the_peer(peer: bodies.Peer, fields: bytes) -> None:
    kind = "a2a_local" if isinstance(peer, bodies.A2APeer) else "mcp_local"
    head, offer = CallOpened(2, 0, "c1", "look", "d", client=kind), ("local_tool_call", OFFER % (kind.encode(), fields))
    ours = bodies.encode(bodies.OpenedBody(Raw(b"{}"), peer=peer))
    assert payload_of(head, ours, run_id="r") == offer


def test_a_result_is_shown_with_its_arguments_and_attachments() -> None:
    body = bodies.ClosedBody((Text("two\nlines"), Image("image/png", "AA==")), Raw(b'{"at":1}'))
    assert event(CallClosed(0, 0, "c1", "look", "returned"), body) == (
        "tool_result",
        {
            "toolUseId": "c1",
            "name": "look",
            "ok": True,
            "summary": "two lines",
            "result": "two\nlines",
            "args": {"at": 1},
            "phase": "end",
            "how": "returned",
            "telemetry": {"durationMs": 0},
            "attachments": [{"type": "image", "mediaType": "image/png"}],
        },
    )


def test_result_of_client_comes_back_as_it_went_in() -> None:
    closed = CallClosed(0, 0, "c1", "look", "returned", client="local")
    failed = CallClosed(0, 0, "c1", "look", "timeout", is_error=True, client="local")
    body = bodies.ClosedBody((Text("found"),))
    call = {"toolUseId": "c1", "name": "look"}
    took = {"telemetry": {"durationMs": 0}}
    answer = {**call, "output": "found", "result": "found", "how": "returned", **took}
    assert event(closed, body) == ("local_tool_result_in", answer)
    late = {"error": "found", "how": "timeout", **took, "failure": {"kind": "timeout", "recovery": "replan"}}
    assert event(failed, body) == ("local_tool_result_in", call | late)


@pytest.mark.parametrize("how", ["invalid", "cancelled", "not_run"])
def test_call_that_no_client_answered_has_result_like_any_other(how: How) -> None:
    closed = CallClosed(0, 0, "c1", "look", how, is_error=True, client="local")
    kind, payload = event(closed, bodies.ClosedBody((Text("No."),)))
    assert (kind, payload["ok"], payload["how"]) == ("tool_result", False, how)


USED = {
    "tokens": {"inputTokens": 9, "cachedTokens": 0, "reasoningTokens": 0, "outputTokens": 4},
    "turns": 2,
    "attempts": 5,
    "model": {"id": "m", "provider": "p", "vendorModelId": "v"},
}


def ended(status: Any, **fields: Any) -> RunEnded:
    return RunEnded(
        status, usage=Usage(input=9, output=4), turns=2, attempts=5, model=ModelRef("m", "p", "v"), **fields
    )


@pytest.mark.parametrize(
    ("head", "body", "kind", "payload"),
    [
        (
            ended("succeeded", reason="loop_detected", cost_nusd=1_500_000_000),
            bodies.EndedBody(text="Done."),
            "result",
            {"subtype": "success", "ok": True, "text": "Done.", "terminationReason": "loop_detected", "costUsd": 1.5},
        ),
        (ended("cancelled", reason="parent"), bodies.EndedBody(), "cancelled", {"reason": "parent"}),
        (ended("cancelled", reason="thread_ended"), bodies.EndedBody(), "cancelled", {"reason": "session_ended"}),
        (
            ended("failed", code="max_tool_turns", reason="max_tool_turns"),
            bodies.EndedBody(error="Too many."),
            "result",
            {
                "subtype": "error_max_tool_turns",
                "ok": False,
                "error": "Too many.",
                "terminationReason": "max_tool_turns",
            },
        ),
        (
            ended("failed", code="local_timeout"),
            bodies.EndedBody(error="Too late."),
            "result",
            {
                "subtype": "error_local_tool_timeout",
                "ok": False,
                "error": "Too late.",
                "code": "local_timeout",
                "errorClass": "local_timeout",
            },
        ),
        (
            ended("failed", code="truncation", finish="max_tokens"),
            bodies.EndedBody(error="Cut.", partial_text="So f"),
            "error",
            {
                "error": "Cut.",
                "code": "truncation",
                "errorClass": "truncation",
                "retryable": False,
                "partialText": "So f",
                "finishReason": "max_tokens",
            },
        ),
        (
            # The reason is that of the turn before, which was complete.
            ended("failed", code="server", finish="tool_use"),
            bodies.EndedBody(error="Broken.", partial_text="So f"),
            "error",
            {
                "error": "Broken.",
                "code": "server",
                "errorClass": "server",
                "retryable": True,
                "partialText": "So f",
            },
        ),
        (
            ended("failed", code="worker_error"),
            bodies.EndedBody(error="Damaged."),
            "error",
            {"error": "Damaged.", "code": "worker_error", "errorClass": "unknown", "retryable": False},
        ),
    ],
)
def test_the_end_says_how_and_what_was_used(head: RunEnded, body: bodies.EndedBody, kind: str, payload: Any) -> None:
    assert event(head, body) == (kind, payload | USED)


@pytest.mark.parametrize(
    ("head", "kind", "payload"),
    [
        (
            AttemptStarted(3, 2, ModelRef(), cause="overloaded"),
            "turn_restarted",
            {"turn": 3, "attempt": 2, "reason": "overloaded"},
        ),
        (
            LoopDetected(3, False, ("look",)),
            "loop_detected",
            {"consecutiveCount": 3, "hardCutoff": False, "tools": ["look"]},
        ),
        (BudgetExceeded("pay", 2, 3), "tool_budget_exceeded", {"tool": "pay", "maxCalls": 2, "callIndex": 3}),
        (RunPaused("look", "ops"), "run_paused", {"reason": "look", "requestedBy": "ops"}),
        (RunResumed("go", "ops"), "run_resumed", {"notes": "go", "requestedBy": "ops"}),
        (FinalForced("max_turns"), "final_forced", {"reason": "max_turns"}),
        (
            PolicyDecided(3, ("look",), 2),
            "policy_decision",
            {
                "turn": 3,
                "allowedTools": ["look"],
                "callsLeft": 2,
                "failuresLeft": None,
                "disableTools": False,
                "failed": False,
                "labels": {},
            },
        ),
        (ContextRestored("ops"), "context_restored", {"requestedBy": "ops"}),
    ],
)
def test_small_facts_are_events_of_their_own(head: Fact, kind: str, payload: Any) -> None:
    assert event(head) == (kind, payload)


def test_intermediate_messages_to_the_model_are_shown() -> None:
    taken = bodies.TakenBody(("Trains only.",))
    assert event(MessagesTaken(("m",)), taken) == ("messages_taken", {"texts": ["Trains only."]})
    rejected = {"turn": 3, "message": "Once more."}
    assert event(OutputRejected(3), bodies.TextBody("Once more.")) == ("output_rejected", rejected)


def test_a_summary_is_shown_with_its_sizes_and_its_cost() -> None:
    head = ContextCompacted(1, 7, 900, 200, usage=Usage(input=9, output=4), cost_nusd=5_000_000)
    shown = {"summary": "They met.", "tokensBefore": 900, "tokensAfter": 200, "model": "lab:small", "inherited": False}
    spent = {"tokens": USED["tokens"], "costUsd": 0.005}
    assert event(head, bodies.SummaryBody("They met.", (0,), "lab:small")) == ("context_compacted", {**shown, **spent})


def test_log_of_older_code_lacks_texts_of_taken_messages() -> None:
    assert event(MessagesTaken(("m",))) == ("messages_taken", {"texts": []})


def test_the_first_attempt_of_a_turn_restarts_nothing() -> None:
    assert payload_of(AttemptStarted(3, 1, ModelRef()), b"", run_id="run_1") is None


def test_beginning_call_is_shown_only_if_a_run_executes_it() -> None:
    assert payload_of(CallStarted(0, 0, 1), b"", run_id="run_1") is None
    call = {"toolUseId": "c1", "name": "ask", "childRunId": "run_2"}
    assert event(CallStarted(3, 0, 1, child="run_2", id="c1", name="ask")) == ("child_started", {**call, "turn": 3})
    end = ChildEnded(3, 0, "failed", usage=Usage(input=9, output=4), turns=2, child="run_2", id="c1", name="ask")
    assert event(end) == ("child_ended", {**call, "status": "failed", "turns": 2, "tokens": USED["tokens"]})


SEARCH = ProviderCall(
    "s1",
    "web_search",
    "anthropic",
    input=Raw(b'{"query": "x"}'),
    result=Raw(b'[\n {"url": "u"}\n]'),
    opaque=Raw(b"[1]"),
)


def shown_call(note: bytes) -> dict[str, Any]:
    [(_, kind, payload)] = observed(1, PROVIDER_CALL, note, after=0, upto=1)
    assert kind == "tool_result"
    return json.decode(payload)


def test_provider_tool_is_noted_in_our_words_with_its_result() -> None:
    note = bodies.note_body(SEARCH, turn=4)
    assert json.decode(note) == {
        "call": {
            "type": "provider_call",
            "id": "s1",
            "name": "web_search",
            "provider": "anthropic",
            "input": {"query": "x"},
            "result": [{"url": "u"}],
        },
        "turn": 4,
    }
    assert shown_call(note) == {
        "toolUseId": "s1",
        "name": "web_search",
        "toolType": "web_search",
        "provider": "anthropic",
        "status": "completed",
        "ok": True,
        "summary": '[{"url":"u"}]',
        "result": '[{"url":"u"}]',
        "args": {"query": "x"},
        "phase": "end",
        "turn": 4,
    }


def test_note_without_input_and_result_is_shown_all_same() -> None:
    failed = ProviderCall("s1", "web_search", "openai", status="failed")
    shown = shown_call(bodies.note_body(failed, turn=0))
    assert (shown["ok"], shown["result"], shown["args"]) == (False, "", {})


any_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\n\r", max_size=3), inner, max_size=3),
    max_leaves=6,
)
raws = st.one_of(
    any_json.map(lambda value: json.format(json.encode(value), indent=2)), st.binary(min_size=1, max_size=12)
)


@given(raws, raws)
def test_a_note_is_one_line_whatever_the_provider_sent(given_in: bytes, result: bytes) -> None:
    call = ProviderCall("s1", "search", "openai", input=Raw(given_in), result=Raw(result), opaque=Raw(given_in))
    note = bodies.note_body(call, turn=1)
    assert b"\n" not in note
    assert bodies.decode_note(note).call.opaque is UNSET
    shown = shown_call(note)
    text = given_in.decode(errors="replace")
    try:
        expected: Any = json.decode(text)
    except msgspec.DecodeError:
        expected = text
    assert shown["args"] == expected


@pytest.mark.parametrize("sent", [b'"\xff"', b"1e999", b'"\\ud800"', b"01", b"", b" \n", b"[" * 3000 + b"]" * 3000])
def test_non_json_input_is_noted_as_text(sent: bytes) -> None:
    call = ProviderCall("s1", "search", "openai", input=Raw(sent), result=Raw(sent))
    shown = shown_call(bodies.note_body(call, turn=1))
    assert isinstance(shown["args"], str)


def test_notes_stand_in_frames_between_deltas_by_their_own_seq() -> None:
    notes = [bodies.note_body(msgspec.structs.replace(SEARCH, id=f"s{n}"), turn=0) for n in range(3)]
    frame = delta_frames(7, PROVIDER_CALL, b"\n".join(notes), after=7, upto=8)
    head, data = frame.split(b"data: ")
    assert head == b"id: 8\nevent: tool_result\n"
    shown = json.decode(data)
    assert (shown["seq"], shown["type"], shown["toolUseId"], shown["data"]["toolUseId"]) == (
        8,
        "tool_result",
        "s1",
        "s1",
    )
    assert "call" not in shown


def test_deltas_are_shown_as_they_are_stored() -> None:
    joined = b'{"text":"a","turn":0,"attempt":1}\n{"text":"b","turn":0,"attempt":1}'
    for first in (2, 1022, 1_000_000):  # the beginnings of early frames are kept
        expected = (
            b'id: %d\nevent: assistant_delta\ndata: {"seq":%d,"type":"assistant_delta","text":"b","turn":0,"attempt":1,'
            b'"data":{"text":"b","turn":0,"attempt":1}}\n\n'
        ) % (first + 1, first + 1)
        assert delta_frames(first, TEXT_DELTA, joined, after=first, upto=first + 7) == expected
