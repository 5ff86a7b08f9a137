"""Behavior of an agent during its runs: knobs that are neither the model's settings nor limits.

    Agent(…, behavior=Behavior(compact_strategy="tail", tool_budgets={"search": 5}))

Each knob is taken from the run, else from the agent, else from its preset, else from `DEFAULTS`; None means not set.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from weftline.agent import argument_checks
from weftline.errors import Conflict, InvalidRequest
from weftline.kernel.context import CompactionRule
from weftline.work.outcomes import attempt


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """A model summarizes the older messages, and later requests have the summary in their place.

        Agent(…, behavior=Behavior(compaction=Compaction(at_tokens=100_000, model="openai:gpt-5-mini")))

    This happens before a request of more than about `at_tokens` or of `at_turns`, and when the model refuses one as too
    long. The first message, the run's prompt and the last `keep_turns` turns stay as they are, and so does the log.
    """

    at_tokens: int | None = None
    """Tokens are estimated at four bytes each. Without this and `at_turns`, only a refused request is shortened."""
    at_turns: int | None = None
    keep_turns: int = 4
    """A turn is a model's message with the results of its calls."""
    model: str | None = None
    """The model that writes the summary; None for the run's own."""

    def __post_init__(self) -> None:
        if self.at_tokens is not None and (isinstance(self.at_tokens, bool) or self.at_tokens < 1):
            raise ValueError(f"at_tokens must be above 0, not {self.at_tokens!r}")
        if self.at_turns is not None and (isinstance(self.at_turns, bool) or self.at_turns < 1):
            raise ValueError(f"at_turns must be above 0, not {self.at_turns!r}")
        if self.at_turns is not None and self.keep_turns >= self.at_turns:
            raise ValueError(f"keep_turns must be below at_turns ({self.at_turns}), not {self.keep_turns!r}")
        if isinstance(self.keep_turns, bool) or self.keep_turns < 0:
            raise ValueError(f"keep_turns must be 0 or more, not {self.keep_turns!r}")
        given = cast("object", self.model)
        if given is not None and not (isinstance(given, str) and given.strip()):
            # It is stored with the run, and the next process could not find an object again.
            raise ValueError(f"model must be the name of a model, or None for the run's own, not {given!r}")

    @property
    def rule(self) -> CompactionRule:
        """The rule as the run's log stores it."""
        return CompactionRule(self.keep_turns, self.at_tokens, self.model or "", self.at_turns)


logger = logging.getLogger(__name__)

Hasher: TypeAlias = Callable[[Mapping[str, Any]], str]
"""Returns the text that identifies a call's arguments: calls with the same text count as the same call."""
Decays: TypeAlias = Callable[[int, int], float]
"""Returns the budget of a turn (counted from 1), given the budget of the first turn."""
Mode: TypeAlias = Literal["block", "steer"]


@dataclass(frozen=True)
class Exceeded:
    """A call beyond the budget of its tool: the `count`th, where `max` are allowed."""

    tool: str
    max: int
    count: int


@dataclass(frozen=True)
class Ruling:
    """The decision about a call beyond its budget. Without a message, the model reads a standard one."""

    mode: Mode
    message: str = ""

    def __post_init__(self) -> None:
        if self.mode not in ("block", "steer"):
            raise ValueError(f'a mode must be "block" or "steer", not {self.mode!r}')


@dataclass(frozen=True)
class ToolBudget:
    """A limit on calls of one tool in a run, and the treatment of calls beyond it.

    `block` refuses it. `steer` lets it run and informs the model, once per tool and run. A function decides each case.
    """

    max: int
    on_exceed: Mode | Callable[[Exceeded], Ruling] = "block"

    def __post_init__(self) -> None:
        if self.max < 0:
            raise ValueError(f"the budget of a tool must be 0 or more, not {self.max}")
        if not callable(self.on_exceed) and self.on_exceed not in ("block", "steer"):
            raise ValueError(f'on_exceed must be "block", "steer" or a function, not {self.on_exceed!r}')


@dataclass(frozen=True)
class ThinkingDecay:
    """Less reasoning in later turns: from `after_turn` on, `factor` times as much in each, down to `floor`."""

    after_turn: int
    factor: float
    floor: int = 0

    def __post_init__(self) -> None:
        if self.after_turn < 0 or self.floor < 0 or not 0 <= self.factor <= 1:
            raise ValueError("thinking_decay: after_turn and floor must be 0 or more, and factor from 0 to 1")

    def __call__(self, turn: int, base: int) -> float:
        late = max(turn - self.after_turn, 0)
        return max(float(self.floor), base * self.factor**late) if late else base


