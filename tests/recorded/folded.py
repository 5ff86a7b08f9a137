"""What a recorded log folds to: everything about a run that somebody outside can see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from weftline.kernel import bodies
from weftline.kernel.entries import AttemptStarted, CallClosed, RunCreated, RunEnded, decode_fact
from weftline.kernel.evolve import evolve
from weftline.kernel.state import State
from weftline.messages import Message, joined_text
from weftline.plan import decode_content
from weftline.runtime.conversation import Conversation
from weftline.store.rows import Item


class Request(Struct):
    """The conversation of one model call."""

    model: str
    messages: list[Message]


class Folded(Struct):
    status: str
    entries: dict[str, int]
    """How many there are of each kind."""
    turns: int
    attempts: int
    usage: dict[str, int]
    calls: dict[str, int]
    """How often each tool was called."""
    results: list[tuple[str, str, str]]
    """Of each call: its id, how it was closed, and what the model or its parent reads."""
    awaits: list[str]
    """The questions that are open."""
    memory: dict[str, Any]
    """The state that its tools and hooks share."""
    requests: list[Request]
    conversation: list[Message]
    """What the next request would contain."""
    text: str = ""
    error: str = ""


def fold(items: Sequence[Item], history: Sequence[bytes]) -> Folded:
    """What these entries fold to, with the messages of the run's thread."""
    state, conversation = State(), Conversation([])
    requests: list[Request] = []
    results: list[tuple[str, str, str]] = []
    text = error = ""
    for item in items:
        if not item.head:
            continue
        head = decode_fact.decode(item.head)
        state = evolve(state, head, item.at)
        match head:
            case RunCreated():
                given = decode_content(bodies.decode_created(item.body).plan)
                earlier = [bodies.decode_message(message) for message in history]
                limit = given.model_result_limit_bytes
                conversation = Conversation([*earlier, *given.messages], result_limit_bytes=limit, has_history=True)
                conversation.digests = given.digests
            case AttemptStarted():
                seen = conversation.sides.seen_by_speaker(state.limits.seats, conversation.view.visible)
                requests.append(Request(head.model.vendor_id, list(seen)))
            case CallClosed():
                results.append((head.id, head.how, joined_text(bodies.decode_closed(item.body).parts)))
            case RunEnded():
                ended = bodies.decode_ended(item.body)
                text, error = ended.text, ended.error
            case _:
                pass
        conversation.take(head, item.body)
    assert not state.broken, state.broken
    return Folded(
        status=state.status,
        entries=dict(sorted(Counter([item.kind for item in items]).items())),
        turns=state.turn,
        attempts=state.totals.attempts,
        usage=msgspec.to_builtins(state.totals.usage),
        calls=conversation.calls.counts,
        results=results,
        awaits=sorted(state.questions.open),
        memory=conversation.shared.values,
        requests=requests,
        conversation=list(conversation.view.visible),
        text=text,
        error=error,
    )


def differences(recorded: Any, today: Any, path: str = "") -> list[str]:
    """Where today's value does not have what was recorded. Fields that came later are no difference."""
    if isinstance(recorded, dict) and isinstance(today, dict):
        old, new = cast("dict[str, Any]", recorded), cast("dict[str, Any]", today)
        return [one for name, value in old.items() for one in differences(value, new.get(name), f"{path}.{name}")]
    if isinstance(recorded, list) and isinstance(today, list):
        old, new = cast("list[Any]", recorded), cast("list[Any]", today)
        if len(old) == len(new):
            return [
                one for at, pair in enumerate(zip(old, new, strict=True)) for one in differences(*pair, f"{path}[{at}]")
            ]
    return [] if recorded == today else [f"{path}: {recorded!r} was recorded, today it is {today!r}"]
