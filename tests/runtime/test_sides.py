"""What each side of a run reads of what was said."""

from __future__ import annotations

import pytest

from weftline.kernel.seats import SeatTaken
from weftline.messages import Assistant, Message, Text, ToolCall, ToolResult, ToolResults, User
from weftline.prompts.seats import BEGIN, NOTHING_SAID
from weftline.runtime.sides import Side, Sides

CALL = Assistant((Text("Let me look."), ToolCall("1", "look", "{}")))
RESULT = ToolResults((ToolResult("1", "look", (Text("found"),)),))


def answer(text: str) -> Assistant:
    return Assistant((Text(text),))


def shown(messages: list[Message]) -> list[str]:
    """The messages as `role: text`, with `+` for calls."""
    found: list[str] = []
    for one in messages:
        match one:
            case User():
                found.append(f"user: {one.text}")
            case Assistant():
                found.append(f"assistant: {one.text}{'+' if one.calls else ''}")
            case _:
                found.append("results")
    return found


class Talk:
    def __init__(self, *before: Message) -> None:
        self.sides, self.messages = Sides(), list(before)

    def turn(self, side: Side, *messages: Message, said: str = "") -> None:
        self.sides.take(SeatTaken(0, "answered", side=side), said, at=len(self.messages))
        self.messages += messages

    def seen_by(self, side: Side) -> list[str]:
        return shown(self.sides.seen_by(side, self.messages))


@pytest.mark.requirement("thread.side.view")
def test_calls_of_the_other_side_are_left_out() -> None:
    talk = Talk(User.of("Go."))
    talk.turn("a", CALL, RESULT, answer("I found it."))
    talk.turn("b")
    first = ["user: Go.", "assistant: Let me look.+", "results", "assistant: I found it."]
    assert talk.seen_by("a") == first
    assert talk.seen_by("b") == [f"user: {BEGIN}", "assistant: Go.", "user: Let me look.", "user: I found it."]


@pytest.mark.requirement("thread.side.first")
def test_first_side_begins_without_a_message() -> None:
    talk = Talk()
    talk.turn("a")
    assert talk.seen_by("a") == [f"user: {BEGIN}"]


@pytest.mark.requirement("thread.side.first")
def test_side_turn_without_text_is_said_to_have_none() -> None:
    talk = Talk(User.of("Go."))
    talk.turn("a", answer("Well?"))
    talk.turn("b", Assistant(()))
    talk.turn("a")
    assert talk.seen_by("a") == ["user: Go.", "assistant: Well?", f"user: {NOTHING_SAID}"]


def test_side_that_speaks_twice_hears_nothing_in_between() -> None:
    talk = Talk(User.of("Go."))
    talk.turn("a", answer("One."))
    talk.turn("a", answer("Two."))
    assert talk.seen_by("a") == ["user: Go.", "assistant: One.", f"user: {NOTHING_SAID}", "assistant: Two."]
    talk.turn("b")
    assert talk.seen_by("b")[-2:] == ["user: One.", "user: Two."]


def test_call_that_ended_a_turn_is_heard_as_its_text() -> None:
    talk = Talk(User.of("Go."))
    talk.turn("a", CALL, RESULT)
    talk.turn("b", said="I rest.")
    assert talk.seen_by("b")[-2:] == ["user: Let me look.", "user: I rest."]
    assert talk.seen_by("a") == ["user: Go.", "assistant: Let me look.+", "results"]


def test_what_is_said_to_one_side_is_not_heard_by_the_other() -> None:
    talk = Talk(User.of("Go."))
    talk.turn("a", answer("Hm."), User.of("Go on.", injected=True), answer("Done."))
    talk.turn("b", User.of("From outside."))
    assert talk.seen_by("b")[-3:] == ["user: Hm.", "user: Done.", "user: From outside."]
    assert talk.seen_by("a")[-1] == "user: From outside."


def test_thread_keeps_the_first_side_as_it_is() -> None:
    talk = Talk(User.of("Go."))
    talk.turn("a", CALL, RESULT, answer("Yes."))
    talk.turn("b", CALL, RESULT, answer("No."))
    kept = ["user: Go.", "assistant: Let me look.+", "results", "assistant: Yes.", "user: Let me look.", "user: No."]
    assert shown(talk.sides.as_kept(talk.messages, 0)) == kept
