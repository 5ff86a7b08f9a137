"""What payloads contain: failures, hints, telemetry, tokens and models, in the protocol's format.

Responses have the same parts. Light, as the client uses them too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from weftline.failure import (
    Bounds,
    CallFailure,
    ChildLink,
    Clarification,
    FailureKind,
    FieldIssue,
    Hint,
    HintReason,
    Recovery,
    Telemetry,
)
from weftline.messages import Usage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOW_EFFORT_MAX = 35
_MEDIUM_EFFORT_MAX = 65


def iso(us: int) -> str:
    """Returns a UTC time, always with microseconds, so that strings sort like times."""
    return f"{(_EPOCH + timedelta(microseconds=us)).isoformat(timespec='microseconds')[:-6]}Z"


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


def to_wire_failure(one: CallFailure) -> WireFailure:
    hint = one.hint
    return WireFailure(one.kind, one.recovery, None if hint is None else WireHint(**asdict(hint)))


class WireBounds(Struct, frozen=True, rename="camel", omit_defaults=True):
    """`weftline.failure.Bounds` in the protocol's format."""

    returned: int
    total: int | None = None
    truncated: bool = False
    next_cursor: str | None = None
    refinement_hint: str = ""

    @property
    def bounds(self) -> Bounds:
        return Bounds(**asdict(self))


def to_wire_bounds(one: Bounds) -> WireBounds:
    return WireBounds(**asdict(one))


class WireTelemetry(Struct, frozen=True, rename="camel", omit_defaults=True):
    """`weftline.tools.Telemetry` in the protocol's format; its time is always present."""

    duration_ms: int
    tokens_used: int | None = None
    model: str = ""
    extra: dict[str, Any] = {}

    @property
    def telemetry(self) -> Telemetry:
        return Telemetry(**asdict(self))


def to_wire_telemetry(one: Telemetry) -> WireTelemetry:
    return WireTelemetry(one.duration_ms or 0, one.tokens_used, one.model, one.extra)


class WireLink(Struct, frozen=True, rename="camel"):
    """The run that executed a call, and the call that it was for."""

    run_id: str
    agent_id: str
    parent_run_id: str
    parent_tool_use_id: str


def to_wire_link(one: ChildLink) -> WireLink:
    return WireLink(one.run_id, one.agent, one.parent_run_id, one.parent_call_id)


class Tokens(Struct, frozen=True, rename="camel"):
    input_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    output_tokens: int
    cache_write_tokens: int | UnsetType = UNSET
    """Input that was written to a cache; absent if there was none."""


class ModelUsed(Struct, frozen=True, rename="camel"):
    id: str
    provider: str
    vendor_model_id: str
    reasoning_effort: str | UnsetType = UNSET


class UsageTriple(Struct, frozen=True, rename="camel"):
    """The fields `tokens`, `turns`, `attempts` and `model` of terminal events and snapshots."""

    tokens: Tokens
    turns: int
    attempts: int
    """Counts model calls, whereas `turns` counts each turn once."""
    model: ModelUsed
    usage_estimated: Literal[True] | UnsetType = UNSET
    """Present if a model call did not report its usage: `tokens` and the cost then contain an estimate."""


def tokens(usage: Usage) -> Tokens:
    """Returns the counts, which are never negative, and no part exceeds its whole."""
    sound = 0 <= usage.cached <= usage.input and 0 <= usage.reasoning <= usage.output
    if sound and 0 <= usage.cache_write <= usage.input:
        return Tokens(usage.input, usage.cached, usage.reasoning, usage.output, usage.cache_write or UNSET)
    # With 0 first, `max` also returns it for a NaN from a provider.
    whole_input, whole_output = max(0, usage.input), max(0, usage.output)
    return Tokens(
        whole_input,
        min(max(0, usage.cached), whole_input),
        min(max(0, usage.reasoning), whole_output),
        whole_output,
        min(max(0, usage.cache_write), whole_input) or UNSET,
    )


def effort_name(level: int | None) -> str | None:
    """Returns the name of a reasoning level; None if none was set."""
    if level is None:
        return None
    if level <= 0:
        return "off"
    if level <= _LOW_EFFORT_MAX:
        return "low"
    return "medium" if level <= _MEDIUM_EFFORT_MAX else "high"
