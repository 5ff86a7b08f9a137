"""Loop detection: how often a model has repeated itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Literal

from msgspec.structs import replace

from weftline.kernel.entries import EXECUTED, Limits
from weftline.kernel.state import Call, Streak

PERIODS = (1, 2, 3, 4)
_NONE = (0, 0, 0, 0)


def signature(calls: Iterable[tuple[str, str]]) -> str:
    """One value for a turn's calls (name and argument digest), regardless of order."""
    joined = "\n".join(sorted([f"{name} {digest}" for name, digest in calls]))
    return blake2b(joined.encode(), digest_size=12).hexdigest()


def after_turn(streak: Streak, sign: str, limits: Limits) -> Streak:
    """The streak after one more turn of calls. A turn that breaks the repetition resets what was reported."""
    recent, before = streak.recent, streak.matches
    matches = _NONE
    if sign in recent:
        matches = tuple([before[p - 1] + 1 if len(recent) >= p and recent[-p] == sign else 0 for p in PERIODS])
    new = replace(streak, recent=(*recent, sign)[-4:], matches=matches)
    return replace(new, reported=False) if streak.reported and repetitions(new)[0] < limits.loop_soft else new


def repetitions(streak: Streak) -> tuple[int, Literal["calls", "cycle"]]:
    """Returns how often the latest sequence of turns occurred in a row, including the first time."""
    one, two, three, four = streak.matches
    same, cycle = one + 1, max(two // 2, three // 3, four // 4) + 1
    return (same, "calls") if same >= cycle else (cycle, "cycle")


def after_batch(streak: Streak, calls: Sequence[Call]) -> Streak:
    """Counts turns that call the same tools with different arguments and get equal results."""
    for call in calls:
        if call.effect != "read" or call.how not in EXECUTED:
            return replace(streak, results="", same_results=0) if streak.same_results else streak
    results = signature([(call.name, call.result) for call in calls])
    repeated_calls = streak.matches[0] > 0
    same = streak.same_results + 1 if results == streak.results and not repeated_calls else 1
    return replace(streak, results=results, same_results=same)
