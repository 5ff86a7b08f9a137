"""After a kill: everything that anybody was notified of is there, and nothing that happened without the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from weftline.kernel.calls import external_id
from weftline.kernel.entries import (
    KIND,
    AwaitClosed,
    AwaitOpened,
    CallClaimed,
    CallClosed,
    CallStarted,
    CallUnclaimed,
    CancelRequested,
    Fact,
    Limits,
    MessageQueued,
    RunAdopted,
    RunCreated,
    RunEnded,
    RunPaused,
    RunResumed,
    RunUnattended,
    TurnCompleted,
)
from weftline.kernel.policy import PolicyRule
from weftline.runtime.engine import EntryBatch
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.runtime.tool_calls.provided import Provided
from weftline.store.base import Store
from weftline.store.records import threads
from weftline.testing.engine.bench import TIMEOUT_S, Bench, Check, Run, facts
from weftline.testing.engine.upkeep import limit_tokens
from weftline.testing.lines import Line, lines_of
from weftline.tools.base import ToolOutput


async def _survives(bench: Bench, run: Run, kind: type[Fact], ask: Callable[[], Awaitable[object]]) -> None:
    """Asserts that a request is in the log if the engine dies as soon as the request is acknowledged."""
    before = await bench.count(run, kind)
    await ask()
    await bench.crash()
    assert await bench.count(run, kind) == before + 1, f"{kind.__name__} was acknowledged, and is lost"


async def a_created_run_survives_a_crash(bench: Bench) -> None:
    bench.world.opens.clear()
    run = await bench.run("hello")
    await bench.crash()
    assert await bench.count(run, RunCreated) == 1, "the run was acknowledged, and is lost"
    bench.world.opens.set()
    assert await bench.answer_text(run) == "hello world"


async def messages_and_pauses_survive_a_crash(bench: Bench) -> None:
    run = await bench.run("ask")
    await bench.offers(run)
    await _survives(bench, run, MessageQueued, lambda: bench.engine.steer(run.key, "hurry"))
    await _survives(bench, run, MessageQueued, lambda: bench.engine.follow_up(run.key, "and then?"))
    await _survives(bench, run, RunPaused, lambda: bench.engine.pause(run.key))
    await _survives(bench, run, RunResumed, lambda: bench.engine.resume(run.key))
    await _survives(bench, run, CancelRequested, lambda: bench.engine.accept(run.key, CancelRequested()))
    assert (await bench.ended(run)).status == "cancelled"


async def claims_and_answers_survive_a_crash(bench: Bench) -> None:
    run = await bench.run("ask_twice")
    (call,) = await bench.offers(run)
    await _survives(bench, run, CallClaimed, lambda: bench.engine.claim(run.key, call, claim_id="c"))
    lease = await bench.engine.claim(run.key, call, claim_id="c")
    await _survives(bench, run, CallClaimed, lambda: bench.engine.heartbeat(run.key, call, lease.token))
    answer = ToolOutput.of("42")
    await _survives(bench, run, CallClosed, lambda: bench.engine.answer(run.key, call, answer, token=lease.token))
    _, second = await bench.offers(run, 2)
    provided = [Provided(call_id=second, result="43")]
    await _survives(bench, run, CallClosed, lambda: bench.engine.provide(run.key, external_id(1), provided))
    assert "42 || 43" in await bench.answer_text(run)


async def decisions_and_cancels_survive_a_crash(bench: Bench) -> None:
    run = await bench.run("refund")
    yes = AwaitAnswer(outcome="approved")
    (first,) = await bench.until(run, AwaitOpened)
    await _survives(
        bench,
        run,
        AwaitClosed,
        lambda: bench.engine.answer_await(run.key, first.id, yes, by="key:ops", person_of=as_named),
    )
    other = await bench.run("ask")
    await bench.offers(other)
    await _survives(bench, other, RunEnded, lambda: bench.engine.cancel(other.key))


async def releases_raised_limits_and_ends_of_threads_survive_a_crash(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    lease = await bench.engine.claim(run.key, call)
    await bench.engine.release(run.key, call, lease.token)
    assert await _at_the_crash(bench, run, CallUnclaimed) == 1
    await limit_tokens(bench, 1)
    waiting = await bench.run("hello")
    await bench.until(waiting, AwaitOpened)
    await limit_tokens(bench, 10**9)
    assert await _at_the_crash(bench, waiting, AwaitClosed) == 1
    thread = await bench.thread()
    last = await bench.run("ask", thread=thread)
    await bench.offers(last)
    await bench.subject.store.records.write(threads.end(thread, now=2))
    await bench.engine.end_thread(thread)
    assert await _at_the_crash(bench, last, RunEnded) == 1


async def _at_the_crash(bench: Bench, run: Run, kind: type[Fact]) -> int:
    """Kills the engine at this moment, and returns how many facts of a kind the next one will find. It would make up
    for some that are lost.
    """
    found = 0

    async def look(store: Store) -> None:
        nonlocal found
        found = len(await store.log.facts(run.key, kinds=(KIND[kind],)))

    bench.subject.crash()
    await bench.subject.restart(look)
    return found


async def a_call_begins_when_its_start_is_durable(bench: Bench) -> None:
    """Otherwise it would be made again after a crash, although it may happen only once."""
    run = await bench.run_until_crash("pay", "tool pay")
    bench.world.released.set()
    assert (await bench.ended(run)).status == "succeeded"
    assert [one.tool for one in bench.world.executions] == ["note", "pay"], "what may happen once was done again"
    lines = await bench.lines(run)
    assert [one.how for one in facts(lines, CallClosed)] == ["returned", "in_doubt"]
    assert len(facts(lines, CallStarted)) == 2


async def a_model_is_called_when_its_previous_answer_is_durable(bench: Bench) -> None:
    """Otherwise a crash would cost more than the one answer that was on its way."""
    run = await bench.run_until_crash("note", "model 2")
    assert (await bench.ended(run)).status == "succeeded"
    assert [len(messages) for messages in bench.world.conversations] == [1, 3, 3], "an answer was paid for twice"


async def what_anybody_sees_of_a_run_survives_a_crash(bench: Bench) -> None:
    seen: list[Line] = []
    crashed = asyncio.Event()

    def look(batch: EntryBatch) -> None:
        seen.extend(lines_of(batch.items, after=batch.after))
        if facts(seen, TurnCompleted):
            bench.subject.crash()
            crashed.set()

    bench.engine.observe(look)
    bench.world.opens.clear()
    run = await bench.run("ask")
    bench.world.opens.set()
    async with asyncio.timeout(TIMEOUT_S):
        await crashed.wait()
    await bench.subject.restart()
    (call,) = await bench.offers(run)
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    assert seen and (await bench.lines(run))[: len(seen)] == seen


async def time_without_an_engine_is_not_active(bench: Bench) -> None:
    limits = Limits(policy=PolicyRule(time_budget_us=3_600_000_000))
    run = await bench.run("hold", limits=limits)
    await bench.until(run, CallStarted)
    await bench.crash()
    bench.world.released.set()
    await bench.ended(run)
    kinds = [type(line.fact) for line in await bench.lines(run)]
    assert kinds.count(RunUnattended) == 1, "the time without an engine counts as active"
    assert kinds.index(RunUnattended) < kinds.index(RunAdopted)


CHECKS: tuple[Check, ...] = (
    a_created_run_survives_a_crash,
    messages_and_pauses_survive_a_crash,
    claims_and_answers_survive_a_crash,
    decisions_and_cancels_survive_a_crash,
    releases_raised_limits_and_ends_of_threads_survive_a_crash,
    a_call_begins_when_its_start_is_durable,
    a_model_is_called_when_its_previous_answer_is_durable,
    what_anybody_sees_of_a_run_survives_a_crash,
    time_without_an_engine_is_not_active,
)
