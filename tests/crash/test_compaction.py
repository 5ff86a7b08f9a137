"""A summary that is durable is never asked for again after a kill; one that was not is counted and made once more."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from weftline.kernel.context import CompactionFailed, CompactionStarted, ContextCompacted, ContextRestored
from weftline.messages import Usage

from . import compaction_process
from .log import abandoned, check_whole, read_logs
from .playing import play_apart, play_on

FACTS = ("compaction.failed", "compaction.started", "context.compacted", "context.measured", "context.restored")
POINTS = [f"{fact}:{when}" for fact in FACTS for when in ("before", "after")]


@pytest.mark.requirement("run.crash.ends", "run.history.compress_kept")
@pytest.mark.parametrize(
    ("point", "asked"),
    [("compaction.started:after", {1, 2}), ("context.compacted:before", {2}), ("context.compacted:after", {1})],
)
def test_run_with_summary_goes_on_after_kill_at(point: str, asked: set[int], tmp_path: Path) -> None:
    killed = play(tmp_path, point=point)
    assert killed.returncode == -signal.SIGKILL, f"nothing died at {point}: {killed.stderr}"
    done = play_on(compaction_process.__file__, str(tmp_path), "ends")
    assert (done.returncode, done.stdout.strip()) == (0, "A novel. | Page 2"), done.stderr
    (log,) = read_logs(tmp_path / "data").values()
    check_whole(log)
    assert len((tmp_path / "told.txt").read_text().splitlines()) in asked
    started, lost = log.of(CompactionStarted), log.of(CompactionFailed)
    assert len(log.of(ContextCompacted)) == 1
    assert [fact.number for fact in started] == list(range(1, len(started) + 1))
    assert [fact.reason for fact in lost] == ["abandoned"] * (len(started) - 1)
    assert len(lost) <= (point != "context.compacted:after")  # its start may have been in the commit that was lost
    estimated = sum([fact.usage.input for fact in (*lost, *abandoned(log))])
    assert log.end.usage == Usage(input=40 + estimated, output=20), "what was lost may have been billed"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("how", "fact"),
    [
        ("ends", "context.measured"),
        ("ends", "compaction.started"),
        ("fails", "compaction.failed"),
        ("undone", "context.restored"),
    ],
)
def test_run_ends_as_it_would_have_after_kill_at(how: str, fact: str, when: str, tmp_path: Path) -> None:
    killed = play(tmp_path, how, point=f"{fact}:{when}")
    assert killed.returncode == -signal.SIGKILL, f"nothing died at {fact}: {killed.stderr}"
    done = play_on(compaction_process.__file__, str(tmp_path), how)
    assert (done.returncode, done.stdout.partition(" | ")[0]) == (0, "A novel."), done.stderr
    (log,) = read_logs(tmp_path / "data").values()
    check_whole(log)
    assert len(log.of(ContextCompacted)) == (how != "fails")
    assert len(log.of(ContextRestored)) == (how == "undone")


def play(folder: Path, how: str = "ends", *, point: str = "") -> subprocess.CompletedProcess[str]:
    return play_apart(compaction_process.__file__, str(folder), how, point=point)
