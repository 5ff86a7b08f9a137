"""Traits of Claude models by their id: how they think, what they refuse, how much they may write.

Three generations support reasoning levels in three ways. Up to 4.6, thinking has a budget in tokens. From 4.7 on, the
model itself decides how much to think and takes an effort instead, without sampling parameters. From 5 on it thinks
unless told not to, and the latest models always do. A budget excludes a forced tool choice, an effort does not; but
from 5.1 on a tool choice cannot be forced at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from weftline.providers.base import ModelInfo, ModelRequest
from weftline.providers.sampling import SamplingLimits, nearest

DEFAULT_MODEL: Final = "claude-sonnet-4-6"
MIN_BUDGET_TOKENS: Final = 1_024
BUDGET_AT_80_TOKENS: Final = 8_000
BUDGET_STEP_TOKENS: Final = 150
"""Tokens per step of the scale 0–100; levels of 33 and less meet the API's floor."""
DEFAULT_MAX_TOKENS: Final = 16_384
"""The output limit of a request that names none; the API has no default."""

MODELS: Final = (
    ModelInfo(DEFAULT_MODEL, "Claude Sonnet 4.6", 1_000_000, None, True, True, True),
    ModelInfo("claude-opus-4-6", "Claude Opus 4.6", 1_000_000, None, True, True, True),
    ModelInfo("claude-haiku-4-5", "Claude Haiku 4.5", 200_000, 64_000, True, True, True),
    ModelInfo("claude-sonnet-5", "Claude Sonnet 5", 1_000_000, 128_000, True, True, True),
    ModelInfo("claude-opus-5", "Claude Opus 5", 1_000_000, 128_000, True, True, True),
    ModelInfo("claude-sonnet-5-5", "Claude Sonnet 5.5", 1_000_000, 128_000, True, True, True),
    ModelInfo("claude-opus-5-5", "Claude Opus 5.5", 1_000_000, 128_000, True, True, True),
)

Levels: TypeAlias = Mapping[int, int | str | None]
"""What a model gets at points on the scale 0–100: a budget in tokens, an effort, or None for no thinking."""


class Traits(Struct, frozen=True):
    """Support of reasoning by one model, and the inputs that it accepts."""

    thinking: Literal["none", "budget", "adaptive"]
    default_on: bool = False
    """Thinks even if the request does not ask for it."""
    off: Literal["disabled", "between_tools"] | None = None
    """How to tell a model with `default_on` not to think; None if that is not possible."""
    sampling: bool = True
    """Accepts temperature, top-p and top-k."""
    max_output_tokens: int = DEFAULT_MAX_TOKENS
    forces: bool = True
    """Accepts a forced tool choice."""
    structured: bool = False
    """Supports output schemas natively."""
    filters: bool = False
    """Filters web results with its own code before reading them."""


class Thinking(Struct, frozen=True):
    """The reasoning part of a request: its fields, and whether the model may think with them."""

    fields: dict[str, dict[str, str | int]]
    on: bool
    budget: bool = False
    """Whether it has a budget, which excludes a forced tool choice."""


@lru_cache(maxsize=256)
def traits(model: str) -> Traits:
    """Returns the traits of a model.

    An id without a version is assumed to have a budget, as most proxies expose such models.
    """
    name = model.lower().replace(".", "-")
    version = _version(name)
    if "fable" in name or "mythos" in name:
        forces = version is None or version < (5, 1)
        return Traits("adaptive", default_on=True, sampling=False, forces=forces, structured=True, filters=True)
    if version is None:
        return Traits("budget")
    if version < (3, 7):
        return Traits("none", max_output_tokens=8_192 if version >= (3, 5) else 4_096)
    if version < (4, 7):
        structured = version >= (4, 5) or (version == (4, 1) and "opus" in name)
        return Traits("budget", structured=structured, filters=version >= (4, 6))
    if version < (5, 0):
        return Traits("adaptive", sampling=False, structured=True, filters=True)
    off = "disabled" if version < (5, 5) else "between_tools" if "sonnet" in name else None
    return Traits(
        "adaptive",
        default_on=True,
        off=off,
        sampling=False,
        forces=version < (5, 1),
        structured=True,
        filters=True,
    )


def thinking_for(request: ModelRequest, *, max_tokens: int, forced: bool, levels: Levels | None = None) -> Thinking:
    """Returns the reasoning part of a request. `forced` means a forced tool choice, which the API refuses with a
    budget.

    `levels` are configured for this model; without them, its generation decides.
    """
    model, level = traits(request.model), request.reasoning
    if levels and level is not None:
        native = levels[nearest(list(levels), level)]
        if native is not None and not (forced and isinstance(native, int)):
            return _thinking_as(native, max_tokens)
        level = 0
    elif model.thinking == "none":
        return Thinking({}, on=False)
    if level and model.thinking == "adaptive":
        return _thinking_as(effort(level), max_tokens)
    if level and not forced:
        exact = request.reasoning_budget_tokens
        return _thinking_as(budget_tokens(level) if exact is None else exact, max_tokens)
    if not model.default_on or level is None:
        return Thinking({}, on=model.default_on)
    if model.off is not None:
        return Thinking({"thinking": {"type": model.off}}, on=model.off != "disabled")
    return Thinking({"output_config": {"effort": "low"}}, on=True)


def budget_tokens(level: int) -> int:
    """Returns 8,000 at level 80; monotonic in the level."""
    return max(BUDGET_AT_80_TOKENS + BUDGET_STEP_TOKENS * (level - 80), MIN_BUDGET_TOKENS)


def effort(level: int) -> str:
    if level <= 35:
        return "low"
    if level <= 65:
        return "medium"
    if level <= 85:
        return "high"
    return "xhigh" if level <= 95 else "max"


def _thinking_as(native: int | str, max_tokens: int) -> Thinking:
    if isinstance(native, str):
        # Newer models do not return their thoughts unless asked for a summary.
        thinking: dict[str, str | int] = {"type": "adaptive", "display": "summarized"}
        return Thinking({"thinking": thinking, "output_config": {"effort": native}}, on=True)
    if max_tokens <= MIN_BUDGET_TOKENS:
        # No budget can be at least the API's minimum and below such an output limit.
        return Thinking({}, on=False)
    budget = min(max(native, MIN_BUDGET_TOKENS), max_tokens - 1)
    return Thinking({"thinking": {"type": "enabled", "budget_tokens": budget}}, on=True, budget=True)


def sampling_limits(model: str, *, reasoning: int | None) -> SamplingLimits:
    """Returns what the model accepts. From 4.1 on, not both temperature and top-p; see also `Traits.sampling`."""
    known = traits(model)
    thinks = bool(reasoning) and known.thinking != "none"
    takes = known.sampling and not thinks
    version = _version(model.lower().replace(".", "-"))
    return SamplingLimits(
        max_temperature=1.0 if takes else None,
        top_p=takes,
        together=version is None or version < (4, 1),
        blank_stops=False,
        condition="while it reasons" if known.sampling and thinks else "",
    )


_VERSION = re.compile(r"claude-(?:[a-z]+-)?v?(\d{1,2})(?:-(\d{1,2}))?(?![\d])")


def _version(name: str) -> tuple[int, int] | None:
    """`claude-sonnet-4-5-20250929` is 4.5, `claude-3-7-sonnet-latest` 3.7, `claude-sonnet-4-20250514` 4.0."""
    found = _VERSION.search(name)
    return (int(found[1]), int(found[2] or 0)) if found else None
