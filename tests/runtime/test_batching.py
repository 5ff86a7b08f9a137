"""Which writes share a commit."""

from __future__ import annotations

from weftline.plan import RunPlan
from weftline.runtime.batching import MAX_BATCH_BYTES, SHARE_BYTES, WriteQueue
from weftline.runtime.conversation import Conversation
from weftline.runtime.live import LiveRun, Outbox, RunLog, WorkingSet

STEP = 1300
"""About what a step of a run writes."""


def run(workspace: int, size: int = STEP) -> LiveRun:
    work = WorkingSet("run_1", RunPlan(messages=()), Conversation([]))
    return LiveRun(1, workspace, thread=None, log=RunLog(1, outbox=Outbox(size=size)), work=work)


def queue_of(*runs: LiveRun) -> WriteQueue:
    queue = WriteQueue()
    for one in runs:
        queue.put(one)
    return queue


def batches(queue: WriteQueue) -> list[list[int]]:
    """The workspaces in each commit until nothing is left."""
    taken: list[list[int]] = []
    while len(queue):
        taken.append([one.workspace for one in queue.take_batch()])
    return taken


def size_of(batch: list[LiveRun], workspace: int) -> int:
    return sum([one.log.outbox.size for one in batch if one.workspace == workspace])


def test_a_workspace_alone_writes_everything_at_once() -> None:
    assert batches(queue_of(*[run(1) for _ in range(300)])) == [[1] * 300]


def test_write_too_large_for_a_commit_goes_alone() -> None:
    assert batches(queue_of(run(1, MAX_BATCH_BYTES), run(1, MAX_BATCH_BYTES), run(1))) == [[1], [1], [1]]


def test_nobody_waits_for_more_than_a_share_of_a_flood() -> None:
    queue = queue_of(*[run(1) for _ in range(300)], run(2))
    first = queue.take_batch()
    assert size_of(first, 2) == STEP
    assert size_of(first, 1) < SHARE_BYTES + STEP


def test_flood_keeps_to_its_share_between_runs_of_another() -> None:
    """The commit that is under way when the other comes back is small as well."""
    queue = queue_of(run(2))
    queue.take_batch()
    for _ in range(5):
        for _ in range(300):
            queue.put(run(1))
        assert size_of(queue.take_batch(), 1) < SHARE_BYTES + STEP


def test_flood_writes_everything_once_others_are_long_gone() -> None:
    queue = queue_of(run(2))
    queue.take_batch()
    for _ in range(1000):
        queue.put(run(1))
        queue.take_batch()
    for _ in range(300):
        queue.put(run(1))
    assert len(queue.take_batch()) == 300


def test_large_write_does_not_delay_a_small_commit() -> None:
    queue = queue_of(run(1, 2_000_000), run(1, 2_000_000), run(2))
    assert batches(queue) == [[1], [2], [1]]


def test_writes_of_usual_size_of_many_workspaces_share_a_commit() -> None:
    assert batches(queue_of(*[run(number, 2 * SHARE_BYTES) for number in range(20)])) == [[*range(20)]]


def test_many_large_writes_let_small_ones_pass_after_each() -> None:
    queue = queue_of(*[run(1, 2_000_000) for _ in range(9)])
    order: list[int] = []
    for _ in range(5):
        queue.put(run(2))
        order += [one.workspace for one in queue.take_batch()]
        order += [one.workspace for one in queue.take_batch()]
    assert order == [1, 2] * 5


def test_small_writes_do_not_hold_up_a_large_one() -> None:
    queue = queue_of(run(2), run(1, 2_000_000))
    order: list[list[int]] = []
    for _ in range(4):
        queue.put(run(2))
        order.append([one.workspace for one in queue.take_batch()])
    assert [1] in order


def test_workspaces_with_large_writes_take_turns() -> None:
    queue = queue_of(*[run(1, MAX_BATCH_BYTES) for _ in range(3)], *[run(2, MAX_BATCH_BYTES) for _ in range(3)])
    assert batches(queue) == [[1], [2], [1], [2], [1], [2]]


def test_the_writes_of_a_workspace_stay_in_order() -> None:
    waiting = [run(1, MAX_BATCH_BYTES // 2) for _ in range(7)]
    queue, order = queue_of(*waiting), list[LiveRun]()
    while len(queue):
        order += queue.take_batch()
    assert all(one is other for one, other in zip(order, waiting, strict=True))


def test_withdrawn_run_is_not_written() -> None:
    runs = [run(2), run(1, 2_000_000), run(1)]
    queue = queue_of(*runs)
    assert queue.take_batch() == [runs[0]]
    queue.withdraw(runs[1])
    assert queue.take_batch() == [runs[2]]
    assert queue.take_all() == []
