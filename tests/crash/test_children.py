"""A process with child runs is killed around both transactions that tie a child to its parent.

No child is started twice, no result is lost, nothing is paid or counted twice.
"""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from weftline.kernel.entries import (
    AttemptFailed,
    AwaitClosed,
    AwaitOpened,
    CallStarted,
    ChildEnded,
    ChildWaits,
    RunCreated,
    TurnCompleted,
)
from weftline.kernel.evolve import fold
from weftline.kernel.state import State
from weftline.messages import Usage

from . import children_process, tree_process, waiting_process
from .log import RunLog, check_carried_on, check_whole, read_logs, reading
from .playing import play_apart, play_on

POINTS = [
    f"{write}:{side}#{hit}"
    for write, hits in (("call.started", 2), ("run.created", 2), ("run.ended", 3), ("child.ended", 2))
    for hit in range(1, hits + 1)
    for side in ("before", "after")
]
WAITS = [f"child.waits:{side}#{hit}" for hit in (1, 2) for side in ("before", "after")]
IN_LINE = ["call.started:after#1", "run.ended:after#1", "child.ended:before#2", "child.ended:after#2"]
WORDS = "Done. | returned:a paid returned:b has nothing to pay |"


@pytest.mark.requirement("run.crash.ends", "run.crash.calls_once", "run.child.start")
@pytest.mark.parametrize("point", ["", *POINTS])
def test_children_go_on_after_a_kill_at(point: str, tmp_path: Path) -> None:
    before: dict[int, RunLog] = {}
    if point:
        killed = play_apart(children_process.__file__, str(tmp_path), point=point)
        assert killed.returncode == -signal.SIGKILL, f"nothing died at {point}: {killed.stderr}"
        before = read_logs(tmp_path / "data")
    done = play_on(children_process.__file__, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(WORDS), done.stdout
    logs = read_logs(tmp_path / "data")
    for key, log in logs.items():
        check_whole(log)
        if key in before:
            check_carried_on(before[key], log)
    check_family({log.run: log for log in logs.values()})
    told = (tmp_path / "told.txt").read_text().splitlines()
    assert len({line for line in told if line.startswith("paid")}) == 1, told


@pytest.mark.requirement("run.crash.ends", "run.crash.calls_once", "loop.spawn.limits")
@pytest.mark.parametrize(
    "point", ["call.started:after#1", "run.ended:after#1", "child.ended:before#2", "child.ended:after#2"]
)
def test_children_in_line_go_on_after_a_kill_at(point: str, tmp_path: Path) -> None:
    killed = play_apart(children_process.__file__, str(tmp_path), "1", point=point)
    assert killed.returncode == -signal.SIGKILL, f"nothing died at {point}: {killed.stderr}"
    done = play_on(children_process.__file__, str(tmp_path), "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(WORDS), done.stdout
    logs = read_logs(tmp_path / "data")
    check_family({log.run: log for log in logs.values()})
    (boss,) = [log for log in logs.values() if len(log.of(ChildEnded)) == 2]
    kinds = [type(fact) for fact in boss.facts if isinstance(fact, CallStarted | ChildEnded)]
    assert kinds == [CallStarted, ChildEnded] * 2, "one after the other"


@pytest.mark.requirement("run.child.await", "run.crash.ends", "run.crash.calls_once")
@pytest.mark.parametrize("point", WAITS)
def test_parent_clock_stops_with_its_child_after_kill_at(point: str, tmp_path: Path) -> None:
    killed = play_apart(waiting_process.__file__, str(tmp_path), point=point)
    assert killed.returncode == -signal.SIGKILL, f"nothing died at {point}: {killed.stderr}"
    done = play_on(waiting_process.__file__, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Done. returned\n"
    logs = read_logs(tmp_path / "data").values()
    for log in logs:
        check_whole(log)
    waits = [fact.waits for log in logs for fact in log.of(ChildWaits)]
    told = waits in ([True, False], [True])
    answered_first = not waits and point == "child.waits:before#1"
    assert told or answered_first, "it waits once, and goes on with the answer at the latest with the result"
    paid = tmp_path / "told.txt"
    # The approval and the start of the call may be one commit, and the kill may come right after that.
    assert "is in doubt" in done.stderr or paid.read_text() == "paid 5\n"


@pytest.mark.requirement("run.child.await", "run.crash.ends", "run.crash.calls_once")
@pytest.mark.parametrize("point", ["await.opened:before", "child.waits:after"])
def test_waiting_trees_spend_no_time_after_a_kill_at(point: str, tmp_path: Path) -> None:
    """The second process answers only once the clocks of all three stand still, by their logs."""
    killed = play_apart(tree_process.__file__, str(tmp_path), point=point)
    assert killed.returncode == -signal.SIGKILL, f"nothing died at {point}: {killed.stderr}"
    done = play_on(tree_process.__file__, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Done. returned\n3 of 3 calls, 0 reserved\n"
    assert (tmp_path / "told.txt").read_text() == "paid 5\n"
    logs = read_logs(tmp_path / "data")
    assert len(logs) == 3
    for log in logs.values():
        check_whole(log)
        facts = reading(tmp_path / "data", partial(tree_process.timed_facts, run_id=log.run))
        # The one that asks waits from its question on, those above it from what they are told of it.
        waited, began = 0, 0
        for at, fact in facts:
            if isinstance(fact, AwaitOpened) or (isinstance(fact, ChildWaits) and fact.waits):
                began = at
            elif began and isinstance(fact, AwaitClosed | ChildWaits | ChildEnded):
                waited, began = waited + at - began, 0
        state = fold(State(), facts)
        assert state.ended and waited >= 50_000
        assert 0 < state.policy.time.us <= facts[-1][0] - facts[0][0] - waited


def check_family(logs: dict[str, RunLog]) -> None:
    """Every child has one parent, which says so, and whose totals are its own and those of its children."""
    assert len(logs) == 4
    children: dict[str, str] = {}
    for log in logs.values():
        for started in log.of(CallStarted):
            if started.child:
                assert started.child not in children
                children[started.child] = log.run
                (created,) = logs[started.child].of(RunCreated)
                assert created.parent is not None
                link = created.parent
                assert (link.run, link.turn, link.index) == (log.run, started.turn, started.index)
    assert len(children) == 3
    for log in logs.values():
        ends = {(end.turn, end.index): end for end in log.of(ChildEnded)}
        mine = [started for started in log.of(CallStarted) if started.child]
        assert len(ends) == len(log.of(ChildEnded)) == len(mine)
        for started in mine:
            end, child = ends[started.turn, started.index], logs[started.child].end
            assert (end.status, end.usage, end.cost_nusd) == (child.status, child.usage, child.cost_nusd)
        own = [fact.usage for fact in (*log.of(TurnCompleted), *log.of(AttemptFailed))]
        assert log.end.usage == sum([*own, *[end.usage for end in ends.values()]], Usage())
