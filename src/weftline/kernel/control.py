"""The log's vocabulary for what comes from outside: requests, answers, clients that claim calls, and new code."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct


class _Head(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Like `entries.Head`."""


class MessageQueued(_Head, frozen=True, tag="message.queued"):
    """Someone outside sent a message to the running run. Body: the user message."""

    id: str
    mode: Literal["steer", "follow_up"]


class MessagesTaken(_Head, frozen=True, tag="messages.taken"):
    """These queued messages are in the conversation from the next model call on. Body: `TakenBody`."""

    ids: tuple[str, ...]


class RunPaused(_Head, frozen=True, tag="run.paused"):
    """Somebody has paused the run. Body: `ControlBody`, or none."""

    reason: str = ""
    requested_by: str = ""


class RunResumed(_Head, frozen=True, tag="run.resumed"):
    """Somebody has resumed the run. Body: `ControlBody`, or none."""

    notes: str = ""
    requested_by: str = ""


class CancelRequested(_Head, frozen=True, tag="cancel.requested"):
    reason: str = "user"
    requested_by: str = ""


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


OnDeploy: TypeAlias = Literal["adopt", "pin", "ask"]
"""What happens to a run whose code has changed: it adopts the new code, waits for the old, or asks a person."""
Part: TypeAlias = Literal["prompt", "tools", "code"]
PARTS: tuple[Part, ...] = ("prompt", "tools", "code")


class Digests(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The definitions that a run depends on. Equal ones have equal digests, in every process and on every machine."""

    prompt: str
    tools: str
    """The names, schemas and effects of its tools."""
    code: str
    """The source of its tools and hooks, or the version that the operator assigned to the code."""
    given: bool = False
    """The prompt was given with the run, so no deploy changes it."""


class Change(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The digests of a part before and after a deploy."""

    before: str
    after: str


class DeployAdopted(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False, tag="deploy.adopted"
):
    """From here on the run continues with different code. Body: `RenderedBody`, if its prompt has changed."""

    changed: dict[Part, Change]


def changes(before: Digests, now: Digests) -> dict[Part, Change]:
    """The parts that have changed."""
    found: dict[Part, Change] = {}
    for part in PARTS:
        old, new = getattr(before, part), getattr(now, part)
        if old != new and not (part == "prompt" and before.given):
            found[part] = Change(old, new)
    return found


def adopted(before: Digests, changed: dict[Part, Change]) -> Digests:
    """Returns the digests of a run after it has adopted a deploy."""
    after = {part: changed[part].after if part in changed else getattr(before, part) for part in PARTS}
    return Digests(after["prompt"], after["tools"], after["code"], before.given)


OnLost: TypeAlias = Literal["reoffer", "fallback", "error"]
"""What happens to a call whose client is gone: it is offered again, a server tool executes it, or the model reads that
nobody has answered.
"""

LEASE_US = 30_000_000
MIN_LEASE_US = 1_000_000
MAX_LEASE_US = 600_000_000


class LeaseRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The rule for a lost lease. Stored in full, like `Limits`."""

    on_lost: OnLost = "reoffer"
    fallbacks: dict[str, str] = {}
    """For each client tool, the server tool that takes its place. A call of any other tool is offered again."""


class Lease(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Which client has claimed a call, as far as the state knows."""

    token: str
    """The digest of the token."""
    until: int
    lease_us: int
    """How long one claim or heartbeat holds."""
    by: str = ""
    lost: bool = False
    """It has expired. Its token remains valid until another client claims the call."""


class CallClaimed(_Head, frozen=True, tag="call.claimed"):
    """A client has claimed the call until `lease_us` after `at`. `renewed`: it extends a lease that it already held."""

    turn: int
    index: int
    id: str
    name: str
    token: str
    """The digest of the token that the client received."""
    lease_us: int
    by: str = ""
    renewed: bool = False


class CallUnclaimed(_Head, frozen=True, tag="call.unclaimed"):
    """The client released the call, or the lease expired: it is offered to all clients again. Body: `OpenedBody`.

    With a `fallback`, it is not offered again: that server tool executes it, with the same arguments and key.
    """

    turn: int
    index: int
    id: str
    name: str
    cause: Literal["released", "lost"]
    attempt: int
    """The number of the offer, counted from 1."""
    client: str | None = None
    """How it is offered, as in `call.opened`."""
    fallback: str = ""
