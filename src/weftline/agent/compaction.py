"""When an agent's requests are shortened by a summary. Unlike stubs, which affect a single request, it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from weftline.kernel.context import CompactionRule


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
