"""Kills at the facts of policies: a decision that is durable is not asked for again, and a cap is reached once."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path

import pytest

from weftline.kernel.policy import CapReached, PolicyDecided, RunUnattended

from . import policy_process
from .log import check_whole, read_logs
from .playing import play_apart, play_on

FACTS = ("cap.reached", "policy.decided", "run.unattended")
POINTS = [f"{fact}:{when}" for fact in FACTS for when in ("before", "after")]


@pytest.mark.requirement("run.crash.ends", "run.policy.decision")
@pytest.mark.parametrize("point", POINTS)
def test_run_with_a_policy_survives_a_kill_at(point: str, tmp_path: Path) -> None:
    plan = (point,) if not point.startswith("run.unattended") else ("turn.completed:after", point)
    for death in plan:
        killed = play_apart(policy_process.__file__, str(tmp_path), point=death)
        assert killed.returncode == -signal.SIGKILL, f"nothing died at {death}: {killed.stderr}"
    done = play_on(policy_process.__file__, str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "A novel. tool_cap ['returned', 'cap']\n"), done.stderr
    (log,) = read_logs(tmp_path / "data").values()
    check_whole(log)
    assert [fact.turn for fact in log.of(PolicyDecided)] == [0, 1]
    assert len(log.of(CapReached)) == 1
    # Before its first decision a run may have begun nothing, and after its last cap it may be done before the kill.
    assert log.of(RunUnattended) or point in ("policy.decided:before", "cap.reached:after"), "the clock was running"
    asked = (tmp_path / "asked.txt").read_text().split()
    assert set(asked) == {"0", "1"}
    # By the time a kill takes effect the run may have gone on to the next turn and asked for that.
    assert sum(later <= earlier for earlier, later in pairwise(asked)) <= len(plan), "asked again without a kill"
    assert point != "policy.decided:after" or asked.count("0") == 1, "a durable decision was asked for again"