@dataclass(frozen=True)
class ToolSearch:
    """Settings for finding withheld tools. Without `tool` the agent gets a built-in search."""

    default_limit: int = 5
    tool: bool = True

    def __post_init__(self) -> None:
        if self.default_limit < 1:
            raise ValueError(f"default_limit must be above 0, not {self.default_limit}")


@dataclass(frozen=True, kw_only=True)
class Behavior:
    """Behavior of an agent during its runs: `Agent(…, behavior=Behavior(compact_strategy="tail"))`.

    docs/behaviors.md describes each knob. A knob is taken from the run, else from the agent, else from its preset, else
    from `DEFAULTS`; None means not set.
    """

    cache: bool | None = None
    """Whether requests mark what the model's provider may cache."""
    tool_execution: Literal["auto", "sequential"] | None = None
    """`sequential` runs a turn's calls one after the other, even if their tools could run concurrently."""
    tool_budgets: Mapping[str, ToolBudget | int] | None = None
    """How often tools may be called in a run; a plain number blocks further calls."""
    tool_output_budget_bytes: int | None = None
    """If a turn's results are larger than this, the model is asked to summarize. Nothing is cut."""
    model_result_limit_bytes: int | None = None
    """The model reads only a preview of a larger result, with its bounds.

    The log and the run's result have it whole.
    """
    dedup_tools: Mapping[str, Hasher | None] | None = None
    """Reading tools whose last result is repeated if they are called with the same arguments, or the same hash."""
    compact_strategy: Literal["off", "tail"] | None = None
    compact_threshold_bytes: int | None = None
    """With `tail`: how large the results in a request may get before older ones are replaced by stubs."""
    compact_keep_turns: int | None = None
    """With `tail`: how many of the latest turns keep their results."""
    compaction: Compaction | None = None
    """When a model summarizes the older messages for all later requests."""
    keep_recent_turns: int | None = None
    """Requests contain only this many of the latest turns, after leading system messages. The log keeps all of them."""
    elide_stale_reads: bool | None = None
    """Whether requests replace what was read from a file with a stub once the file has been changed."""
    persist_threshold_bytes: int | None = None
    """Larger results are written to a file in `persist_dir`; the conversation has a stub with a preview."""
    persist_dir: str | os.PathLike[str] | None = None
    persist_exclude_tools: Sequence[str] | None = None
    reasoning_budget_tokens: int | None = None
    """How many tokens the model may think in a turn, instead of the level of `Settings.reasoning`."""
    thinking_decay: ThinkingDecay | Decays | None = None
    """Less reasoning in later turns: of the token budget if there is one, else on the scale 0–100."""
    tool_disclosure: Literal["eager", "lazy"] | None = None
    """Whether tools of MCP servers are offered at once or have to be found with `tool_search`."""
    tool_search: ToolSearch | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                words = " or ".join([f'"{one}"' for one in allowed])
                raise ValueError(f"{name} must be {words}, not {value!r}")
        for name, least in _MINIMUM.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ValueError(f"{name} must be {least} or more, not {value!r}")
        for name, (kinds, like) in _KINDS.items():
            if getattr(self, name) is not None:
                argument_checks.expect(name, getattr(self, name), kinds, like)
        for tool, budget in (self.tool_budgets or {}).items():
            if not isinstance(budget, ToolBudget):
                argument_checks.number(f"tool_budgets: the budget of {tool!r}", budget, whole=True)
        for tool, hasher in (self.dedup_tools or {}).items():
            if hasher is not None and not callable(hasher):
                raise TypeError(f"dedup_tools: {tool!r} takes a function of the arguments, or None, not {hasher!r}")
        if self.persist_exclude_tools is not None:
            argument_checks.texts("persist_exclude_tools", self.persist_exclude_tools, such_as="['search']")
        if self.thinking_decay is not None and not callable(self.thinking_decay):
            like = "a ThinkingDecay, or a function of the turn and the base"
            raise TypeError(f"thinking_decay must be {like}, not {self.thinking_decay!r}")
        for name in ("cache", "elide_stale_reads"):
            if getattr(self, name) not in (None, True, False):
                raise ValueError(f"{name} must be True or False, not {getattr(self, name)!r}")

    def over(self, below: Behavior) -> Behavior:
        """Returns these knobs, with those of `below` where these are not set."""
        mine = _given(self)
        return Behavior(**{**_given(below), **mine})

    def stored(self) -> dict[str, Any]:
        """Returns the knobs that are set, as JSON values.

        Raises `InvalidRequest` for functions, which cannot be stored.
        """
        values = _given(self)
        for name in ("tool_budgets", "dedup_tools", "thinking_decay"):
            if any(map(callable, _functions_in(values.get(name)))):
                raise InvalidRequest(f"A durable run cannot be given {name} with a function; set it on the agent.")
        if "persist_dir" in values:
            values["persist_dir"] = os.fspath(values["persist_dir"])
        return msgspec.to_builtins(values)

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> Behavior:
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in stored.items() if name in known}
        if "tool_budgets" in values:
            budgets = cast("dict[str, Any]", values["tool_budgets"])
            values["tool_budgets"] = {tool: _budget(one) for tool, one in budgets.items()}
        if "thinking_decay" in values:
            values["thinking_decay"] = ThinkingDecay(**values["thinking_decay"])
        if "compaction" in values:
            values["compaction"] = Compaction(**values["compaction"])
        if "tool_search" in values:
            values["tool_search"] = ToolSearch(**values["tool_search"])
        return cls(**values)


