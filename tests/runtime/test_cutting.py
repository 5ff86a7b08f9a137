"""What a summary takes the place of: for every history, pairs stay whole and what is kept is word for word the same."""

from __future__ import annotations

import pytest
from campaigns.simulation.conversation import naive_conversation
from hypothesis import given
from hypothesis import strategies as st

from weftline import prompts
from weftline.kernel.bodies import SummaryBody, encode
from weftline.kernel.context import Cause, ContextCompacted, ContextRestored
from weftline.kernel.entries import HistoryPinned
from weftline.messages import Assistant, Image, Message, System, Text, ToolCall, ToolResult, ToolResults, User
from weftline.runtime.conversation import Conversation
from weftline.runtime.model_calls.cutting import Cut, Span, message_bytes, new_cut, transcript, with_summary

words = st.sampled_from(["", "Look at it.", "é" * 40, "long " * 200])
causes = st.sampled_from(["size", "context_window"])


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """As runs leave them: each call with its result, messages of people and of the runtime in between."""
    messages: list[Message] = [System(draw(words)) for _ in range(draw(st.integers(0, 2)))]
    for number in range(draw(st.integers(0, 12))):
        match draw(st.integers(0, 3)):
            case 0:
                messages.append(User.of(draw(words), injected=draw(st.booleans())))
            case 1:
                messages.append(Assistant((Text(draw(words)),)))
            case _:
                ids = [f"c{number}-{index}" for index in range(draw(st.integers(1, 3)))]
                messages.append(Assistant((Text(draw(words)), *[ToolCall(id, "look") for id in ids])))
                messages.append(ToolResults(tuple([ToolResult(id, "look", (Text(draw(words)),)) for id in ids])))
    return [*messages, User.of("And now?")]


def span_of(messages: list[Message], *, keep: int = -1, before: Cut | None = None) -> Span:
    conversation = Conversation(messages)
    ids = [one.id for message in messages if isinstance(message, ToolResults) for one in message.results]
    return Span(messages, conversation.own_input, {ids[keep]} if 0 <= keep < len(ids) else (), before)


def are_paired(messages: list[Message]) -> bool:
    """Whether each message with calls is followed by exactly their results, and no results come without."""
    waiting: list[str] = []
    for message in messages:
        found = [one.id for one in message.results] if isinstance(message, ToolResults) else []
        if found != waiting:
            return False
        waiting = [call.id for call in message.calls] if isinstance(message, Assistant) else []
    return not waiting


@given(histories(), st.integers(0, 4), causes, st.integers(-1, 4))
def test_cuts_leave_whole_pairs_and_no_empty_request(
    messages: list[Message], turns: int, cause: Cause, keep: int
) -> None:
    assert are_paired(messages)
    span = span_of(messages, keep=keep)
    cut = new_cut(span, keep_turns=turns, cause=cause)
    if cut is None:
        return
    summary = SummaryBody("They talked.", cut.kept)
    shown = with_summary(messages, cut.upto, summary)
    assert are_paired(shown)
    assert len(shown) <= len(messages)
    made = [message for message in shown if not any(message is one for one in messages)]
    assert made == [User.of(prompts.compaction.summary("They talked."), injected=True)]
    # What is left is the same, in the same order.
    left = [message for message in shown if message is not made[0]]
    positions = [next(at for at, one in enumerate(messages) if one is message) for message in left]
    assert positions == sorted(positions)
    assert positions == [at for at in range(len(messages)) if at >= cut.upto or at in cut.kept]
    assert shown[-1] is messages[-1], "what the run was asked stays"
    leading = [message for message in messages if isinstance(message, System)]
    assert shown[: len(leading)] == leading
    kept_results = [one.id for message in left if isinstance(message, ToolResults) for one in message.results]
    assert set(span.keep_calls) <= set(kept_results)


@given(histories(), st.integers(0, 4))
def test_first_message_and_latest_turns_are_kept_as_they_are(messages: list[Message], turns: int) -> None:
    cut = new_cut(span_of(messages), keep_turns=turns, cause="size")
    if cut is None:
        return
    first = next(at for at, message in enumerate(messages) if isinstance(message, User))
    assert not cut.left_out(first)
    answers = [at for at, message in enumerate(messages) if isinstance(message, Assistant)]
    assert all(at >= cut.upto for at in answers[len(answers) - turns :])


