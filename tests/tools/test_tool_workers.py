import asyncio
import threading

import pytest

from weftline import Agent, ToolContext, tool
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import ToolFailed
from weftline.tools.workers import ToolWorkers


class Stuck:
    """A call that holds its thread until it is released."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.release = threading.Event()

    def __call__(self) -> str:
        self.loop.call_soon_threadsafe(self.begun.set)
        self.release.wait()
        return "late"


async def abandon(threads: ToolWorkers) -> tuple[Stuck, "asyncio.Task[str]"]:
    stuck = Stuck()
    task = asyncio.create_task(threads.run(stuck))
    await stuck.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return stuck, task


async def test_calls_run_side_by_side_up_to_the_size_and_threads_are_used_again() -> None:
    threads = ToolWorkers(size=2)
    both = threading.Barrier(2)
    await asyncio.gather(threads.run(both.wait), threads.run(both.wait))
    names = {await threads.run(lambda: threading.current_thread().ident) for _ in range(20)}
    assert len(names) <= 2


async def test_an_exception_reaches_the_caller() -> None:
    threads = ToolWorkers(size=1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    assert await threads.run(lambda: "next") == "next"


async def test_an_abandoned_thread_is_replaced() -> None:
    threads = ToolWorkers(size=1, max_abandoned=2)
    stuck, _ = await abandon(threads)
    assert threads.abandoned == 1
    assert await threads.run(lambda: "next") == "next"
    stuck.release.set()


async def test_a_queued_call_gets_the_thread_that_replaces_an_abandoned_one() -> None:
    threads = ToolWorkers(size=1)
    stuck = Stuck()
    first = asyncio.create_task(threads.run(stuck))
    await stuck.begun.wait()
    second = asyncio.create_task(threads.run(lambda: "second"))
    await asyncio.wait([second], timeout=0)
    first.cancel()
    assert await second == "second"
    stuck.release.set()


async def test_a_call_that_is_cancelled_while_queued_never_starts() -> None:
    threads = ToolWorkers(size=1)
    stuck, ran = Stuck(), list[str]()
    first = asyncio.create_task(threads.run(stuck))
    await stuck.begun.wait()
    queued = asyncio.create_task(threads.run(lambda: ran.append("queued")))
    await asyncio.wait([queued], timeout=0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    stuck.release.set()
    assert await first == "late"
    await threads.run(lambda: ran.append("after"))
    assert ran == ["after"]
    assert threads.abandoned == 0


async def test_calls_are_refused_while_too_many_threads_are_stuck() -> None:
    threads = ToolWorkers(size=1, max_abandoned=2)
    stuck = [(await abandon(threads))[0] for _ in range(2)]
    with pytest.raises(ToolFailed, match="Too many"):
        await threads.run(lambda: "refused")
    for one in stuck:
        one.release.set()
    while threads.abandoned:
        await asyncio.wait_for(asyncio.to_thread(lambda: None), 120)
    assert await threads.run(lambda: "again") == "again"


@pytest.mark.parametrize("composed", [False, True])
async def test_a_tool_that_never_got_a_thread_is_not_in_doubt(monkeypatch: pytest.MonkeyPatch, composed: bool) -> None:
    """One that has called such a tool is: it may have done something before that."""
    threads = ToolWorkers(size=1)
    monkeypatch.setattr("weftline.tools.function.shared_workers", lambda: threads)
    done: list[str] = []

    @tool(effect="once", timeout_s=0.05)
    def pay(amount: int) -> str:
        """Pays."""
        done.append("paid")
        return "paid"

    @tool(effect="once", timeout_s=0.05)
    async def order(amount: int, context: ToolContext) -> str:
        """Orders, then pays."""
        done.append("ordered")
        return str(await pay.invoke(b'{"amount":1}', context))

    stuck = Stuck()
    busy = asyncio.create_task(threads.run(stuck))
    await stuck.begun.wait()
    used = order if composed else pay
    model = ScriptedModel([calls(used.name, amount=1), "Done."])
    result = await Agent(model, tools=[used]).run("Go.")
    (call,) = result.calls
    assert (call.how, "It did nothing" in call.result) == (("in_doubt", False) if composed else ("timeout", True))
    stuck.release.set()
    await busy
    assert done == (["ordered"] if composed else [])
