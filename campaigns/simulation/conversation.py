"""M1: the conversation that a model must get, derived from the log in the simplest way.

It shares no code with `weftline.runtime.conversation` and ignores speed: it rereads all facts of the log for every
message.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.json import decode

from campaigns.simulation.trace import Violation, require
from weftline import prompts
from weftline.kernel import bodies
from weftline.kernel.context import ContextCompacted, ContextRestored
from weftline.kernel.entries import (
    AwaitClosed,
    AwaitOpened,
    CallClosed,
    CallGated,
    Fact,
    FinalForced,
    HistoryPinned,
    LoopDetected,
    MessageQueued,
    MessagesTaken,
    OutputRejected,
    ResultsOverBudget,
    TurnCompleted,
)
from weftline.messages import Assistant, Message, Text, ToolResult, ToolResults, User


def naive_conversation(
    given: Sequence[Message], facts: Sequence[tuple[Fact, bytes]], *, history: Sequence[Message] = ()
) -> list[Message]:
    """The conversation after these facts of a run; `given` are the messages of its plan, `history` those of its
    thread.
    """
    pinned = next((head.upto for head, _ in facts if isinstance(head, HistoryPinned)), 0)
    messages: list[Message] = [*history[:pinned], *given]
    for position, (head, body) in enumerate(facts):
        match head:
            case TurnCompleted():
                messages.append(bodies.decode_turn(body).message)
            case CallClosed() if not head.parent and _is_last_of_its_turn(facts, position, head.turn):
                messages.append(ToolResults(tuple(_results(facts, head.turn))))
                messages += [User.of(text, injected=True) for text in _steering(facts, head.turn)]
            case LoopDetected() | FinalForced() | OutputRejected() | ResultsOverBudget() if body:
                text = bodies.decode_text(body).text
                messages += [User.of(text, injected=True)] if text else []
            case MessagesTaken():
                messages += [_queued(facts, identity) for identity in head.ids]
            case AwaitClosed() if head.id in _clarifications(facts):
                messages += _clarified(body)
            case _:
                pass
    return _compacted(messages, facts)


def _compacted(messages: list[Message], facts: Sequence[tuple[Fact, bytes]]) -> list[Message]:
    """With the latest summary, unless it was undone, in place of the first message that it replaces."""
    compactions = [(head, body) for head, body in facts if isinstance(head, ContextCompacted | ContextRestored)]
    if not compactions or isinstance(compactions[-1][0], ContextRestored):
        return messages
    head, summary = compactions[-1][0], bodies.decode_summary(compactions[-1][1])
    gone = [at for at in range(head.upto) if at not in summary.kept]
    marked = list(enumerate(messages))
    kept = [(at, message) for at, message in marked if at not in gone]
    if gone:
        kept.append((gone[0], User.of(prompts.compaction.summary(summary.text), injected=True)))
    return [message for _, message in sorted(kept, key=lambda one: one[0])]


def naive_exchange(facts: Sequence[tuple[Fact, bytes]]) -> list[Message]:
    """What a run that succeeded with these facts adds to its thread, after its own input."""
    messages: list[Message] = []
    text, answer = "", ""
    for head, body in facts:
        match head:
            case TurnCompleted():
                text = _text_of(bodies.decode_turn(body).message)
                answer = "" if head.calls else text
            case MessagesTaken():
                messages += [Assistant((Text(answer),))] if answer else []
                messages += [_queued(facts, identity) for identity in head.ids]
                answer = ""
            case AwaitClosed() if head.id in _clarifications(facts):
                messages += _clarified(body)
            case LoopDetected() | FinalForced() | OutputRejected() if body:
                answer = ""
            case _:
                pass
    return [*messages, Assistant((Text(text),))]


def _text_of(message: Message) -> str:
    assert isinstance(message, Assistant)
    return message.text


def _asked(facts: Sequence[tuple[Fact, bytes]], turn: int) -> int:
    return next(len(head.calls) for head, _ in facts if isinstance(head, TurnCompleted) and head.turn == turn)


def _is_last_of_its_turn(facts: Sequence[tuple[Fact, bytes]], position: int, turn: int) -> bool:
    upto = facts[: position + 1]
    closed = [head for head, _ in upto if isinstance(head, CallClosed) and head.turn == turn and not head.parent]
    return len(closed) == _asked(facts, turn)


def _steering(facts: Sequence[tuple[Fact, bytes]], turn: int) -> list[str]:
    """The steering texts of gates after the results of a turn."""
    gated = [body for head, body in facts if isinstance(head, CallGated) and head.turn == turn]
    return [text for body in gated if (text := bodies.decode_gated(body).steer)]


def _results(facts: Sequence[tuple[Fact, bytes]], turn: int) -> list[ToolResult]:
    of_turn = [(head, body) for head, body in facts if isinstance(head, CallClosed) and head.turn == turn]
    closed = [(head, body) for head, body in of_turn if not head.parent]  # no model reads what code gets
    closed.sort(key=lambda one: one[0].index)
    return [ToolResult(head.id, head.name, bodies.decode_closed(body).parts, head.is_error) for head, body in closed]


def _clarifications(facts: Sequence[tuple[Fact, bytes]]) -> set[str]:
    return {head.id for head, _ in facts if isinstance(head, AwaitOpened) and head.kind == "clarification"}


def _clarified(body: bytes) -> list[Message]:
    """A person's answer about something that was missing."""
    answer = bodies.decode_answer(body) if body else bodies.AnswerBody()
    text = answer.reason if answer.value is UNSET else decode(answer.value, type=str)
    return [User.of(text)] if text else []


def _queued(facts: Sequence[tuple[Fact, bytes]], identity: str) -> Message:
    return next(
        bodies.decode_message(body) for head, body in facts if isinstance(head, MessageQueued) and head.id == identity
    )


def check_conversation(asked: Sequence[Message], expected: Sequence[Message], who: str) -> None:
    """M1: a request contains every call's one result, in order, and nothing but what is in the log.

    A reminder after the results is for one request, and is not part of the conversation.
    """
    if asked and _is_reminder(asked[-1]):
        asked = asked[:-1]
    if list(asked) == list(expected):
        return
    check_results(asked, expected, who)
    for position, (mine, right) in enumerate(zip(asked, expected, strict=False)):
        require("M1", mine == right, f"{who}: message {position} is {mine} and should be {right}")
    raise Violation("M1", f"{who}: has {len(asked)} messages and should have {len(expected)}: {asked}")


def _is_reminder(message: Message) -> bool:
    return isinstance(message, User) and message.injected and message.text.startswith("<system-reminder>")


def check_results(asked: Sequence[Message], expected: Sequence[Message], who: str) -> None:
    """Every call of an earlier turn has exactly the result that the log closed it with."""
    right = {
        result.id: result for message in expected if isinstance(message, ToolResults) for result in message.results
    }
    calls: list[str] = []
    for message in asked:
        match message:
            case Assistant():
                require("M1", not calls, f"{who}: {calls} have no result before the next turn")
                calls = [call.id for call in message.calls]
            case ToolResults():
                found = [result.id for result in message.results]
                require("M1", found == calls, f"{who}: the calls {calls} have results of {found}")
                for result in message.results:
                    known = right.get(result.id)
                    require("M1", result == known, f"{who}: {result.id} was closed with {known}, and is {result}")
                calls = []
            case _:
                pass
