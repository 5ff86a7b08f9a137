import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from runtime.kit import TIMEOUT_S, MoodyStore, ended, engine_on, facts, plan
from weftline import Agent, ToolContext, prompts, tool
from weftline.kernel.entries import CallClosed, Effect
from weftline.plan import ServerRef
from weftline.store.memory import MemoryDisk
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import ToolFailed, ToolOutput
from weftline.tools.function import FunctionTool
from weftline.tools.workers import NoThread, ToolWorkers
from weftline.work.threads import WORKSPACES_AT_FULL_USE, not_started
from weftline.work.turns import on_behalf_of


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
    task, begun = asyncio.create_task(threads.run(stuck)), asyncio.create_task(stuck.begun.wait())
    await asyncio.wait([task, begun], return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return stuck, task


async def test_calls_run_concurrently_and_reuse_threads() -> None:
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


async def test_queued_call_gets_thread_that_replaces_abandoned_one() -> None:
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


async def test_calls_of_one_workspace_that_hang_leave_threads_to_others() -> None:
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


async def test_workspace_whose_threads_are_stuck_is_refused_and_no_other() -> None:
    threads = ToolWorkers(max_per_workspace=1, max_abandoned=2)
    on_behalf_of.set(1)
    stuck = [(await abandon(threads))[0] for _ in range(2)]
    with pytest.raises(ToolFailed, match="Too many"):
        await threads.run(lambda: "refused")
    on_behalf_of.set(2)
    assert await threads.run(lambda: "other") == "other"
    for one in stuck:
        one.release.set()


async def test_calls_behind_stuck_ones_are_refused_with_them() -> None:
    threads = ToolWorkers(max_per_workspace=1, max_abandoned=2)
    hanging, ran = await hold(threads, 1, 2), list[int]()
    waiting = [asyncio.create_task(threads.run(partial(ran.append, number))) for number in range(38)]
    for stuck, task in hanging:
        await stuck.begun.wait()
        task.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(one) for one in results] == [prompts.remote.too_many_stuck(2)] * 38
    assert (threads.abandoned, ran) == (2, [])
    on_behalf_of.set(2)
    assert await threads.run(lambda: "other") == "other"
    for stuck, _ in hanging:
        stuck.release.set()


