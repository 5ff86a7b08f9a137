"""Failures, hints and telemetry in the protocol's format. Light, as the client uses them too."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from weftline.failure import CallFailure, Clarification, FailureKind, FieldIssue, Hint, HintReason, Recovery
from weftline.outcome import Bounds, Telemetry


class WireHint(Struct, frozen=True, rename="camel", omit_defaults=True):
    """`weftline.tools.Hint` in the protocol's format."""

    reason: HintReason
    message: str = ""
    tool: str = ""
    restrict_to_tool: bool = False
    missing_fields: tuple[str, ...] = ()
    issues: tuple[FieldIssue, ...] = ()
    example_input: dict[str, Any] | None = None
    prior_input: dict[str, Any] | None = None
    clarifying_question: str = ""

    @property
    def hint(self) -> Hint:
        return Hint(**asdict(self))


class WireClarification(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a person is shown who is asked for what a failed call lacks."""

    missing_fields: tuple[str, ...] = ()
    restrict_to_tool: str = ""
    example_input: dict[str, Any] | None = None
    clarifying_prompt: str = ""

    @property
    def clarification(self) -> Clarification:
        return Clarification(**asdict(self))


def to_wire_clarification(one: Clarification) -> WireClarification:
    return WireClarification(**asdict(one))


class WireFailure(Struct, frozen=True, rename="camel", omit_defaults=True):
    kind: FailureKind
    recovery: Recovery
    hint: WireHint | None = None

    @property
    def failure(self) -> CallFailure:
        return CallFailure(self.kind, self.recovery, None if self.hint is None else self.hint.hint)


class WireBounds(Struct, frozen=True, rename="camel", omit_defaults=True):
    """`weftline.outcome.Bounds` in the protocol's format."""

    returned: int
    total: int | None = None
    truncated: bool = False
    next_cursor: str | None = None
    refinement_hint: str = ""

    @property
    def bounds(self) -> Bounds:
        return Bounds(**asdict(self))


class WireTelemetry(Struct, frozen=True, rename="camel", omit_defaults=True):
    """`weftline.tools.Telemetry` in the protocol's format; its time is always present."""

    duration_ms: int
    tokens_used: int | None = None
    model: str = ""
    extra: dict[str, Any] = {}

    @property
    def telemetry(self) -> Telemetry:
        return Telemetry(**asdict(self))


class WireLink(Struct, frozen=True, rename="camel"):
    """The run that executed a call, and the call that it was for."""

    run_id: str
    agent_id: str
    parent_run_id: str
    parent_tool_use_id: str
