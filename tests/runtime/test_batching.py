"""More is waiting than one flush should hold."""

from __future__ import annotations

from weftline.plan import RunPlan
from weftline.runtime.batching import MAX_BATCH_BYTES, FairBatches
from weftline.runtime.conversation import Conversation
from weftline.runtime.live import LiveRun, Outbox, RunLog, WorkingSet

LARGE = MAX_BATCH_BYTES + 1


def run(workspace: int, size: int) -> LiveRun:
    work = WorkingSet("run_1", RunPlan(messages=()), Conversation([]))
    return LiveRun(1, workspace, thread=None, log=RunLog(1, outbox=Outbox(size=size)), work=work)


def test_fitting_writes_go_at_once_and_large_ones_alone() -> None:
    few = [run(1, 10), run(2, 20), run(1, MAX_BATCH_BYTES - 30)]
    assert FairBatches().divide(few) == (few, [])
    many = [run(1, LARGE), run(1, LARGE)]
    assert FairBatches().divide(many) == (many[:1], many[1:])


def test_workspace_with_many_large_writes_waits_its_turn() -> None:
    """Two of them take turns, and a third that comes with something small does not wait for both to be done."""
    turns, left = FairBatches(), [*[run(1, LARGE) for _ in range(9)], *[run(2, LARGE) for _ in range(9)]]
    served: list[list[int]] = []
    for number in range(6):
        if number == 3:
            left.append(run(3, 10))
        taken, left = turns.divide(left)
        served.append([one.workspace for one in taken])
    assert served == [[1], [2], [1], [3, 2], [1], [2]]


def test_the_writes_of_a_workspace_stay_in_order() -> None:
    waiting = [run(1, MAX_BATCH_BYTES // 2) for _ in range(7)]
    turns, left, order = FairBatches(), list(waiting), list[LiveRun]()
    while left:
        taken, left = turns.divide(left)
        order += taken
    assert all(one is other for one, other in zip(order, waiting, strict=True))
