"""Failures of calls: their kind, the recovery, and a hint for the next attempt.

The kind is what went wrong, the recovery what the run does about it; neither determines the other. A hint is what the
model, or a person, needs to do better. The log's heads have the kind, the recovery and the hint's reason if a tool or a
check set them; everything else follows from how the call was closed.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

PREVIEW_CHARS = 140


Audience: TypeAlias = Literal["timeline", "internal", "evidence"]
"""Those who follow the run; only the run's own tools and hooks; or auditors."""


class Bounds(Struct, frozen=True, omit_defaults=True):
    """Which part of the whole a result covers, and how to get the rest."""

    returned: int
    total: int | None = None
    truncated: bool = False
    next_cursor: str | None = None
    refinement_hint: str = ""


ATTACHMENTS = "thread.attachments"
"""The kind of server data that lists the files of a thread that a result names."""


class ServerData(Struct, frozen=True, omit_defaults=True):
    """Data that a call adds to its result and no model ever reads: any JSON, for one audience."""

    kind: str
    data: Any
    audience: Audience = "internal"


class Telemetry(Struct, frozen=True, omit_defaults=True):
    """Costs of a call. The runtime fills in a duration of None."""

    duration_ms: int | None = None
    tokens_used: int | None = None
    model: str = ""
    extra: dict[str, Any] = {}

    def __post_init__(self) -> None:
        took, used = self.duration_ms, self.tokens_used
        if isinstance(took, int) and took < 0:
            raise ValueError(f"duration_ms must be 0 or more, not {took}")
        if isinstance(used, int) and used < 0:
            raise ValueError(f"tokens_used must be 0 or more, not {used}")


class ChildLink(Struct, frozen=True, omit_defaults=True):
    """The run that executed a call."""

    run_id: str
    agent: str
    """The agent's name, as in the call."""
    parent_run_id: str
    parent_call_id: str
    calls: int = 0
    """How many of its own calls have a result."""


