"""Time limits of many tasks: each expires at its time, and nobody else's cancel is taken for one."""

from __future__ import annotations

import asyncio

import pytest
from campaigns.simulation.loop import VirtualLoop

from weftline.work.deadlines import Deadline, Deadlines


async def slept(deadlines: Deadlines, limit_s: float, work_s: float) -> str:
    try:
        with deadlines.after(limit_s):
            await asyncio.sleep(work_s)
    except TimeoutError:
        return f"cut at {asyncio.get_running_loop().time():g}"
    return f"done at {asyncio.get_running_loop().time():g}"


def test_each_task_is_cut_at_its_own_limit() -> None:
    async def main() -> list[str]:
        deadlines = Deadlines()
        tasks = [asyncio.create_task(slept(deadlines, limit, work)) for limit, work in ((5, 9), (5, 3), (2, 4), (5, 9))]
        await asyncio.sleep(1)
        tasks.append(asyncio.create_task(slept(deadlines, 5, 9)))
        return await asyncio.gather(*tasks)

    loop = VirtualLoop()
    try:
        found = loop.run_until_complete(main())
    finally:
        loop.close()
    assert found == ["cut at 5", "done at 3", "cut at 2", "cut at 5", "cut at 6"]


def test_cancel_from_outside_is_cancel_also_when_it_meets_limit() -> None:
    async def main() -> None:
        deadlines = Deadlines()
        task = asyncio.create_task(slept(deadlines, 5, 9))
        asyncio.get_running_loop().call_at(5, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_error_of_work_passes_and_leaves_no_timer_behind() -> None:
    async def main() -> None:
        deadlines = Deadlines()
        with pytest.raises(ValueError, match="broken"), deadlines.after(5):
            raise ValueError("broken")
        assert await slept(deadlines, 5, 1) == "done at 1"

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_lengths_that_nobody_needs_any_more_are_forgotten() -> None:
    async def main() -> int:
        deadlines = Deadlines()
        for number in range(1000):  # what is left of a budget is another time for each call
            with deadlines.after(1 + number / 1000):
                pass
        await asyncio.sleep(3)
        return len(deadlines)

    loop = VirtualLoop()
    try:
        assert loop.run_until_complete(main()) == 0
    finally:
        loop.close()


async def _expired_twice(deadline: Deadline) -> None:
    with deadline:
        deadline.expire()
        deadline.expire()
        await asyncio.sleep(1)


def test_limit_that_is_reached_twice_or_too_late_cancels_once() -> None:
    """What asks for further calls measures its own time, and may find it used up more than once."""

    async def main() -> None:
        deadline = Deadlines().after(5)
        with pytest.raises(TimeoutError):
            await _expired_twice(deadline)
        late = Deadlines().after(5)
        with late:
            pass
        late.expire()
        await asyncio.sleep(1)
        task = asyncio.current_task()
        assert task is not None and not task.cancelling() and not late.expired

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
