"""Steering, pausing and resuming have no route yet: a process with an engine of its own is killed at their writes."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from weftline.kernel.entries import Fact, MessageQueued, MessagesTaken, RunPaused, RunResumed

from . import engine_process
from .conftest import Template
from .engine_process import STEPS
from .log import RunLog, check_carried_on, check_whole, read_logs
from .playing import play_apart, play_on
from .scripts import SCRIPTS

POINTS = [
    f"{write}:{side}#{hit}"
    for write, hits in (("message.queued", 2), ("messages.taken", 2), ("run.paused", 1), ("run.resumed", 1))
    for hit in range(1, hits + 1)
    for side in ("before", "after")
]
SHOWN_BY: dict[str, type[Fact]] = {"paused": RunPaused, "resumed": RunResumed}


@pytest.mark.requirement("run.crash.acknowledged", "run.crash.ends", "run.crash.terminal_once")
@pytest.mark.parametrize("point", POINTS)
def test_messages_pauses_and_resumes_count_once_after_a_kill_at(point: str, template: Template, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(template.store, store)
    (tmp_path / "scripts.json").write_text(json.dumps(SCRIPTS))

    code, told = play(tmp_path, point=point, done=[])
    assert code == -signal.SIGKILL, f"nothing died at {point}"
    before = read_logs(store)
    for step in told:
        if step in SHOWN_BY:
            assert len(before[1].of(SHOWN_BY[step])) == 1, f"{step} was acknowledged and is not in the log"
    assert len(before[1].of(MessageQueued)) >= len({"steered", "followed_up"} & set(told))

    code, told_later = play(tmp_path, point="", done=told)
    assert (code, told + told_later) == (0, list(STEPS))
    (log,) = read_logs(store).values()
    check_whole(log)
    check_carried_on(before[1], log)
    check_once(log)


def play(folder: Path, *, point: str, done: list[str]) -> tuple[int, list[str]]:
    """Runs the process; returns its exit code and the steps that it was told of."""
    arguments = (engine_process.__file__, str(folder / "store"), str(folder / "scripts.json"), ",".join(done))
    played = play_apart(*arguments, point=point) if point else play_on(*arguments)
    assert played.returncode in (0, -signal.SIGKILL), played.stderr
    return played.returncode, played.stdout.split()


def check_once(log: RunLog) -> None:
    assert len(log.of(RunPaused)) == len(log.of(RunResumed)) == 1
    queued = [fact.id for fact in log.of(MessageQueued)]
    assert [identity for fact in log.of(MessagesTaken) for identity in fact.ids] == queued and len(queued) == 2
    assert log.end.status == "succeeded" and log.end.undelivered == ()
    *_, (_, _, body) = log.entries.values()
    assert json.loads(body)["text"] == "Go. | steered | followed_up: yes"
