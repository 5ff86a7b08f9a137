"""A process that dies while it schedules, begins or settles effects: each exists once, and runs to its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from . import effect_process
from .playing import play_apart, play_on

POINTS = [
    f"{write}:{side}#{hit}"
    for write in ("effect.scheduled", "effect.begun", "effect.settled")
    for side in ("before", "after")
    for hit in (1, 2)
]


@pytest.mark.parametrize("point", POINTS)
def test_each_effect_runs_to_its_end_after_kill_at(point: str, tmp_path: Path) -> None:
    assert play_apart(effect_process.__file__, str(tmp_path), point=point).returncode == -signal.SIGKILL
    done = play_on(effect_process.__file__, str(tmp_path))
    first, second, *statuses = done.stdout.split()
    assert (done.returncode, statuses) == (0, ["executed"] * 2), done.stderr
    # What had run, and was not settled when the process died, runs again.
    assert 1 <= int(first) <= 2 and 1 <= int(second) <= 2
    if point.startswith("effect.scheduled"):
        assert int(second) == 1
