"""The parts of a call's result that the model does not read: telemetry, bounds, and data for others."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

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
