"""What each kind of event says, and when it comes."""

from __future__ import annotations

import asyncio

import pytest

from weftline.events.classes import RETRYABLE
from weftline.events.wire import ERROR_CLASSES

from .kit import Api, local_tool, of_type, types

ECHO = {"kind": "mantyx_plugin", "name": "echo"}


@pytest.mark.requirement("wire.event.deltas", "wire.event.assistant_message", "wire.event.result")
async def test_plain_answer_streams_its_pieces_then_message_then_result(api: Api) -> None:
    run = await api.start("hello")
    frames = await api.events(run)
    assert types(frames, without=()) == ["started", *["assistant_delta"] * 3, "assistant_message", "result"]
    assert frames[0].payload == {"runId": run}
    assert [frame["text"] for frame in of_type(frames, "assistant_delta")] == ["Hel", "lo ", "wörld"]
    assert frames[-2].payload == {"text": "Hello wörld", "turn": 0, "finishReason": "end_turn"}
    assert frames[-1].payload == {
        "subtype": "success",
        "ok": True,
        "text": "Hello wörld",
        "finishReason": "end_turn",
        "tokens": {"inputTokens": 10, "cachedTokens": 0, "reasoningTokens": 0, "outputTokens": 5},
        "turns": 1,
        "attempts": 1,
        "model": {"id": "scripted:hello", "provider": "scripted", "vendorModelId": "hello"},
    }


@pytest.mark.requirement("wire.event.thinking")
async def test_thinking_is_shown_only_on_request(api: Api) -> None:
    for level, thoughts in ((None, []), ("off", []), (0, []), ("low", ["hm", "aha"]), (1, ["hm", "aha"])):
        frames = await api.play("thoughts", reasoningLevel=level)
        assert [frame["text"] for frame in of_type(frames, "thinking_delta")] == thoughts
        assert of_type(frames, "assistant_message")[0]["text"] == "done" == frames[-1]["text"]


@pytest.mark.requirement("wire.event.server_tool", "wire.event.assistant_message")
async def test_a_server_tool_is_announced_and_its_result_shown(api: Api) -> None:
    frames = await api.play("echo", tools=[ECHO])
    assert types(frames) == [
        "started",
        "assistant_message",
        "tool_call",
        "tool_result",
        "assistant_message",
        "result",
    ]
    first, call, result = frames[2], frames[3], frames[4]
    use = call["toolUseId"]
    assert first.payload == {
        "text": "let me see",
        "turn": 0,
        "finishReason": "tool_use",
        "toolCalls": [{"id": use, "name": "echo", "input": {"text": "said"}}],
    }
    args = {"text": "said"}
    told = {"toolUseId": use, "name": "echo", "input": args, "args": args, "turn": 0, "displayHint": "Echo"}
    assert call.payload == told
    shown = dict(result.payload)
    assert shown.pop("telemetry").keys() == {"durationMs"}
    assert shown == {
        "toolUseId": use,
        "name": "echo",
        "ok": True,
        "summary": "echo said",
        "result": "echo said",
        "args": args,
        "phase": "end",
        "how": "returned",
    }
    assert frames[-1]["turns"] == 2 and frames[-1]["text"] == "heard echo said"


@pytest.mark.parametrize(("script", "says"), [("boom", "there was a fire"), ("ghost", "Unknown tool: ghost")])
async def test_failing_or_unknown_tool_is_an_error_result(api: Api, script: str, says: str) -> None:
    frames = await api.play(script, tools=[{"kind": "mantyx_plugin", "name": "boom"}])
    result = of_type(frames, "tool_result")[0]
    assert result["ok"] is False and says in result["result"]
    assert frames[-1]["ok"] is True and says in frames[-1]["text"]


@pytest.mark.requirement("wire.event.size")
async def test_large_result_is_cut_on_stream_and_whole_for_model(api: Api) -> None:
    frames = await api.play("big", tools=[{"kind": "mantyx_plugin", "name": "big"}])
    result = of_type(frames, "tool_result")[0]
    assert len(result["result"].encode()) == 100 * 1024 and len(result["summary"]) <= 140
    assert frames[-1]["text"] == "250000"


