"""No model request is missing from the log except those in flight at a kill, and each contained exactly what the log
has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from campaigns.simulation.conversation import naive_conversation
from campaigns.torture.ledger import Asked, Ledger, Line
from campaigns.torture.logs import RunLog
from weftline.kernel import bodies
from weftline.kernel.entries import AttemptStarted, CancelRequested, TurnCompleted
from weftline.messages import Assistant, Message, System, ToolResults, User


def check_model(ledger: Ledger, logs: Sequence[RunLog]) -> Iterator[str]:
    """The faults found, in words."""
    by_order: dict[int, list[Asked]] = defaultdict(list)
    for asked in ledger.asked:
        by_order[asked.order].append(asked)
    for log in logs:
        mine = by_order.pop(log.order, [])
        yield from _in_the_log(ledger, log, mine)
        yield from _answered_by_somebody(log, mine)
    for number, mine in by_order.items():
        yield f"order {number}: {len(mine)} requests, and there is no run"


def _in_the_log(ledger: Ledger, log: RunLog, mine: list[Asked]) -> Iterator[str]:
    """One request per run may be sent before its entry is durable. So a kill, or a disk that refuses the entry, leaves
    at most one request that the log does not know, or that contained results lost with it.
    """
    known = Counter((ledger.life_at(entry.at_us).number, fact.turn) for entry, fact in log.of(AttemptStarted))
    conversations = _conversations(log)
    unknown: Counter[int] = Counter()
    for place, count in Counter((asked.life, asked.turn) for asked in mine).items():
        unknown[place[0]] += max(0, count - known[place])
    other: Counter[int] = Counter()
    differences: dict[int, str] = {}
    for asked in mine:
        right = conversations.get(asked.turn)
        if asked.messages != right:
            other[asked.life] += 1
            differences[asked.life] = _difference(asked, right)
    for life in ledger.lives:
        if unknown[life.number] > life.may_lose:
            yield f"run {log.run}: {unknown[life.number]} requests of life {life.number} are not in the log ({life})"
        if other[life.number] > life.may_lose:
            yield f"run {log.run}: {differences[life.number]} (life {life})"


def _conversations(log: RunLog) -> dict[int, tuple[Line, ...]]:
    """What the model must be sent, by turn."""
    facts = [(entry.fact, entry.body) for entry in log.entries]
    found: dict[int, tuple[Line, ...]] = {}
    for position, (fact, _) in enumerate(facts):
        if isinstance(fact, AttemptStarted):
            right = naive_conversation(log.given, facts[:position], history=log.history)
            found.setdefault(fact.turn, tuple(_lines(right)))
    return found


def _lines(messages: Sequence[Message]) -> Iterator[Line]:
    for message in messages:
        match message:
            case System(content):
                yield ("system", content)
            case User():
                yield ("user", message.text)
            case Assistant():
                yield (
                    "assistant",
                    message.text,
                    *[part for call in message.calls for part in (call.id, call.name, call.args)],
                )
            case ToolResults(results):
                for result in results:
                    yield ("tool", result.text, result.id)


def _difference(asked: Asked, right: tuple[Line, ...] | None) -> str:
    who = f"request {asked.number} (turn {asked.turn})"
    if right is None:
        return f"{who} is of a turn that the log does not have"
    for position, (mine, should) in enumerate(zip(asked.messages, right, strict=False)):
        if mine != should:
            return f"{who}: message {position} is {_brief(mine)} and should be {_brief(should)}"
    return f"{who}: has {len(asked.messages)} messages and should have {len(right)}"


def _answered_by_somebody(log: RunLog, mine: list[Asked]) -> Iterator[str]:
    """Every turn is the answer to one of the requests, which its text identifies."""
    whole = {asked.number: asked for asked in mine}
    cancelled = any(True for _ in log.of(CancelRequested))
    for entry, fact in log.of(TurnCompleted):
        text = bodies.decode_turn(entry.body).message.text
        numbers = {int(word.partition(":")[0]) for word in text.split()}
        asked = whole.get(numbers.pop()) if len(numbers) == 1 else None
        if asked is None or asked.turn != fact.turn or (asked.ended != "whole" and not cancelled):
            yield f"run {log.run}: turn {fact.turn} is not an answer of the model's: {text[:80]!r}"


def _brief(line: Line) -> str:
    text = str(line)
    return text if len(text) <= 300 else f"{text[:150]} … {text[-150:]}"