def telemetry_of(reported: Telemetry | None, *, active_us: int) -> Telemetry:
    """Returns what a call used: as its tool reported, with the time that the runtime measured if that is missing."""
    if reported is None:
        return Telemetry(active_us // 1000)
    return reported if reported.duration_ms is not None else replace(reported, duration_ms=active_us // 1000)


def preview_of(text: str) -> str:
    """Returns the beginning of a result, on one line."""
    line = " ".join(text[: 4 * PREVIEW_CHARS].split())
    return line if len(line) <= PREVIEW_CHARS else line[: PREVIEW_CHARS - 1] + "…"


def for_timeline(data: tuple[ServerData, ...]) -> tuple[ServerData, ...]:
    """Returns the data for those who follow a run."""
    return tuple([one for one in data if one.audience == "timeline"]) if data else ()


FailureKind: TypeAlias = Literal[
    "invalid_call", "domain_rejection", "unavailable", "rate_limited", "timeout", "malformed_result", "internal"
]
"""What went wrong.

In this order: the call was invalid; the tool refused it; the tool is unavailable; it was called too often; it timed
out; its result is malformed; or it broke.
"""
Recovery: TypeAlias = Literal["correct_call", "replan", "finish"]
"""The model may correct the call; it has to do without the tool for a turn; or the run ends."""
HintReason: TypeAlias = Literal[
    "invalid_arguments", "missing_fields", "malformed_response", "timeout", "rate_limited", "tool_unavailable"
]
Constraint: TypeAlias = Literal[
    "missing_field",
    "invalid_enum_value",
    "invalid_format",
    "invalid_pattern",
    "invalid_range",
    "invalid_length",
    "invalid_field_type",
]

CORRECTABLE: frozenset[str] = frozenset({"invalid_call", "domain_rejection"})
"""The kinds of failures that another call of the same tool could avoid."""
_BY_HOW: dict[str, FailureKind] = {
    "timeout": "timeout",
    "unknown": "unavailable",
    "excluded": "unavailable",
    "budget": "unavailable",
    "cap": "unavailable",
    "skipped": "unavailable",
    "not_run": "unavailable",
    "cancelled": "unavailable",
    "invalid": "invalid_call",
    "blocked": "domain_rejection",
    "answered": "domain_rejection",
    "loop": "domain_rejection",
    "repeat_of_doubt": "domain_rejection",
}
_UNAVAILABLE = frozenset({"unknown", "excluded"})


class FieldIssue(Struct, frozen=True, omit_defaults=True):
    """A problem with one argument; `field` is its dotted path, or `$payload` for all of them."""

    field: str
    constraint: Constraint
    message: str = ""


class Hint(Struct, frozen=True, omit_defaults=True):
    """Help for the next attempt after a failed call.

    It does not restrict the model: `restrict_to_tool` only asks it to stay with the tool.
    """

    reason: HintReason
    message: str = ""
    tool: str = ""
    """Filled in by the runtime: the call's own tool."""
    restrict_to_tool: bool = False
    missing_fields: tuple[str, ...] = ()
    issues: tuple[FieldIssue, ...] = ()
    example_input: dict[str, Any] | None = None
    prior_input: dict[str, Any] | None = None
    clarifying_question: str = ""

    def __post_init__(self) -> None:
        # A mistake is reported where it is made; the log, which would refuse it, is far away.
        if self.reason not in get_args(HintReason):
            raise ValueError(f"reason must be one of {', '.join(get_args(HintReason))}, not {self.reason!r}")
        for name in ("message", "tool", "clarifying_question"):
            if not isinstance(text := getattr(self, name), str):
                raise TypeError(f"{name} must be a str, not {type(text).__name__}")
        if not _each(self.missing_fields, str):
            raise TypeError("missing_fields must be a sequence of strings")
        if not _each(self.issues, FieldIssue):
            raise TypeError("issues must be a sequence of FieldIssue")
        for name in ("example_input", "prior_input"):
            if (value := getattr(self, name)) is not None and not isinstance(value, dict):
                raise TypeError(f"{name} must be an object of arguments, a dict")


def _each(values: object, of: type) -> bool:
    return isinstance(values, tuple | list) and all(isinstance(one, of) for one in cast("list[object]", values))


class Clarification(Struct, frozen=True, omit_defaults=True):
    """The question to a person who is asked for something that a failed call lacks."""

    missing_fields: tuple[str, ...] = ()
    restrict_to_tool: str = ""
    """The tool that the model should stay with, if its hint says so."""
    example_input: dict[str, Any] | None = None
    clarifying_prompt: str = ""
    """What went wrong, from the hint."""


class Cause(Struct, frozen=True):
    """One exception in the chain behind a failure."""

    type: str
    message: str


class Failure(Struct, frozen=True, omit_defaults=True):
    """Why a call failed. `causes` has what led to it, the nearest first."""

    message: str
    kind: FailureKind | None = None
    """None if it follows from how the call was closed."""
    recovery: Recovery | None = None
    """None if none was requested."""
    hint: Hint | None = None
    causes: tuple[Cause, ...] = ()


class ProviderFailure(Struct, frozen=True, omit_defaults=True):
    """A failure of a model's provider. `kind` is one of our classes; `code` and `status` are the provider's own."""

    provider: str
    operation: str
    """The operation's name in traces, `chat`."""
    kind: str
    retryable: bool
    code: str | None = None
    status: int | None = None


class CallFailure(Struct, frozen=True, omit_defaults=True):
    """A failure as followers of a run see it: all fields are set, and the causes are left out."""

    kind: FailureKind
    recovery: Recovery
    hint: Hint | None = None


def kind_by(how: str, *, client: bool) -> FailureKind:
    """Returns the default kind of a failure. A client knows best what it refuses."""
    return _BY_HOW.get(how, "domain_rejection" if client and how == "failed" else "internal")


def recovery_by(kind: FailureKind) -> Recovery:
    return "correct_call" if kind in CORRECTABLE else "replan"


class Closed(Protocol):
    """The fields of a result's head that concern a failure."""

    @property
    def how(self) -> str: ...
    @property
    def is_error(self) -> bool: ...
    @property
    def client(self) -> str | None: ...
    @property
    def kind(self) -> FailureKind | None: ...
    @property
    def recovery(self) -> Recovery | None: ...


def failed_as(head: Closed) -> FailureKind | None:
    """Returns the kind of a failure; None for a success."""
    return (head.kind or kind_by(head.how, client=head.client is not None)) if head.is_error else None


def recovers_by(head: Closed) -> Recovery | None:
    """Returns the recovery of a failure: the requested one, or the default of its kind. None for a success."""
    kind = failed_as(head)
    return None if kind is None else head.recovery or recovery_by(kind)


def hint_of(head: Closed, *, tool: str, message: str, failure: Failure | None) -> Hint | None:
    """Returns the hint of a failed call: its own, or one for a tool that timed out or is unavailable."""
    if failure is not None and failure.hint is not None:
        return failure.hint
    if head.is_error and head.how == "timeout" and head.client is None:
        return Hint("timeout", "", tool)
    return Hint("tool_unavailable", message, tool) if head.is_error and head.how in _UNAVAILABLE else None


def recovery_problem(kind: FailureKind | None, recovery: Recovery | None) -> str:
    """Returns what is wrong with a recovery for this kind of failure; empty if nothing is."""
    if recovery != "correct_call" or kind is None or kind in CORRECTABLE:
        return ""
    return f"correct_call is for {' and '.join(sorted(CORRECTABLE))}: a failure of kind {kind} cannot be corrected"