@given(histories(), histories(), st.integers(0, 4), causes)
def test_question_of_a_run_stays_however_long_it_works(
    begun: list[Message], since: list[Message], turns: int, cause: Cause
) -> None:
    own = Conversation(begun).own_input
    messages = [*begun, *[message for message in since[:-1] if not isinstance(message, System)]]
    cut = new_cut(Span(messages, own), keep_turns=turns, cause=cause)
    assert messages[own[-1]] is begun[-1]
    if cut is not None:
        assert not [at for at in own if cut.left_out(at)]
        assert are_paired(with_summary(messages, cut.upto, SummaryBody("So far.", cut.kept)))


@given(histories(), st.integers(0, 4))
def test_refused_request_loses_half_of_itself_or_everything(messages: list[Message], turns: int) -> None:
    span = span_of(messages)
    cut = new_cut(span, keep_turns=turns, cause="context_window")
    size = sum(map(message_bytes, messages))
    if cut is not None and span.size(cut) > size // 2:
        assert all(message is messages[-1] or not isinstance(message, Assistant) for message in messages[cut.upto :])
    if cut is None:
        assert all(isinstance(message, User | System) for message in messages)


@given(histories(), histories(), st.integers(0, 3), causes)
def test_a_second_summary_stands_for_the_first_one_too(
    earlier: list[Message], later: list[Message], turns: int, cause: Cause
) -> None:
    before = new_cut(span_of(earlier), keep_turns=turns, cause=cause)
    messages = [*earlier, *[message for message in later if not isinstance(message, System)]]
    span = span_of(messages, before=before)
    cut = new_cut(span, keep_turns=turns, cause=cause)
    if before is None or cut is None:
        return
    assert cut.upto >= before.upto
    fresh = span.fresh(cut)
    assert fresh
    assert not [at for at in fresh if before.left_out(at)], "nothing is read twice"


@given(histories(), st.integers(0, 3), st.integers(0, 6))
def test_a_conversation_shows_what_its_log_says(messages: list[Message], turns: int, pinned: int) -> None:
    history, own = messages[:pinned], messages[pinned:]
    conversation = Conversation([*own])
    conversation.begin(history, size=0)
    blind = conversation.view.for_model(vision=False)
    facts: list[tuple[HistoryPinned | ContextCompacted | ContextRestored, bytes]] = [(HistoryPinned(len(history)), b"")]
    cut = new_cut(span_of(messages), keep_turns=turns, cause="size")
    if cut is not None:
        facts.append((ContextCompacted(1, cut.upto, 9, 4, size=16), encode(SummaryBody("So far.", cut.kept, "m"))))
    for head, body in facts:
        conversation.take(head, body)
    assert conversation.view.visible == naive_conversation(own, facts, history=history)
    assert conversation.view.for_model(vision=None) is conversation.view.visible
    assert conversation.messages == messages
    assert conversation.view.for_model(vision=False) == conversation.view.visible
    if cut is not None:
        assert conversation.size == 16
        assert conversation.view.for_model(vision=False) is not blind, "a list of messages only ever grows"
    facts.append((ContextRestored(), b""))
    conversation.take(*facts[-1])
    assert conversation.view.visible is conversation.messages
    assert conversation.size == 0
    assert naive_conversation(own, facts, history=history) == messages


@given(histories(), st.integers(200, 20_000))
def test_a_transcript_is_never_larger_than_it_may_be(messages: list[Message], max_bytes: int) -> None:
    text = transcript(messages, summary="They met.", max_bytes=max_bytes)
    assert len(text.encode()) <= max_bytes
    assert text


def test_a_transcript_says_who_said_what() -> None:
    messages: list[Message] = [
        System("Be kind."),
        User((Text("Look."), Image("image/png", url="https://x"))),
        Assistant((Text("I shall."), ToolCall("c1", "look", '{"at": "x"}'))),
        ToolResults((ToolResult("c1", "look", (Text("Seen."),), is_error=True),)),
        User.of("Hurry.", injected=True),
    ]
    assert transcript(messages, summary="They met.", max_bytes=10_000) == (
        "Summary of what came before: They met.\nInstructions: Be kind.\nUser: Look.\n[attachment: image/png]\n"
        'Assistant: I shall.\nAssistant calls look: {"at": "x"}\nlook failed: Seen.\nNote to the assistant: Hurry.'
    )


@pytest.mark.parametrize(("limit", "expected"), [(30_000, "a" * 9_000), (4_000, "characters left out")])
def test_long_parts_of_a_transcript_are_cut_in_the_middle(limit: int, expected: str) -> None:
    text = transcript([User.of("a" * 9_000 + "the end")], max_bytes=limit)
    assert expected in text
    assert text.endswith("the end")
