"""A call that waits for a person survives kills, and begins once with what was approved in another process."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from weftline.kernel.entries import AwaitClosed, AwaitOpened, CallOpened, CallStarted, RunAdopted

from . import asking_process
from .log import check_whole, read_logs
from .playing import play_apart, play_on

POINTS = [f"await.{word}:{when}" for word in ("opened", "closed", "passed") for when in ("before", "after")]


@pytest.mark.requirement("run.await.once", "run.crash.ends")
@pytest.mark.parametrize(
    ("asking", "answering"),
    [
        ("", ""),
        ("await.opened:before#1", "await.closed:before#1"),
        ("await.opened:after#1", "await.closed:after#1"),
        ("await.passed:before#1", ""),
        ("await.passed:after#1", ""),
    ],
)
def test_call_that_waits_for_person_survives_kill_at(asking: str, answering: str, tmp_path: Path) -> None:
    assert play(tmp_path, "ask", point=asking).returncode == -signal.SIGKILL
    if ":before" in asking:
        assert play(tmp_path, "ask").returncode == -signal.SIGKILL  # nobody may have been asked yet
    if answering:
        assert play(tmp_path, "answer", point=answering).returncode == -signal.SIGKILL
    done = play_on(asking_process.__file__, str(tmp_path), "answer")
    assert done.returncode == 0, done.stderr
    if "is in doubt" in done.stderr:  # the approval and the start of the call were one commit, and the kill came then
        assert answering == "await.closed:after#1" and not (tmp_path / "told.txt").exists()
    else:
        assert done.stdout.startswith("returned:Paid 4.")
        assert (tmp_path / "told.txt").read_text() == "paid 4\n"
    (log,) = read_logs(tmp_path / "data").values()
    check_whole(log)
    (opened,), (closed,) = log.of(AwaitOpened), log.of(AwaitClosed)
    assert (closed.id, closed.outcome, closed.by) == (opened.id, "approved", "user:bob")
    assert opened.digest != closed.digest == log.of(CallOpened)[0].digest
    assert len(log.of(CallStarted)) == 1
    assert len(log.of(RunAdopted)) <= 1  # for a turn that was lost, never for the wait


def play(folder: Path, role: str, *, point: str = "") -> subprocess.CompletedProcess[str]:
    return play_apart(asking_process.__file__, str(folder), role, point=point)
