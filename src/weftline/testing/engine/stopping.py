"""The end of an engine: it starts nothing new, waits for what is running, cancels the rest, and loses nothing."""

from __future__ import annotations

import asyncio

from weftline.kernel.entries import CallClosed, MessageQueued
from weftline.testing.engine.bench import Bench, Check, facts, plan_of, refusal
from weftline.tools.base import ToolOutput

_LONG_S = 600.0


async def a_workspace_has_one_key(bench: Bench) -> None:
    first = await bench.engine.workspace("new")
    assert await bench.engine.workspace("new") == first == await bench.workspace("new")
    assert await bench.engine.workspace("other") != first


async def a_drain_waits_for_what_is_running_and_starts_nothing(bench: Bench) -> None:
    """No run, no turn and no call: the next engine continues with those."""
    engine, run = bench.engine, await bench.run("hold_then_note")
    await bench.began()
    draining = asyncio.create_task(engine.drain(_LONG_S))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not draining.done(), "a call is still running"
    assert await refusal(_accepting(bench)) == "unavailable"
    assert await refusal(engine.create(run.workspace, plan_of("hello"))) == "unavailable"
    bench.world.released.set()
    await bench.soon(draining, "a drain goes on when nothing is running any more")
    assert await engine.abort()
    assert [one.tool for one in bench.world.executions] == ["hold"], "a call was begun"
    assert len(bench.world.conversations) == 1, "a turn was begun"
    await bench.subject.restart()
    assert (await bench.ended(run)).status == "succeeded"
    assert [one.tool for one in bench.world.executions] == ["hold", "note"], "a call that had ended was made again"


async def _accepting(bench: Bench) -> None:
    bench.engine.require_accepting()


async def a_drain_ends_when_its_time_is_up(bench: Bench) -> None:
    run = await bench.run("hold")
    await bench.began()
    await bench.soon(bench.engine.drain(0.01), "a drain goes on when its time is up")
    assert len(bench.world.executions) == 1
    bench.world.released.set()
    await bench.subject.restart()
    assert (await bench.ended(run)).status == "succeeded"


async def an_abort_cancels_what_is_running_and_ends_all_streams(bench: Bench) -> None:
    engine, run = bench.engine, await bench.run("hold")
    await bench.began()
    await engine.steer(run.key, "hurry")
    stream = asyncio.create_task(bench.lines(run))
    await engine.drain(0)
    assert await engine.abort()
    await bench.soon(stream, "a stream goes on after an abort")
    await bench.soon(bench.lines(run), "a stream that is opened after an abort does not end")
    bench.world.released.set()
    await bench.subject.restart()
    assert await bench.count(run, MessageQueued) == 1
    assert (await bench.ended(run)).status == "succeeded"
    assert len(bench.world.executions) == 2, "the call was not cancelled"


async def what_ended_before_an_abort_is_durable_after_it(bench: Bench) -> None:
    """Even if the process dies at that moment: what may happen once is not in doubt."""
    run = await bench.run("pay")
    await bench.began()
    draining = asyncio.create_task(bench.engine.drain(_LONG_S))
    bench.world.released.set()
    await bench.soon(draining, "a drain goes on when nothing is running any more")
    assert await bench.engine.abort(), "a store that accepts everything has refused something"
    await bench.crash()
    assert (await bench.ended(run)).status == "succeeded"
    assert [one.how for one in facts(await bench.lines(run), CallClosed)] == ["returned", "returned"]


async def an_abort_reports_what_the_store_refuses(bench: Bench) -> None:
    run = await bench.run("hold")
    await bench.began()
    bench.subject.refuse_writes(True)
    bench.world.released.set()  # its result cannot be stored
    await bench.soon(bench.engine.drain(0), "a drain goes on when its time is up")
    hurry = asyncio.Event()
    hurry.set()
    whole = await bench.soon(bench.engine.abort(hurry=hurry), "an abort does not hurry")
    assert not whole, "what the store has refused is lost, and nobody is told"
    await bench.crash()
    assert (await bench.ended(run)).status == "succeeded"


async def a_stop_gives_running_work_its_time_and_loses_nothing(bench: Bench) -> None:
    engine, run = bench.engine, await bench.run("hold")
    await bench.began()
    stream = asyncio.create_task(bench.lines(run))
    stopping = asyncio.create_task(engine.stop(drain_s=_LONG_S))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stopping.done(), "a call is still running"
    bench.world.released.set()
    await bench.soon(stopping, "a stop goes on when nothing is running any more")
    await bench.soon(stream, "a stream goes on after a stop")
    await bench.subject.restart()
    assert (await bench.ended(run)).status == "succeeded"
    assert len(bench.world.executions) == 1, "what had ended before the stop was lost"


async def a_stop_does_not_wait_longer_than_it_may(bench: Bench) -> None:
    run = await bench.run("ask_and_hold")
    await bench.began()
    await bench.soon(bench.engine.stop(drain_s=0), "a stop goes on when its time is up")
    bench.world.released.set()
    await bench.subject.restart()
    (call,) = await bench.offers(run)
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    assert (await bench.ended(run)).status == "succeeded"


CHECKS: tuple[Check, ...] = (
    a_workspace_has_one_key,
    a_drain_waits_for_what_is_running_and_starts_nothing,
    a_drain_ends_when_its_time_is_up,
    an_abort_cancels_what_is_running_and_ends_all_streams,
    what_ended_before_an_abort_is_durable_after_it,
    an_abort_reports_what_the_store_refuses,
    a_stop_gives_running_work_its_time_and_loses_nothing,
    a_stop_does_not_wait_longer_than_it_may,
)
