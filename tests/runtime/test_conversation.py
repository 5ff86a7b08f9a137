"""The conversation that a model gets is what the log says, however it came about."""

from __future__ import annotations

from collections.abc import Sequence

from campaigns.simulation.conversation import naive_conversation, naive_exchange
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from weftline.kernel import bodies
from weftline.kernel.entries import (
    KIND,
    AskedCall,
    AttemptFailed,
    AttemptStarted,
    CallClosed,
    CallOpened,
    Fact,
    FinalForced,
    LoopDetected,
    MessageQueued,
    MessagesTaken,
    ModelRef,
    OutputRejected,
    TurnCompleted,
)
from weftline.messages import Assistant, File, Image, Text, ToolCall, ToolResult, ToolResults, User
from weftline.runtime.conversation import KINDS, Conversation
from weftline.runtime.model_view import blobs_of
from weftline.store.rows import Item

PICTURE = Image("image/png", data="aGk=")
SEEN_IN_WORDS = Text("[An image (image/png) that this model cannot see.]")

Facts = list[tuple[Fact, bytes]]


@st.composite
def stories(draw: st.DrawFn) -> Facts:
    """Facts of a run in an order that a log can have."""
    facts: Facts = []
    queued: list[str] = []
    for turn in range(draw(st.integers(0, 4))):
        for number in range(draw(st.integers(0, 2))):
            queued.append(f"m{turn}.{number}")
            facts.append((MessageQueued(queued[-1], "steer"), bodies.encode(User.of(f"message {queued[-1]}"))))
        if queued and draw(st.booleans()):
            taken = draw(st.integers(1, len(queued)))
            facts.append((MessagesTaken(tuple(queued[:taken])), b""))
            del queued[:taken]
        facts.append((AttemptStarted(turn, 1, ModelRef()), b""))
        if draw(st.booleans()):
            facts.append((AttemptFailed(turn, 1, "server"), bodies.encode(bodies.FailedBody("it broke"))))
            facts.append((AttemptStarted(turn, 2, ModelRef()), b""))
        facts += draw(_turn(turn))
    return facts


@st.composite
def _turn(draw: st.DrawFn, turn: int) -> Facts:
    ids = [f"c{turn}.{index}" for index in range(draw(st.integers(0, 4)))]
    parts = (Text(f"turn {turn}"), *[ToolCall(id, "tool", "{}") for id in ids])
    head = TurnCompleted(turn, 1, calls=tuple([AskedCall(id, "tool", "digest") for id in ids]))
    facts: Facts = [(head, bodies.encode(bodies.TurnBody(Assistant(parts))))]
    for index, id in enumerate(ids):
        facts.append((CallOpened(turn, index, id, "tool", "digest"), bodies.encode(bodies.OpenedBody(Raw(b"{}")))))
    for index in draw(st.permutations(range(len(ids)))):
        is_error = draw(st.booleans())
        closed = CallClosed(turn, index, ids[index], "tool", "failed" if is_error else "returned", is_error=is_error)
        facts.append((closed, bodies.encode(bodies.ClosedBody((Text(draw(st.text())), PICTURE)))))
    said = draw(st.sampled_from(["", "nudge", "final", "again"]))
    if said == "nudge":
        facts.append((LoopDetected(3, False, ("tool",)), bodies.encode(bodies.TextBody("you repeat yourself"))))
    elif said == "final":
        facts.append((LoopDetected(6, True, ("tool",)), b""))
        facts.append((FinalForced("loop_detected"), bodies.encode(bodies.TextBody("answer now"))))
    elif said == "again" and not ids:
        facts.append((OutputRejected(turn), bodies.encode(bodies.TextBody("that is not JSON"))))
    return facts


def rows(facts: Facts) -> list[Item]:
    """As a claim brings them: of the kinds that were asked for, in order."""
    stored = [
        Item(1, KIND[type(head)], bodies.encode(head), body, seq=seq) for seq, (head, body) in enumerate(facts, 1)
    ]
    return [row for row in stored if row.kind in KINDS]


