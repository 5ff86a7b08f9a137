"""Traits of Gemini models by name: their generation and their thinking settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from weftline.providers.base import ModelInfo

_VERSION = re.compile(r"gemini-(?:(?:pro|flash|live)-)?(\d+)(?:\.(\d+))?(?![\d.])")
_LEVELS: tuple[tuple[int, str], ...] = ((15, "MINIMAL"), (30, "LOW"), (50, "MEDIUM"), (80, "HIGH"))
_WITHOUT_THINKING = re.compile(r"embedding|-tts|-live|-2\.5-flash-image|^gemini-live")

DEFAULT_MODELS: tuple[ModelInfo, ...] = (
    ModelInfo("gemini-3.8-flash", "Gemini 3.8 Flash", 1_048_576, 65_536, vision=True, reasoning=True, tools=True),
    ModelInfo("gemini-4-argon", "Gemini 4 Argon", 1_048_576, 65_536, vision=True, reasoning=True, tools=True),
    ModelInfo("gemini-3.1-pro-preview", "Gemini 3.1 Pro", 1_048_576, 65_536, vision=True, reasoning=True, tools=True),
    ModelInfo("gemini-2.5-pro", "Gemini 2.5 Pro", 1_048_576, 65_536, vision=True, reasoning=True, tools=True),
    ModelInfo("gemini-2.5-flash", "Gemini 2.5 Flash", 1_048_576, 65_536, vision=True, reasoning=True, tools=True),
)
"""Offered if a provider is configured without a list; the first is its default."""


class Traits(Struct, frozen=True):
    """Differences between requests for one model and another."""

    modern: bool
    """Gemini 3 and later: thinking levels, checked signatures, structured output together with tools."""
    levels: tuple[str, ...] = ()
    """The model's thinking levels, lowest first; empty if it has none."""
    budget: tuple[int, int, int] | None = None
    """Thinking tokens: at level 0, the minimum above it, the maximum."""


@lru_cache(maxsize=1024)
def traits(model: str) -> Traits:
    name = bare(model).lower()
    found = _VERSION.match(name)
    if name == "gemini-pro" or name.startswith("gemma"):
        return Traits(modern=False)
    # Names without a number are aliases of the newest ("gemini-flash-latest").
    major, minor = (int(found[1]), int(found[2] or 0)) if found else (3, 1)
    thinks = not _WITHOUT_THINKING.search(name)
    if major >= 3:
        return Traits(modern=True, levels=_levels(name, original=(major, minor) == (3, 0)) if thinks else ())
    if not thinks or major < 2 or minor < 5:
        return Traits(modern=False)
    if "flash-lite" in name:
        return Traits(modern=False, budget=(0, 512, 24_576))
    if "flash" in name:
        return Traits(modern=False, budget=(0, 1, 24_576))
    return Traits(modern=False, budget=(128, 128, 32_768))


def bare(model: str) -> str:
    """Returns the id without the collection that the API puts before it in listings."""
    return model.removeprefix("models/")


def thinking_config(model: str, level: int | None, *, tokens: int | None = None) -> dict[str, Any] | None:
    """Returns `thinkingConfig` for a level of 0 to 100; None if there is no level or the model does not think.

    `tokens`, if given, replaces the level's budget for models that have one.
    """
    if level is None:
        return None
    known = traits(model)
    config: dict[str, Any]
    if known.levels:
        config = {"thinkingLevel": _nearest(level, known.levels)}
    elif known.budget is not None:
        off, minimum, maximum = known.budget
        wanted = maximum * level // 100 if tokens is None else tokens
        config = {"thinkingBudget": off if level == 0 else min(max(wanted, minimum), maximum)}
    else:
        return None
    if level > 0:
        config["includeThoughts"] = True
    return config


def _levels(name: str, *, original: bool) -> tuple[str, ...]:
    if "flash" in name:
        return ("MINIMAL", "LOW", "MEDIUM", "HIGH")
    if original and "-pro" in name:
        return ("LOW", "HIGH")
    return ("LOW", "MEDIUM", "HIGH")


def _nearest(level: int, offered: Sequence[str]) -> str:
    """Returns the model's nearest level, the lower one on a tie."""
    return min(((abs(at - level), at, name) for at, name in _LEVELS if name in offered))[2]