_CHOICES: Final = {
    "tool_execution": ("auto", "sequential"),
    "compact_strategy": ("off", "tail"),
    "tool_disclosure": ("eager", "lazy"),
}
_MINIMUM: Final = {
    "tool_output_budget_bytes": 0,
    "model_result_limit_bytes": 1,
    "compact_threshold_bytes": 0,
    "compact_keep_turns": 0,
    "keep_recent_turns": 1,
    "persist_threshold_bytes": 0,
    "reasoning_budget_tokens": 0,
}

_KINDS: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    "tool_budgets": (Mapping, "budgets by tool, such as {'search': 5}"),
    "dedup_tools": (Mapping, "functions or None by tool, such as {'search': None}"),
    "compaction": (Compaction, "a Compaction, such as Compaction(at_tokens=100_000)"),
    "persist_dir": ((str, os.PathLike), "a directory"),
    "tool_search": (ToolSearch, "a ToolSearch, such as ToolSearch(default_limit=5)"),
}

DEFAULTS: Final = Behavior(
    cache=True,
    tool_execution="auto",
    compact_strategy="off",
    compact_threshold_bytes=128 * 1024,
    compact_keep_turns=4,
    elide_stale_reads=False,
    persist_exclude_tools=(),
    tool_disclosure="eager",
    tool_search=ToolSearch(),
)
"""What applies when nothing is set. Knobs that are None here are off."""


def resolved(*layers: Behavior | None) -> Behavior:
    """Returns each knob from the first layer that sets it, else its default."""
    found = DEFAULTS
    for layer in reversed(layers):
        if layer is not None:
            found = layer.over(found)
    return found


def blocking_budgets(budgets: Mapping[str, ToolBudget | int] | None) -> dict[str, int]:
    """Returns the budgets that block further calls, by tool."""
    found: dict[str, int] = {}
    for tool, budget in (budgets or {}).items():
        if not isinstance(budget, ToolBudget):
            found[tool] = budget
        elif budget.on_exceed == "block":
            found[tool] = budget.max
    return found


def other_budgets(budgets: Mapping[str, ToolBudget | int] | None) -> dict[str, ToolBudget]:
    """Returns the budgets that steer or call a function, by tool."""
    return {
        tool: budget
        for tool, budget in (budgets or {}).items()
        if isinstance(budget, ToolBudget) and budget.on_exceed != "block"
    }


def decayed(decay: ThinkingDecay | Decays, *, turn: int, base: int) -> int:
    """Returns what is left of `base` in a turn, counted from 1: between 0 and `base`, which stays if `decay` fails."""
    with attempt(logger, "thinking_decay failed; the model reasons as much as without it"):
        return min(max(int(decay(turn, base)), 0), base)
    return base


def level_of(tokens: int) -> int:
    """Returns the level on the scale 0–100 that corresponds to this many tokens of reasoning."""
    if tokens <= 0:
        return 0
    for (low, at_low), (high, at_high) in pairwise(_SCALE):
        if tokens <= high:
            return max(round(at_low + (at_high - at_low) * (tokens - low) / (high - low)), 1)
    return 100


_SCALE: Final = ((0, 0), (1024, 15), (4096, 30), (10240, 50), (32768, 80), (65536, 100))


def _budget(stored: Any) -> ToolBudget | int:
    return stored if isinstance(stored, int) else ToolBudget(stored["max"], stored["on_exceed"])


def _given(behavior: Behavior) -> dict[str, Any]:
    values = {field.name: getattr(behavior, field.name) for field in fields(Behavior)}
    return {name: value for name, value in values.items() if value is not None}


def _functions_in(value: object) -> list[object]:
    if isinstance(value, ThinkingDecay):
        return []
    if not isinstance(value, Mapping):
        return [value]
    found = list(cast("Mapping[str, object]", value).values())
    return [one.on_exceed if isinstance(one, ToolBudget) else one for one in found]


def check_dedup(tool: str, effect: str) -> None:
    """Raises `Conflict` for a tool with side effects: skipping one of its calls would make a difference."""
    if effect != "read":
        raise Conflict(f"dedup_tools: {tool!r} is not a tool that only reads (its effect is {effect!r}).")