@pytest.mark.requirement("wire.event.size", "wire.sse.hybrid")
async def test_payload_over_megabyte_is_sent_without_its_nested_copy(api: Api) -> None:
    card = {"name": "huge", "notes": "n" * 1_100_000}
    run = await api.start("delegate", tools=[{"kind": "a2a_local", "name": "peer", "agentCard": card}])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
    assert "data" not in call.body and call["agentCard"] == card
    await api.cancel(run)


@pytest.mark.requirement("wire.event.truncation", "wire.event.error")
async def test_answer_cut_at_its_limit_is_failure_that_keeps_text(api: Api) -> None:
    run = await api.start("cut")
    frames = await api.events(run)
    message, error = frames[-2], frames[-1]
    assert message["text"] == "so far so good" and message["finishReason"] == "max_tokens"
    assert error.type == "error" and error["code"] == error["errorClass"] == "truncation"
    assert error["error"].startswith("Model output was truncated (stop_reason=max_tokens)")
    assert error["partialText"] == "so far so good" and error["retryable"] is False
    assert error["finishReason"] == "max_tokens"
    shown = await api.snapshot(run)
    assert shown["status"] == "failed" and shown["finalText"] == "so far so good"
    assert shown["failureReason"] == {"errorClass": "truncation", "finishReason": "max_tokens"}


@pytest.mark.requirement("wire.event.truncation")
async def test_a_truncation_that_a_provider_raises_keeps_the_text_too(api: Api) -> None:
    run = await api.start("cut_as_error", tools=[ECHO])
    error = (await api.events(run))[-1]
    assert (error["errorClass"], error["partialText"], error["finishReason"]) == ("truncation", "cut of", "max_tokens")
    shown = await api.snapshot(run)
    assert shown["finalText"] == "cut of"
    assert shown["failureReason"] == {"errorClass": "truncation", "finishReason": "max_tokens"}


@pytest.mark.requirement("wire.event.error")
async def test_answer_that_fails_in_middle_keeps_text_so_far(api: Api) -> None:
    run = await api.start("broken_off", tools=[ECHO])
    error = (await api.events(run))[-1]
    assert (error.type, error["code"], error["partialText"]) == ("error", "auth", "half an answer")
    # The last complete turn ended in a call, which says nothing about this one.
    assert "finishReason" not in error.body
    shown = await api.snapshot(run)
    assert (shown["finalText"], shown["errorCode"]) == (None, "auth")
    twice = (await api.play("broken_off_twice"))[-1]
    assert (twice["code"], twice["partialText"], twice["attempts"]) == ("auth", "half of it", 2)
    late = (await api.play("late_failure", tools=[ECHO]))[-1]
    assert late["code"] == "auth" and "partialText" not in late.body


@pytest.mark.requirement("wire.event.error", "wire.event.error_class")
async def test_a_failing_model_ends_the_run_with_its_class(api: Api) -> None:
    classes = ("rate_limit", "overloaded", "server", "context_window", "invalid_request", "auth", "timeout", "unknown")
    logs = await asyncio.gather(*(api.play(f"fails_{cls}") for cls in classes))
    for cls, frames in zip(classes, logs, strict=True):
        assert types(frames) == ["started", "error"]
        error = frames[-1]
        assert error["code"] == error["errorClass"] == cls and cls in ERROR_CLASSES
        assert error["error"] == f"the model says {cls}" and error["turns"] == 1
        assert error["retryable"] is (cls in RETRYABLE)
        assert error["model"]["id"] == f"scripted:fails_{cls}"
    assert {"rate_limit", "overloaded", "server", "timeout", "upstream_deadline"} == RETRYABLE


@pytest.mark.requirement("wire.event.deltas")
async def test_retried_turn_tells_clients_to_drop_its_output(api: Api) -> None:
    frames = await api.play("flaky")
    assert types(frames, without=()) == [
        "started",
        "assistant_delta",
        "turn_restarted",
        "assistant_delta",
        "assistant_delta",
        "assistant_message",
        "result",
    ]
    assert frames[2].payload == {"turn": 0, "attempt": 2, "reason": "overloaded"}
    kept = [frame["text"] for frame in of_type(frames, "assistant_delta") if frame["attempt"] == 2]
    assert "".join(kept) == frames[-2]["text"] == frames[-1]["text"] == "whole answer"
    assert frames[-1]["tokens"] == {"inputTokens": 17, "cachedTokens": 0, "reasoningTokens": 0, "outputTokens": 8}
    assert (frames[-1]["turns"], frames[-1]["attempts"]) == (1, 2)