async def test_sixteen_stuck_workspaces_refuse_calls_of_all() -> None:
    threads = ToolWorkers(max_per_workspace=1, max_abandoned=2)
    ((running, task),), ran = await hold(threads, 99, 1), list[int]()
    await running.begun.wait()
    waiting = [asyncio.create_task(threads.run(partial(ran.append, number))) for number in range(3)]
    stuck: list[Stuck] = []
    for number in range(32):
        assert not any(one.done() for one in waiting)
        on_behalf_of.set(number // 2)
        stuck.append((await abandon(threads))[0])
    running.release.set()
    assert await task == "late"
    refused = await asyncio.gather(*waiting, return_exceptions=True)
    on_behalf_of.set(100)
    refused += await asyncio.gather(threads.run(partial(ran.append, 3)), return_exceptions=True)
    assert ([str(one) for one in refused], ran) == ([prompts.remote.too_many_stuck(32)] * 4, [])
    on_behalf_of.set(5)
    with pytest.raises(ToolFailed) as full:
        await threads.run(lambda: "refused")
    assert str(full.value) == prompts.remote.too_many_stuck(2)
    for one in stuck:
        one.release.set()


async def test_call_that_is_cancelled_as_it_is_refused_never_began() -> None:
    threads = ToolWorkers(max_per_workspace=1, max_abandoned=1)
    ((stuck, first),) = await hold(threads, 1, 1)
    await stuck.begun.wait()

    async def refused() -> None:
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await threads.run(lambda: "refused", tool="pay")
        assert not_started(cancelled.value) == "pay"

    second = asyncio.create_task(refused())
    await asyncio.wait([second], timeout=0)
    first.cancel()
    second.cancel()
    await second
    assert (first.cancelled(), threads.abandoned) == (True, 1)
    stuck.release.set()


async def test_timeout_of_call_that_waits_for_thread_is_timeout() -> None:
    threads = ToolWorkers(max_per_workspace=1)
    ((busy, first),) = await hold(threads, 1, 1)
    await busy.begun.wait()
    with pytest.raises(TimeoutError) as late:
        async with asyncio.timeout(0):
            await threads.run(lambda: "never", tool="pay")
    assert not_started(late.value.__cause__) == "pay"
    busy.release.set()
    await first


async def test_call_cancelled_after_it_returned_leaves_no_thread_behind() -> None:
    threads = ToolWorkers(max_per_workspace=1, max_abandoned=1)
    ((stuck, first),) = await hold(threads, 1, 1)
    await stuck.begun.wait()
    next_began = threading.Event()
    second = asyncio.create_task(threads.run(next_began.set))
    await asyncio.wait([second], timeout=0)
    stuck.release.set()
    assert next_began.wait(TIMEOUT_S), "the event loop stands still until the thread has gone on to the next call"
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert (first.cancelled(), threads.abandoned) == (True, 0)
    assert await threads.run(lambda: "next") == "next"


class Shortage:
    """While it lasts, the system starts no thread for a tool."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: type[Exception] = RuntimeError) -> None:
        self.lasts = True
        self.refused = threading.Semaphore(0)
        start = threading.Thread.start

        def start_if_possible(thread: threading.Thread) -> None:
            if self.lasts and thread.name == "weftline-work":
                self.refused.release()
                raise error("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_if_possible)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
async def test_call_without_a_thread_is_never_made_later(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, shortage, ran = ToolWorkers(max_per_workspace=2), Shortage(monkeypatch, error), list[int]()
    refused = [threads.run(partial(ran.append, number), tool="pay") for number in range(5)]
    async with asyncio.timeout(TIMEOUT_S):
        results = await asyncio.gather(*refused, return_exceptions=True)
    assert [isinstance(one, NoThread) and not_started(one) for one in results] == ["pay"] * 5
    shortage.lasts = False
    async with asyncio.timeout(TIMEOUT_S):  # all places in the pool are free
        both = threading.Barrier(2)
        await asyncio.gather(threads.run(both.wait), threads.run(both.wait))
    assert ran == []


async def test_calls_wait_for_existing_threads_if_none_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, shortage = ToolWorkers(max_per_workspace=2), Shortage(monkeypatch)
    shortage.lasts = False
    ((stuck, first),) = await hold(threads, 1, 1)
    await stuck.begun.wait()
    shortage.lasts = True
    waiting = [asyncio.create_task(threads.run(threading.get_ident)) for _ in range(3)]
    await asyncio.wait(waiting, timeout=0)
    assert not any(one.done() for one in waiting)
    while shortage.refused.acquire(blocking=False):
        pass
    stuck.release.set()
    async with asyncio.timeout(TIMEOUT_S):
        assert await first == "late"
        assert len(set(await asyncio.gather(*waiting))) == 1
    assert shortage.refused.acquire(blocking=False), "the thread itself was to start another, for the calls in its way"
    shortage.lasts = False
    both = threading.Barrier(2)
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(threads.run(both.wait), threads.run(both.wait))


async def test_call_without_a_thread_gets_the_next_one_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, shortage = ToolWorkers(max_per_workspace=3), Shortage(monkeypatch)
    shortage.lasts = False
    ((stuck, first),) = await hold(threads, 1, 1)
    await stuck.begun.wait()
    shortage.lasts = True
    both = threading.Barrier(2)
    waiting = asyncio.create_task(threads.run(both.wait))
    await asyncio.wait([waiting], timeout=0)
    shortage.lasts = False
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(threads.run(both.wait), waiting)
    stuck.release.set()
    assert await first == "late"


async def test_no_call_waits_for_a_thread_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, shortage = ToolWorkers(max_per_workspace=2), Shortage(monkeypatch)
    shortage.lasts = False
    ((stuck, first),), ran = await hold(threads, 1, 1), list[int]()
    await stuck.begun.wait()
    shortage.lasts = True
    waiting = [asyncio.create_task(threads.run(partial(ran.append, number))) for number in range(3)]
    await asyncio.wait(waiting, timeout=0)
    first.cancel()
    async with asyncio.timeout(TIMEOUT_S):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in results] == [NoThread] * 3
    stuck.release.set()
    shortage.lasts = False
    assert await threads.run(lambda: "next") == "next"
    assert ran == []


async def test_call_that_is_withdrawn_leaves_its_turn_to_next() -> None:
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


async def test_hanging_tools_delay_no_other_workspaces_runs(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_tool_that_never_got_thread_is_not_in_doubt(monkeypatch: pytest.MonkeyPatch, composed: bool) -> None:
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
    assert (call.how, "Nothing has been done" in call.result) == (
        ("in_doubt", False) if composed else ("timeout", True)
    )
    for stuck, _ in others:
        stuck.release.set()
    await asyncio.gather(*[task for _, task in others])
    assert done == (["ordered"] if composed else [])


@pytest.mark.parametrize(
    ("name", "how", "text", "did"),
    [
        ("pay", "not_run", prompts.calls.no_thread("pay"), []),
        ("order", "failed", prompts.remote.NO_THREAD, ["ordered"]),
        ("custom", "failed", prompts.calls.tool_failed("pay", prompts.remote.NO_THREAD), ["ordered"]),
    ],
)
async def test_tool_without_a_thread_is_not_executed(
    monkeypatch: pytest.MonkeyPatch, name: str, how: str, text: str, did: list[str]
) -> None:
    """One that has called such a tool has failed: it may have done something before that."""
    threads, shortage = ToolWorkers(), Shortage(monkeypatch)
    monkeypatch.setattr("weftline.tools.function.shared_workers", lambda: threads)
    done: list[str] = []

    @tool(effect="once")
    def pay(amount: int) -> str:
        """Pays."""
        done.append("paid")
        return "paid"

    @tool(effect="once")
    async def order(amount: int, context: ToolContext) -> str:
        """Orders, then pays."""
        done.append("ordered")
        return (await pay.invoke(b'{"amount":1}', context)).text

    class Custom(FunctionTool):
        async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
            done.append("ordered")
            return await pay.invoke(args, context)

    def unused(amount: int) -> str:
        raise AssertionError

    tools = {"pay": pay, "order": order, "custom": Custom(unused, name="pay", effect="once")}
    model = ScriptedModel([calls(tools[name].name, amount=1), "Done."])
    result = await Agent(model, tools=[tools[name]]).run("Go.")
    assert [(call.how, call.result) for call in result.calls] == [(how, text)]
    shortage.lasts = False
    await threads.run(lambda: None)
    assert done == did


@pytest.mark.parametrize(("effect", "how"), [("idempotent", "in_doubt"), ("read", "not_run")])
async def test_unrepeatable_call_without_a_thread_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch, effect: Effect, how: str
) -> None:
    pools = [ToolWorkers()]
    monkeypatch.setattr("weftline.tools.function.shared_workers", lambda: pools[-1])
    stuck, begun = Stuck(), list[int]()

    @tool(effect=effect)
    def pay(amount: int) -> str:
        """Pays."""
        begun.append(amount)
        return stuck()

    scripts: dict[str, Any] = {
        "pay": {"turns": [{"tool_calls": [{"name": "pay", "args": {"amount": 5}}]}, {"text": "Done."}]}
    }
    disk = MemoryDisk()
    before, _ = engine_on(MoodyStore(disk), scripts, tools={"pay": pay})
    await before.start()
    space = await before.workspace("acme")
    run = await before.create(space, plan("pay", ServerRef("pay")))
    await stuck.begun.wait()
    await before.stop(drain_s=0)
    pools.append(ToolWorkers())
    Shortage(monkeypatch)
    async with engine_on(MoodyStore(disk), scripts, tools={"pay": pay})[0] as after:
        heads = await facts(after, run, space)
    assert ([head.how for head in heads if isinstance(head, CallClosed)], begun) == ([how], [5])
    stuck.release.set()
