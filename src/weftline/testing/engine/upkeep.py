"""Limits that are changed, logs that are removed, a store that refuses writes, and one that was restored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weftline.errors import Unavailable
from weftline.kernel.entries import AwaitClosed, AwaitOpened, MessageQueued, RunEnded
from weftline.store.budgets import Limit, workspace_account
from weftline.store.records import budgets
from weftline.store.rows import RunFilter
from weftline.testing.engine.bench import TIMEOUT_S, Bench, Check, plan_of, refusal
from weftline.tools.base import ToolOutput


async def changed_limits_apply_at_once_and_runs_that_wait_for_them_continue(bench: Bench) -> None:
    await limit_tokens(bench, 1)
    run = await bench.run("hello")
    (opened,) = await bench.until(run, AwaitOpened)
    assert opened.kind == "budget" and not bench.world.conversations
    await limit_tokens(bench, 10**9)
    assert await bench.answer_text(run) == "hello world"


async def whoever_raises_a_limit_answers_for_the_runs_that_wait(bench: Bench) -> None:
    """Unless the limit itself records who has set it."""
    for recorded, expected in (("", "ben"), ("ann", "ann")):
        await limit_tokens(bench, 1)
        run = await bench.run("hello")
        await bench.until(run, AwaitOpened)
        await limit_tokens(bench, 10**9, recorded=recorded, by="ben")
        (closed,) = await bench.until(run, AwaitClosed)
        assert (closed.outcome, closed.by) == ("approved", expected)
        await bench.ended(run)


async def looking_again_at_code_leaves_runs_alone_that_have_theirs(bench: Bench) -> None:
    waiting = await bench.run("ask")
    (offer,) = await bench.offers(waiting)
    await bench.engine.code_changed()
    await bench.engine.answer(waiting.key, offer, ToolOutput.of("yes"))
    await bench.ended(waiting)


async def limit_tokens(bench: Bench, amount: int, *, recorded: str = "ann", by: str = "ann") -> None:
    workspace = await bench.workspace()
    limits = [Limit("tokens", amount, "total", "ask")]
    account = workspace_account(workspace)
    await bench.subject.store.records.write(
        budgets.set_limits(account, limits, workspace=workspace, by=recorded, now=1)
    )
    await bench.engine.budgets_changed(workspace, by=by)


async def the_logs_of_old_runs_are_removed_for_followers_too(bench: Bench) -> None:
    old, unfinished = await bench.run("hello"), await bench.run("ask")
    whole = await bench.lines(old)
    await bench.offers(unfinished)
    ended_at = (await bench.row(old)).ended_at
    assert ended_at is not None
    engine, other = bench.engine, await bench.workspace("others")
    assert await engine.trim(before=ended_at, after=0, workspace=None) == (0, 0)
    assert await engine.trim(before=ended_at + 1, after=0, workspace=other) == (0, 0)
    assert await bench.lines(old) == whole
    assert await engine.trim(before=ended_at + 1, after=0, workspace=old.workspace) == (old.key, 1)
    follower = engine.follow(old.key, old.id)
    batches = await follower.next()
    follower.close()
    assert [batch.missing for batch in batches or ()] == [(1, len(whole) - 1)]
    assert await bench.lines(old) == whole[-1:] and isinstance(whole[-1].fact, RunEnded)
    assert (await bench.row(unfinished)).ended_at is None


async def logs_are_removed_above_a_key(bench: Bench) -> None:
    runs = [await bench.run("hello") for _ in range(3)]
    whole = [await bench.lines(run) for run in runs]
    first, _, last = runs
    assert await bench.engine.trim(before=2**62, after=first.key, workspace=None) == (last.key, 2)
    assert [await bench.lines(run) for run in runs] == [whole[0], whole[1][-1:], whole[2][-1:]]
    assert await bench.engine.trim(before=2**62, after=last.key, workspace=None) == (0, 0)


async def requests_are_refused_while_the_store_refuses_writes(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    engine = bench.engine
    assert _takes(engine.require_writable) and _takes(engine.require_accepting)
    bench.subject.refuse_writes(True)
    assert await refusal(engine.steer(run.key, "hurry")) == "unavailable"
    assert not _takes(engine.require_writable) and not _takes(engine.require_accepting)
    assert await refusal(engine.create(run.workspace, plan_of("hello"))) == "unavailable"
    bench.subject.refuse_writes(False)
    async with asyncio.timeout(TIMEOUT_S):
        while not _takes(engine.require_accepting):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
    assert await engine.answer(run.key, call, ToolOutput.of("42"))
    assert "42" in await bench.answer_text(run)
    assert await bench.count(run, MessageQueued) == 0, "a request was refused, and accepted"
    assert len(await engine.stored.logs.runs(RunFilter(workspace=run.workspace))) == 1


async def what_happens_is_counted_once(bench: Bench) -> None:
    await bench.ended(await bench.run("hello"))
    waiting = await bench.run("ask")
    (call,) = await bench.offers(waiting)
    follower = bench.engine.follow(waiting.key, waiting.id, workspace=waiting.workspace)
    measured = bench.engine.measure()
    counts = measured.metrics
    assert (counts.runs_created, counts.runs_ended["succeeded"], counts.turns) == (2, 1, 2)
    assert measured.streams == 1 and measured.writable and counts.written_bytes and sum(counts.flush_s.counts)
    follower.close()
    await bench.engine.answer(waiting.key, call, ToolOutput.of("42"))
    await bench.ended(waiting)
    assert (counts.runs_ended["succeeded"], counts.turns, counts.tool_calls["ok"]) == (2, 3, 1)
    assert bench.engine.measure().streams == 0


async def the_runs_of_a_restored_store_are_held_until_they_are_released(bench: Bench) -> None:
    run = await bench.run("hold")
    await bench.began()
    await bench.engine.wait_released()
    await bench.subject.restore()
    bench.world.released.set()
    engine = bench.engine
    assert not _takes(engine.require_accepting) and _takes(engine.require_writable)
    assert await refusal(engine.create(run.workspace, plan_of("hello"))) == "unavailable"
    waiting = asyncio.create_task(_released(bench))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done() and (await bench.row(run)).ended_at is None
    resumed = await engine.resume_all()
    assert (resumed.held, resumed.runs) == (True, 1)
    assert _takes(engine.require_accepting), "the runs were not released"
    await waiting
    assert (await bench.ended(run)).status == "succeeded"
    assert not (await engine.resume_all()).held
    await bench.crash()
    assert not bench.subject.store.log.held and (await bench.engine.resume_all()).runs == 0


async def _released(bench: Bench) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await bench.engine.wait_released()


def _takes(require: Callable[[], None]) -> bool:
    try:
        require()
    except Unavailable:
        return False
    return True


CHECKS: tuple[Check, ...] = (
    changed_limits_apply_at_once_and_runs_that_wait_for_them_continue,
    whoever_raises_a_limit_answers_for_the_runs_that_wait,
    looking_again_at_code_leaves_runs_alone_that_have_theirs,
    logs_are_removed_above_a_key,
    the_logs_of_old_runs_are_removed_for_followers_too,
    requests_are_refused_while_the_store_refuses_writes,
    what_happens_is_counted_once,
    the_runs_of_a_restored_store_are_held_until_they_are_released,
)