@pytest.mark.requirement("wire.usage.tokens", "wire.usage.model")
async def test_usage_is_summed_in_every_kind_of_ending(api: Api) -> None:
    counted = (await api.play("counted", tools=[ECHO]))[-1]
    assert counted["tokens"] == {"inputTokens": 250, "cachedTokens": 130, "reasoningTokens": 5, "outputTokens": 28}
    assert counted["turns"] == 2 and "reasoningEffort" not in counted["model"]
    failed = (await api.play("late_failure", tools=[ECHO]))[-1]
    assert failed.type == "error" and failed["turns"] == 2 and failed["tokens"]["inputTokens"] >= 10
    run = await api.start("stuck")
    await api.cancel(run)
    shown = await api.snapshot(run)
    assert all(isinstance(count, int) and count >= 0 for count in shown["tokens"].values())
    assert (await api.play("hello"))[-1]["turns"] == 1


async def test_answer_that_is_refusal_says_so_to_end(api: Api) -> None:
    run = await api.start("refused")
    frames = await api.events(run)
    assert frames[-2]["finishReason"] == frames[-1]["finishReason"] == "refusal" and frames[-1]["ok"] is True
    assert (await api.snapshot(run))["finishReason"] == "refusal"
    assert (await api.play("hello"))[-1]["finishReason"] == "end_turn"
    running = await api.start("stuck")
    assert (await api.snapshot(running))["finishReason"] is None


async def test_turn_without_text_is_success_with_empty_text(api: Api) -> None:
    frames = await api.play("nothing")
    assert types(frames, without=()) == ["started", "assistant_message", "result"]
    assert frames[-1]["text"] == "" and frames[-1]["subtype"] == "success"


@pytest.mark.requirement("wire.event.local_timeout")
async def test_client_that_does_not_answer_in_time_ends_run(api: Api) -> None:
    run = await api.start("lookup", tools=[local_tool()], budgets={"localToolTimeoutMs": 50})
    frames = await api.events(run)
    assert types(frames) == ["started", "assistant_message", "local_tool_call", "local_tool_result_in", "result"]
    use = frames[2]["toolUseId"]
    said = "Timed out waiting for local tool result"
    assert frames[3].payload == {
        "toolUseId": use,
        "name": "lookup",
        "error": said,
        "how": "timeout",
        "failure": {"kind": "timeout", "recovery": "replan"},
        "telemetry": {"durationMs": 0},
    }
    end = frames[-1]
    assert (end["subtype"], end["ok"], end["code"], end["errorClass"]) == (
        "error_local_tool_timeout",
        False,
        "local_timeout",
        "local_timeout",
    )
    assert end["error"] == said
    assert (await api.answer(run, use, result="late")).json["code"] == "run_terminal"
    shown = await api.snapshot(run)
    assert shown["status"] == "failed" and shown["failureReason"]["errorClass"] == "local_timeout"


@pytest.mark.requirement("wire.event.local_timeout_report")
async def test_run_may_ask_to_continue_after_a_slow_client(api: Api) -> None:
    budgets = {"localToolTimeoutMs": 50, "onLocalToolTimeout": "report"}
    run = await api.start("twice", tools=[local_tool()], budgets=budgets)
    async with api.stream(run) as stream:
        first = await stream.until("local_tool_call")
        late = await stream.until("local_tool_result_in")
        assert (late["toolUseId"], late["how"]) == (first["toolUseId"], "timeout")
        assert late["error"] == "Timed out waiting for local tool result"
        refused = await api.answer(run, first["toolUseId"], result="late")
        assert (refused.status, refused.json["code"]) in ((404, "unknown_tool_use"), (409, "run_terminal"))
        frames = await stream.rest()
    assert frames[-1]["subtype"] == "success"
    assert frames[-1]["text"].count("Timed out waiting for local tool result") == 2
