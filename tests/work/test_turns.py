"""Owners take turns, whatever waits: items, tasks, or iterations of the loop."""

from __future__ import annotations

import asyncio

import pytest

from weftline.work.turns import FairSemaphore, LoopQueue, RoundRobin


def test_owners_take_turns_and_so_do_their_topics() -> None:
    queue = RoundRobin[str]()
    for item in ("a1x", "a1y", "a2x", "b1x", "b1y"):
        queue.put(item, owner=item[0], topic=item[1])
    assert (len(queue), queue.waiting("a"), queue.waiting("c")) == (5, 3, 0)
    assert [queue.take() for _ in range(5)] == ["a1x", "b1x", "a2x", "b1y", "a1y"]
    with pytest.raises(KeyError):
        queue.take()


def test_an_owner_who_may_not_keeps_its_turn() -> None:
    queue = RoundRobin[str]()
    for item in ("a1", "b1", "a2", "b2"):
        queue.put(item, owner=item[0])
    assert queue.take(lambda owner: owner == "b") == "b1"
    assert [queue.take() for _ in range(3)] == ["a1", "b2", "a2"]


def test_withdrawn_items_are_not_served() -> None:
    queue, items = RoundRobin[str](), ["a0", "a1", "a2", "b0"]
    for item in items:
        queue.put(item, owner=item[0])
    assert queue.withdraw(items[1], owner="a") and not queue.withdraw(items[1], owner="a")
    assert not queue.withdraw("never", owner="c")
    assert queue.take_last("a") == "a2"
    assert queue.withdraw_all("a") == ["a0"] and queue.withdraw_all("a") == []
    assert (queue.owners, len(queue), queue.take(), bool(queue)) == (["b"], 1, "b0", False)


async def start(semaphore: FairSemaphore, owner: str, had: list[str]) -> asyncio.Task[None]:
    async def work() -> None:
        await semaphore.acquire(owner)
        had.append(owner)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    return task


async def test_a_flood_of_one_owner_delays_another_by_one_turn() -> None:
    semaphore, had = FairSemaphore(1), list[str]()
    tasks = [await start(semaphore, owner, had) for owner in "aaaab"]
    assert (had, semaphore.waiting(), semaphore.waiting("a")) == (["a"], 4, 3)
    for _ in range(4):
        semaphore.release(had[-1])
        await asyncio.sleep(0)
    assert had == ["a", "a", "b", "a", "a"]
    await asyncio.gather(*tasks)


async def test_an_owner_at_its_limit_does_not_hold_up_others() -> None:
    semaphore, had = FairSemaphore(3, per_owner=1), list[str]()
    tasks = [await start(semaphore, owner, had) for owner in "aab"]
    assert had == ["a", "b"] and semaphore.is_full("a") and not semaphore.is_full("c")
    semaphore.release("a")
    await asyncio.gather(*tasks)
    assert had == ["a", "b", "a"]


async def test_whoever_is_cancelled_as_their_turn_comes_hands_it_on() -> None:
    semaphore, had = FairSemaphore(1), list[str]()
    await semaphore.acquire("a")
    tasks = [await start(semaphore, owner, had) for owner in "bcd"]
    tasks[0].cancel()  # before its turn: the future is cancelled, and the task has not run
    semaphore.release("a")
    tasks[1].cancel()  # after its turn came
    await asyncio.wait(tasks)
    assert had == ["d"] and semaphore.is_full("d")
    semaphore.release("d")
    assert not semaphore.is_full("d")


async def test_the_last_of_the_longest_line_is_turned_away() -> None:
    semaphore, had = FairSemaphore(1), list[str]()
    tasks = [await start(semaphore, owner, had) for owner in "abba"]
    assert not semaphore.turn_away(TimeoutError(), more_than=2)
    assert semaphore.turn_away(TimeoutError(), more_than=1)
    done, _ = await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
    assert done == {tasks[2]} and isinstance(tasks[2].exception(), TimeoutError)
    for _ in range(2):
        semaphore.release(had[-1])
        await asyncio.sleep(0)
    assert had == ["a", "b", "a"]


async def test_workspaces_take_turns_however_many_wait_in_one_of_them() -> None:
    turns = LoopQueue()
    order: list[int] = []

    async def work(workspace: int) -> None:
        await turns.take(workspace)
        order.append(workspace)

    many = [asyncio.create_task(work(1)) for _ in range(100)]
    await asyncio.sleep(0)
    few = [asyncio.create_task(work(2)) for _ in range(3)]
    many[50].cancel()
    await asyncio.gather(*few, *many, return_exceptions=True)
    assert len(order) == 102 and order[:12].count(2) == 3


async def test_one_turn_of_the_loop_has_one_turn() -> None:
    turns, loop = LoopQueue(), asyncio.get_running_loop()
    had: list[int] = []
    passed = 0

    def count() -> None:
        nonlocal passed
        passed += 1
        loop.call_soon(count)

    loop.call_soon(count)

    async def work() -> None:
        await turns.take(1)
        had.append(passed)

    await asyncio.gather(*(work() for _ in range(20)))
    assert len(set(had)) == 20
