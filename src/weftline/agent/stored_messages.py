"""The messages of a run as its log has them, also before it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from weftline.kernel import bodies
from weftline.kernel.entries import (
    KIND,
    CallAsked,
    CallClosed,
    CallGated,
    LoopDetected,
    MessageQueued,
    MessagesTaken,
    OutputRejected,
    ResultsOverBudget,
    RunCreated,
    TurnCompleted,
    decode_fact,
)
from weftline.messages import Assistant, Message, System, ToolResults, Usage, User
from weftline.plan import decode_content
from weftline.runtime.conversation import Conversation
from weftline.store.rows import Item

KINDS = tuple(
    [
        KIND[fact]
        for fact in (
            RunCreated,
            TurnCompleted,
            CallAsked,
            CallGated,
            CallClosed,
            LoopDetected,
            OutputRejected,
            ResultsOverBudget,
            MessageQueued,
            MessagesTaken,
        )
    ]
)
"""The kinds of facts that messages are built from."""


class SavedMessage(Struct, frozen=True, kw_only=True):
    """A message of a run. It is available when its turn has ended, and never changes after that."""

    id: str
    run_id: str
    content: Message
    created_at: datetime
    usage: Usage | None = None
    """The usage of the model call that produced it."""

    @property
    def role(self) -> Literal["system", "user", "assistant", "tool"]:
        match self.content:
            case System():
                return "system"
            case User():
                return "user"
            case Assistant():
                return "assistant"
            case ToolResults():
                return "tool"


def stored_messages(run_id: str, facts: Sequence[Item]) -> list[SavedMessage]:
    """Builds the run's own messages from its facts of these `KINDS`, oldest first.

    History given with the prompt is left out.
    """
    conversation, given = Conversation([]), 0
    saved: list[SavedMessage] = []
    for stored in facts:
        head = decode_fact.decode(stored.head)
        before = len(conversation.messages)
        if isinstance(head, RunCreated):
            plan = decode_content(bodies.decode_created(stored.body).plan)
            conversation, before, given = Conversation([*plan.messages]), plan.given, plan.given
        else:
            conversation.take(head, stored.body)
        for index in range(before, len(conversation.messages)):
            content = conversation.messages[index]
            saved.append(
                SavedMessage(
                    id=f"{run_id}.{index - given}",
                    run_id=run_id,
                    content=content,
                    created_at=datetime.fromtimestamp(stored.at / 1_000_000, UTC),
                    usage=head.usage if isinstance(head, TurnCompleted) else None,
                )
            )
    return saved
