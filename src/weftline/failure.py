"""How calls fail: what kind of failure it was, what is to follow from it, and what would help the next attempt.

The kind says what went wrong, the recovery what the run does about it; neither follows from the other. A hint is what
the model, or a person, needs to do better. Heads of the log have the kind, the recovery and the hint's reason if a tool
or a check said so; everything else follows from how the call was closed.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias, cast, get_args

from msgspec import Struct

FailureKind: TypeAlias = Literal[
    "invalid_call", "domain_rejection", "unavailable", "rate_limited", "timeout", "malformed_result", "internal"
]
"""The call was wrong; the tool understood it and said no; the tool is not there; it is asked too often; it took too
long; it gave something that is not a result; or it broke.
"""
Recovery: TypeAlias = Literal["correct_call", "replan", "finish"]
"""The model may correct the call; it has to do without the tool for a turn; or the run comes to its end."""
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
_NOT_THERE = frozenset({"unknown", "excluded"})


class FieldIssue(Struct, frozen=True, omit_defaults=True):
    """What is wrong with one argument; `field` is its path with dots, or `$payload` for all of them."""

    field: str
    constraint: Constraint
    message: str = ""


class Hint(Struct, frozen=True, omit_defaults=True):
    """What would help after a failed call.

    It withholds nothing from the model: `restrict_to_tool` only asks it to stay with the tool.
    """

    reason: HintReason
    message: str = ""
    tool: str = ""
    """The runtime fills in the call's own."""
    restrict_to_tool: bool = False
    missing_fields: tuple[str, ...] = ()
    issues: tuple[FieldIssue, ...] = ()
    example_input: dict[str, Any] | None = None
    prior_input: dict[str, Any] | None = None
    clarifying_question: str = ""

    def __post_init__(self) -> None:
        # A slip is told where it is made: the log, which would refuse it, is far from there.
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
    """What a person is shown who is asked for what a failed call lacks."""

    missing_fields: tuple[str, ...] = ()
    restrict_to_tool: str = ""
    """The tool that the model is to stay with, if its hint says so."""
    example_input: dict[str, Any] | None = None
    clarifying_prompt: str = ""
    """What went wrong, in the hint's words."""


class Cause(Struct, frozen=True):
    """One link of the chain of exceptions behind a failure."""

    type: str
    message: str


class Failure(Struct, frozen=True, omit_defaults=True):
    """Why a call failed. `causes` has what led to it, the nearest first."""

    message: str
    kind: FailureKind | None = None
    """None if that follows from how the call was closed."""
    recovery: Recovery | None = None
    """None if nobody asked for one."""
    hint: Hint | None = None
    causes: tuple[Cause, ...] = ()


class CallFailure(Struct, frozen=True, omit_defaults=True):
    """A failure as those see it who follow a run: nothing of it is left open, and its causes are not shown."""

    kind: FailureKind
    recovery: Recovery
    hint: Hint | None = None


def kind_by(how: str, *, client: bool) -> FailureKind:
    """The kind of a failure about which nothing else is known. A client knows best what it refuses."""
    return _BY_HOW.get(how, "domain_rejection" if client and how == "failed" else "internal")


def recovery_by(kind: FailureKind) -> Recovery:
    return "correct_call" if kind in CORRECTABLE else "replan"


class Closed(Protocol):
    """The head of a result, as far as it is about a failure."""

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
    """The kind of a failure; None for a success."""
    return (head.kind or kind_by(head.how, client=head.client is not None)) if head.is_error else None


def recovers_by(head: Closed) -> Recovery | None:
    """What is to follow from a failure: what was asked for, or what fits its kind. None for a success."""
    kind = failed_as(head)
    return None if kind is None else head.recovery or recovery_by(kind)


def hint_of(head: Closed, *, tool: str, message: str, failure: Failure | None) -> Hint | None:
    """The hint of a failed call: its own, or that its tool took too long or is not there."""
    if failure is not None and failure.hint is not None:
        return failure.hint
    if head.is_error and head.how == "timeout" and head.client is None:
        return Hint("timeout", "", tool)
    return Hint("tool_unavailable", message, tool) if head.is_error and head.how in _NOT_THERE else None


def recovery_fault(kind: FailureKind | None, recovery: Recovery | None) -> str:
    """What is wrong with a recovery of a failure of this kind; "" if nothing is."""
    if recovery != "correct_call" or kind is None or kind in CORRECTABLE:
        return ""
    return f"correct_call is for {' and '.join(sorted(CORRECTABLE))}: a failure of kind {kind} cannot be corrected"
