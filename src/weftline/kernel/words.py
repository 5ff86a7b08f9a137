"""Words of the log for what becomes of calls and of questions to people. They are data, as the names of entries are."""

from __future__ import annotations

from typing import Literal, TypeAlias

How: TypeAlias = Literal[
    "returned",
    "failed",
    "timeout",
    "unknown",
    "invalid",
    "budget",
    "loop",
    "skipped",
    "in_doubt",
    "repeat_of_doubt",
    "cancelled",
    "not_run",
    "blocked",
    "answered",
    "denied",
    "excluded",
    "cap",
]
"""How a call was closed: by its tool (`returned`, `failed`), by time, or by a guard that never let it begin.

A gate, which is code of the agent's, may have refused it (`blocked`) or answered in the tool's place (`answered`). A
person may have answered, too, or have refused it (`denied`). The run's policy may not have the tool (`excluded`), or
no room for the call (`cap`).
"""
Verdict: TypeAlias = Literal["ok", "unknown", "invalid", "blocked", "answered", "denied", "excluded"]
"""What is to become of a call that the model asked for, as far as its tool, its arguments, gates and people decide."""
AwaitKind: TypeAlias = Literal["confirm", "question", "plan", "doubt", "clarification", "deploy", "budget"]
"""What a person is asked: whether a call may begin; a question of the model's, or what to think of its plan, where the
answer is the call's result; what became of a call that a crash cut off; or what a failed call lacks, where the answer
is a message to the model. Two kinds are about the run itself: whether it may go on with other code than before, or
spend more than its budget leaves.
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
    "clarification": frozenset({"answered", "denied"}),
    "deploy": frozenset({"approved", "denied"}),
    "budget": frozenset({"approved", "denied"}),
}
"""What a person may say to an await of each kind."""
OF_RUN = -1
"""The `index` of an await that is about no call."""

EXECUTED: frozenset[How] = frozenset({"returned", "failed", "timeout"})
