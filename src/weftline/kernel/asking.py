"""The part of the log's vocabulary that is about what people are asked."""

from __future__ import annotations

from typing import Literal, TypeAlias

AwaitKind: TypeAlias = Literal["confirm", "question", "plan", "doubt", "deploy"]
"""What a person is asked: whether a call may begin; a question of the model's, or what to think of its plan, where the
answer is the call's result; or what became of a call that a crash cut off. One kind is about the run itself: whether it
may go on with other code than before.
"""
AwaitOutcome: TypeAlias = Literal["approved", "denied", "answered", "expired", "withdrawn"]
"""How an await was closed. The last two are the kernel's: nobody answered in time, or nobody needs the answer any more.

Of a call in doubt: it did not happen and may begin again (`approved`), it happened (`answered`), or nobody knows
(`denied`).
"""
ANSWERS: dict[AwaitKind, frozenset[AwaitOutcome]] = {
    "confirm": frozenset({"approved", "denied"}),
    "question": frozenset({"answered", "denied"}),
    "plan": frozenset({"approved", "answered", "denied"}),
    "doubt": frozenset({"approved", "answered", "denied"}),
    "deploy": frozenset({"approved", "denied"}),
}
"""What a person may say to an await of each kind."""
OF_RUN = -1
"""The `index` of an await that is about no call."""
