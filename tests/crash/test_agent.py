"""Code of an agent's is asked again after a kill only if its answer was not durable; nothing is carried out twice."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from weftline.kernel.entries import CallGated, InstructionsRendered, OutputAccepted, OutputRejected, ResultsOverBudget

from . import agent_process
from .log import RunLog, check_whole, read_logs
from .playing import play_apart, play_on

WRITES = {
    "instructions.rendered": 1,
    "call.gated": 2,
    "results.over_budget": 1,
    "state.changed": 2,
    "output.accepted": 1,
    "output.rejected": 1,
}
POINTS = [
    f"{write}:{side}#{hit}"
    for write, hits in WRITES.items()
    for hit in range(1, hits + 1)
    for side in ("before", "after")
]
WORDS = "Done, please. | returned:Paid 1. returned:Paid 6. blocked:Blocked: Too much. returned:Paid 8."
"""A gate cut the second payment to 5; what the tool remembers says so."""


@pytest.mark.requirement("run.crash.ends", "run.crash.calls_once")
@pytest.mark.parametrize("point", ["", *POINTS])
def test_an_agent_goes_on_after_a_kill_at(point: str, tmp_path: Path) -> None:
    if point:
        killed = play_apart(agent_process.__file__, str(tmp_path), point=point)
        assert killed.returncode == -signal.SIGKILL, f"nothing died at {point}: {killed.stderr}"
    done = play_on(agent_process.__file__, str(tmp_path))
    assert (done.returncode, done.stdout.strip()) == (0, WORDS), done.stderr
    (log,) = read_logs(tmp_path / "data").values()
    check_whole(log)
    check_once(log, (tmp_path / "told.txt").read_text().splitlines(), kills=1 if point else 0)


def check_once(log: RunLog, told: list[str], *, kills: int) -> None:
    assert len(log.of(InstructionsRendered)) == len(log.of(ResultsOverBudget)) == 1
    assert [(fact.turn, fact.index, fact.verdict) for fact in log.of(CallGated)] == [
        (0, 0, "ok"),
        (0, 1, "ok"),
        (0, 2, "blocked"),
        (1, 0, "ok"),
    ]
    assert len(log.of(OutputRejected)) == len(log.of(OutputAccepted)) == 1
    counts = Counter(line.partition(" ")[0] for line in told)
    assert len({line for line in told if line.startswith("paid")}) == 3
    for what, times in {"rendered": 1, "gate": 4, "checked": 2, "paid": 3}.items():
        # A kill takes with it what was not durable, and code may have been asked ahead of the log.
        assert times <= counts[what] <= times * (1 + kills), (what, told)
