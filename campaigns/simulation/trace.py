"""What happened in one history, for understanding a failing seed."""

from __future__ import annotations

from collections.abc import Callable


class Violation(BaseException):
    """A promise was broken. `rule` is its number in the list of invariants (C1, S9, K13, …).

    It is not an `Exception`: the code under test handles those.
    """

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.seed: int | None = None
        self.trace: list[str] = []

    def report(self) -> str:
        """The failure with its trace."""
        lines = "\n".join(self.trace)
        return f"seed {self.seed} breaks {self}\n{lines}"


class Trace:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self.lines: list[str] = []
        self._now_s = now_s

    def note(self, what: str) -> None:
        self.lines.append(f"{self._now_s():12.6f}  {what}")


def require(rule: str, holds: bool, what: str) -> None:
    if not holds:
        raise Violation(rule, what)
