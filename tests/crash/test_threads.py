"""What is said on a thread is there once, whenever the process is killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from . import thread_process
from .playing import play_apart, play_on

WRITES = {"messages.edited": 2}
POINTS = [
    f"{write}:{side}#{hit}"
    for write, hits in WRITES.items()
    for hit in range(1, hits + 1)
    for side in ("before", "after")
]


@pytest.mark.requirement("run.crash.ends")
@pytest.mark.parametrize("point", ["", *POINTS])
def test_message_is_put_there_once_and_read(point: str, tmp_path: Path) -> None:
    if point:
        killed = play_apart(thread_process.__file__, str(tmp_path), point=point)
        assert killed.returncode == -signal.SIGKILL, f"nothing died at {point}: {killed.stderr}"
    done = play_on(thread_process.__file__, str(tmp_path))
    assert (done.returncode, done.stdout.strip()) == (0, "True Changed. | Noted."), done.stderr
