"""A process that dies between a schedule's run and the note that it began: each time still has one run."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from . import schedule_process
from .playing import play_apart, play_on

RUNS = ["run.created:before#2", "run.created:after#1", "run.created:after#2"]
NOTES = ["job:before#3", "job:after#3", "job:before#4", "job:after#4"]
"""The first two jobs make the workspace and the schedule; the others note that a run began."""


@pytest.mark.parametrize("point", [*RUNS, *NOTES])
def test_each_time_of_schedule_has_one_run_after_kill_at(point: str, tmp_path: Path) -> None:
    assert play(tmp_path, hours=2, point=point).returncode == -signal.SIGKILL
    for hours, times in ((2, "13:00 14:00"), (3, "13:00 14:00 15:00")):
        done = play(tmp_path, hours=hours)
        assert (done.returncode, done.stdout.strip()) == (0, times), done.stderr


def play(folder: Path, *, hours: int, point: str = "") -> subprocess.CompletedProcess[str]:
    arguments = (schedule_process.__file__, str(folder), str(hours))
    return play_apart(*arguments, point=point) if point else play_on(*arguments)