@given(stories(), st.data())
def test_conversation_equals_what_plain_reading_of_log_gives(facts: Facts, data: st.DataObject) -> None:
    given_messages = [User.of("prompt")]
    upto = data.draw(st.integers(0, len(facts)), label="loaded from the log up to")
    conversation = Conversation([*given_messages])
    conversation.replay(rows(facts[:upto]))
    for position, (head, body) in enumerate(facts[upto:], upto):
        conversation.take(head, body)
        if not _is_open(facts[: position + 1]):
            assert conversation.messages == naive_conversation(given_messages, facts[: position + 1])
    assert conversation.messages == naive_conversation(given_messages, facts)


@given(stories(), st.booleans())
def test_run_leaves_its_thread_what_its_log_says(facts: Facts, loaded: bool) -> None:
    history, given_messages = [User.of("earlier"), Assistant((Text("answer"),))], [User.of("prompt")]
    if loaded:
        conversation = Conversation([*history, *given_messages])
        conversation.replay(rows(facts))
    else:
        conversation = Conversation([*given_messages])
        conversation.begin(history, size=0)
        for head, body in facts:
            conversation.take(head, body)
    if any(isinstance(head, TurnCompleted) for head, _ in facts):
        assert conversation.exchange() == naive_exchange(facts)


def test_two_answers_never_follow_each_other_in_a_thread() -> None:
    said = bodies.encode(bodies.TextBody("that is not JSON"))
    facts: Facts = [
        (TurnCompleted(0, 1), bodies.encode(bodies.TurnBody(Assistant((Text("first"),))))),
        (OutputRejected(0), said),
        (MessageQueued("m", "steer"), bodies.encode(User.of("hurry"))),
        (MessagesTaken(("m",)), b""),
        (TurnCompleted(1, 1), bodies.encode(bodies.TurnBody(Assistant((Text("second"),))))),
    ]
    conversation = Conversation([User.of("prompt")])
    conversation.replay(rows(facts))
    assert conversation.exchange() == [User.of("hurry"), Assistant((Text("second"),))]


@given(stories())
def test_messages_are_only_ever_added_at_the_end(facts: Facts) -> None:
    conversation = Conversation([User.of("prompt")])
    before = list(conversation.messages)
    for head, body in facts:
        conversation.take(head, body)
        assert conversation.messages[: len(before)] == before
        before = list(conversation.messages)


def _is_open(facts: Sequence[tuple[Fact, bytes]]) -> bool:
    """Whether the newest turn has calls without a result: no model is asked then."""
    asked = sum(len(head.calls) for head, _ in facts if isinstance(head, TurnCompleted))
    return asked != sum(isinstance(head, CallClosed) for head, _ in facts)


def test_blind_model_reads_that_there_was_an_image() -> None:
    conversation = Conversation([User((Text("Look:"), PICTURE))])
    blind = conversation.view.for_model(vision=False)
    assert blind == [User((Text("Look:"), SEEN_IN_WORDS))]
    conversation.messages.append(ToolResults((ToolResult("1", "camera", (PICTURE,)),)))
    assert conversation.view.for_model(vision=False) is blind
    assert blind[1] == ToolResults((ToolResult("1", "camera", (SEEN_IN_WORDS,)),))


def test_model_that_sees_or_does_not_say_gets_images() -> None:
    conversation = Conversation([User((PICTURE,))])
    assert conversation.view.for_model(vision=True) is conversation.messages
    assert conversation.view.for_model(vision=None) is conversation.messages


def test_content_is_added_for_models_but_not_the_conversation() -> None:
    known, lost = Image("image/png", blob="a" * 64), File("application/pdf", blob="b" * 64)
    conversation = Conversation([User((known, lost, Text("see")))])
    assert blobs_of(conversation.messages) == {known.blob, lost.blob}
    conversation.view.contents |= {"a" * 64: "aGk=", "b" * 64: ""}
    gone = Text("[An attachment (application/pdf) that is no longer stored.]")
    for _ in range(2):
        assert conversation.view.for_model(vision=None) == [
            User((Image("image/png", data="aGk=", blob=known.blob), gone, Text("see")))
        ]
        assert conversation.view.for_model(vision=False) == [User((SEEN_IN_WORDS, gone, Text("see")))]
    assert conversation.messages == [User((known, lost, Text("see")))]
    conversation.begin([User.of("before")], size=6)
    assert [message.text for message in conversation.view.for_model(vision=True) if isinstance(message, User)] == [
        "before",
        f"{gone.text}\nsee",
    ]
