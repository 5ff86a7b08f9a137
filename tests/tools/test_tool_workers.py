import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from runtime.kit import MoodyStore, ended, engine_on, plan
from weftline import Agent, ToolContext, tool
from weftline.plan import ServerRef
from weftline.round_robin import on_behalf_of
from weftline.store.memory import MemoryDisk
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import ToolFailed
from weftline.tools.workers import WORKSPACES_AT_FULL_USE, ToolWorkers


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
    threads = ToolWorkers(max_per_workspace=2)
    both = threading.Barrier(2)
    await asyncio.gather(threads.run(both.wait), threads.run(both.wait))
    names = {await threads.run(lambda: threading.current_thread().ident) for _ in range(20)}
    assert len(names) <= 2


async def test_an_exception_reaches_the_caller() -> None:
    threads = ToolWorkers(max_per_workspace=1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    assert await threads.run(lambda: "next") == "next"


async def test_an_abandoned_thread_is_replaced() -> None:
    threads = ToolWorkers(max_per_workspace=1, max_abandoned=2)
    stuck, _ = await abandon(threads)
    assert threads.abandoned == 1
    assert await threads.run(lambda: "next") == "next"
    stuck.release.set()


async def test_a_queued_call_gets_the_thread_that_replaces_an_abandoned_one() -> None:
    threads = ToolWorkers(max_per_workspace=1)
    stuck = Stuck()
    first = asyncio.create_task(threads.run(stuck))
    await stuck.begun.wait()
    second = asyncio.create_task(threads.run(lambda: "second"))
    await asyncio.wait([second], timeout=0)
    first.cancel()
    assert await second == "second"
    stuck.release.set()


async def test_a_call_that_is_cancelled_while_queued_never_starts() -> None:
    threads = ToolWorkers(max_per_workspace=1)
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
    threads = ToolWorkers(max_per_workspace=1, max_abandoned=2)
    stuck = [(await abandon(threads))[0] for _ in range(2)]
    with pytest.raises(ToolFailed, match="Too many"):
        await threads.run(lambda: "refused")
    for one in stuck:
        one.release.set()
    while threads.abandoned:
        await asyncio.wait_for(asyncio.to_thread(lambda: None), 120)
    assert await threads.run(lambda: "again") == "again"


async def hold(threads: ToolWorkers, workspace: int, count: int) -> list[tuple[Stuck, "asyncio.Task[str]"]]:
    """Calls of a workspace that hang, or wait for a thread."""
    on_behalf_of.set(workspace)
    held = [Stuck() for _ in range(count)]
    return [(one, asyncio.create_task(threads.run(one))) for one in held]


async def test_calls_of_one_workspace_that_hang_leave_threads_to_the_others() -> None:
    threads = ToolWorkers(max_per_workspace=2)
    hanging = await hold(threads, 1, 40)
    await asyncio.gather(*[stuck.begun.wait() for stuck, _ in hanging[:2]])
    on_behalf_of.set(2)
    both = threading.Barrier(2)
    await asyncio.gather(threads.run(both.wait), threads.run(both.wait))
    assert not any(stuck.begun.is_set() for stuck, _ in hanging[2:])
    for stuck, _ in hanging:
        stuck.release.set()
    assert await asyncio.gather(*[task for _, task in hanging]) == ["late"] * 40


async def test_workspaces_take_turns_when_all_threads_are_in_use() -> None:
    threads = ToolWorkers(max_per_workspace=1)
    hanging = [one for workspace in range(WORKSPACES_AT_FULL_USE) for one in await hold(threads, workspace, 1)]
    await asyncio.gather(*[stuck.begun.wait() for stuck, _ in hanging])
    order: list[str] = []
    waiting: list[asyncio.Task[None]] = []
    for workspace, name in ((8, "a"), (8, "b"), (8, "c"), (9, "d")):
        on_behalf_of.set(workspace)
        waiting.append(asyncio.create_task(threads.run(partial(order.append, name))))
    await asyncio.wait(waiting, timeout=0)
    hanging[0][0].release.set()
    await asyncio.gather(*waiting)
    assert order == ["a", "d", "b", "c"]
    for stuck, _ in hanging:
        stuck.release.set()
    await asyncio.gather(*[task for _, task in hanging])


async def test_a_workspace_whose_threads_are_stuck_is_refused_and_no_other() -> None:
    threads = ToolWorkers(max_per_workspace=1, max_abandoned=2)
    on_behalf_of.set(1)
    stuck = [(await abandon(threads))[0] for _ in range(2)]
    with pytest.raises(ToolFailed, match="Too many"):
        await threads.run(lambda: "refused")
    on_behalf_of.set(2)
    assert await threads.run(lambda: "other") == "other"
    for one in stuck:
        one.release.set()


async def test_calls_that_wait_behind_stuck_ones_are_refused_with_them_and_take_no_room_from_others() -> None:
    threads = ToolWorkers(max_per_workspace=1, max_abandoned=2)
    hanging = await hold(threads, 1, 40)
    for stuck, task in hanging[:2]:
        await stuck.begun.wait()
        task.cancel()
    results = await asyncio.gather(*[task for _, task in hanging], return_exceptions=True)
    assert [type(one) for one in results[2:]] == [ToolFailed] * 38
    assert threads.abandoned == 2 and not any(stuck.begun.is_set() for stuck, _ in hanging[2:])
    on_behalf_of.set(2)
    assert await threads.run(lambda: "other") == "other"
    for stuck, _ in hanging:
        stuck.release.set()


async def test_a_call_that_is_withdrawn_leaves_its_turn_to_the_next() -> None:
    threads = ToolWorkers(max_per_workspace=1)
    (first, held), (_, second), (third, last) = await hold(threads, 1, 3)
    await first.begun.wait()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    first.release.set()
    await third.begun.wait()
    third.release.set()
    assert await asyncio.gather(held, last) == ["late", "late"]
    assert threads.abandoned == 0


async def test_tools_of_one_workspace_that_hang_delay_no_run_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = ToolWorkers(max_per_workspace=1)
    monkeypatch.setattr("weftline.tools.function.shared_workers", lambda: threads)
    stuck = Stuck()

    @tool(effect="read")
    def hang() -> str:
        """Hangs."""
        return stuck()

    @tool(effect="read")
    def look() -> str:
        """Looks."""
        return "seen"

    scripts: dict[str, Any] = {
        name: {"turns": [{"tool_calls": [{"name": name, "args": {}}]}, {"text": "Done."}]} for name in ("hang", "look")
    }
    engine, _ = engine_on(MoodyStore(MemoryDisk()), scripts, tools={"hang": hang, "look": look})
    async with engine as it:
        acme, others = await it.workspace("acme"), await it.workspace("others")
        hanging = [await it.create(acme, plan("hang", ServerRef("hang"))) for _ in range(8)]
        await stuck.begun.wait()
        run = await it.create(others, plan("look", ServerRef("look")))
        assert (await ended(it, run, others)).status == "succeeded"
        stuck.release.set()
        assert [(await ended(it, run, acme)).status for run in hanging] == ["succeeded"] * 8


@pytest.mark.parametrize("composed", [False, True])
async def test_a_tool_that_never_got_a_thread_is_not_in_doubt(monkeypatch: pytest.MonkeyPatch, composed: bool) -> None:
    """One that has called such a tool is: it may have done something before that."""
    threads = ToolWorkers(max_per_workspace=1)
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

    others = [one for number in range(WORKSPACES_AT_FULL_USE) for one in await hold(threads, -1 - number, 1)]
    await asyncio.gather(*[stuck.begun.wait() for stuck, _ in others])
    used = order if composed else pay
    model = ScriptedModel([calls(used.name, amount=1), "Done."])
    result = await Agent(model, tools=[used]).run("Go.")
    (call,) = result.calls
    assert (call.how, "It did nothing" in call.result) == (("in_doubt", False) if composed else ("timeout", True))
    for stuck, _ in others:
        stuck.release.set()
    await asyncio.gather(*[task for _, task in others])
    assert done == (["ordered"] if composed else [])
