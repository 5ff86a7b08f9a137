"""Literals in the log for the outcomes of calls and of questions to people. They are data, like the names of
entries.
"""

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
"""How a call was closed: by its tool (`returned`, `failed`), by a time-out, or by a guard that did not let it begin.

A gate, which is the agent's code, may have refused it (`blocked`) or answered in place of the tool (`answered`). A
person may also have answered it, or refused it (`denied`). The run's policy may exclude the tool (`excluded`), or leave
no room for the call (`cap`).
"""
Verdict: TypeAlias = Literal["ok", "unknown", "invalid", "blocked", "answered", "denied", "excluded"]
"""What is to happen to a call that the model asked for, as decided by its tool, its arguments, gates and people."""
AwaitKind: TypeAlias = Literal["confirm", "question", "plan", "doubt", "clarification", "deploy", "budget"]
"""What a person is asked. About a call: whether it may begin (`confirm`); a question of the model's, or its plan, where
the answer is the call's result; what became of it after a crash (`doubt`); or what it lacks after it failed, where the
answer is a message to the model. About the run itself: whether it may continue with different code, or spend more than
its budget allows.
"""
AwaitOutcome: TypeAlias = Literal["approved", "denied", "answered", "expired", "withdrawn"]
"""How an await was closed. The last two are the kernel's: nobody answered in time, or the answer is no longer needed.

For a call in doubt: it did not happen and may begin again (`approved`), it happened (`answered`), or nobody knows
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
"""How a person may answer each kind of await."""
OF_RUN = -1
"""The `index` of an await that is not about a call."""

EXECUTED: frozenset[How] = frozenset({"returned", "failed", "timeout"})
