"""When an agent's requests are made shorter by a summary. Unlike stubs in a single request, a summary is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from weftline.kernel.context import CompactionRule


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """A model sums up the older messages, and requests have the summary in their place from then on.

        Agent(…, behavior=Behavior(compaction=Compaction(at_tokens=100_000, model="openai:gpt-5-mini")))

    That happens before a request of more than about `at_tokens` or of `at_turns`, and when the model refuses one as too
    long. The first message, what the run was asked and the last `keep_turns` turns stay as they are; so does everything
    in the log.
    """

    at_tokens: int | None = None
    """Tokens are estimated, at four bytes each. Without this and `at_turns` the model has to refuse a request first."""
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
            raise ValueError(f"keep_turns must not be negative, not {self.keep_turns!r}")
        given = cast("object", self.model)
        if given is not None and not (isinstance(given, str) and given.strip()):
            # It is stored with the run: the next process could not find an object again.
            raise ValueError(f"model is the name of a model, or None for the run's own, not {given!r}")

    @property
    def rule(self) -> CompactionRule:
        """This, as a run's log stores it."""
        return CompactionRule(self.keep_turns, self.at_tokens, self.model or "", self.at_turns)
