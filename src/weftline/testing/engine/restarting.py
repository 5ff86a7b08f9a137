"""A new engine on the same store continues what the previous one left."""

from __future__ import annotations

from weftline.kernel.entries import CallClosed, CallStarted
from weftline.testing.engine.bench import Bench, Check, facts, refusal
from weftline.testing.engine.newer import newer_run
from weftline.tools.base import ToolOutput


async def a_run_that_waits_for_its_client_is_left_as_it_is(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    before = await bench.row(run)
    await bench.subject.restart()
    after = await bench.row(run)
    assert (after.next_seq, after.due_at) == (before.next_seq, before.due_at)
    assert await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    assert "42" in await bench.answer_text(run)


async def what_only_reads_is_run_again_under_the_same_key(bench: Bench) -> None:
    run = await bench.run("hold")
    await bench.began()
    await bench.subject.restart()
    bench.world.released.set()
    assert (await bench.ended(run)).status == "succeeded"
    first, second = bench.world.executions
    assert (first.key, first.args) == (second.key, second.args)
    assert (first.attempt, second.attempt) == (1, 2)
    assert [one.attempt for one in facts(await bench.lines(run), CallStarted)] == [1, 2]


async def what_may_happen_once_is_in_doubt_and_what_was_closed_is_not_repeated(bench: Bench) -> None:
    run = await bench.run("pay")
    await bench.began()
    await bench.subject.restart()
    assert (await bench.ended(run)).status == "succeeded"
    assert [one.tool for one in bench.world.executions] == ["note", "pay"]
    assert [one.how for one in facts(await bench.lines(run), CallClosed)] == ["returned", "in_doubt"]


async def a_stream_continues_after_a_restart(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    seen = (await bench.row(run)).next_seq - 1
    await bench.subject.restart()
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    rest = await bench.lines(run, after=seen)
    assert rest == (await bench.lines(run))[seen:]
    assert rest[0].seq == seen + 1


async def a_paused_run_stays_paused(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    await bench.engine.pause(run.key)
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    await bench.subject.restart()
    assert (await bench.row(run)).status == "paused"
    await bench.engine.resume(run.key)
    assert (await bench.ended(run)).status == "succeeded"


async def a_run_of_a_newer_version_is_not_touched(bench: Bench) -> None:
    newer = await newer_run(bench.subject, workspace=await bench.workspace())
    assert (await bench.ended(await bench.run("hello"))).status == "succeeded"
    assert (await bench.row(newer)).next_seq == 2
    for ask in (bench.engine.cancel(newer.key), bench.engine.pause(newer.key)):
        assert await refusal(ask) == "unsupported_run"
    assert (await bench.row(newer)).next_seq == 2


CHECKS: tuple[Check, ...] = (
    a_run_that_waits_for_its_client_is_left_as_it_is,
    what_only_reads_is_run_again_under_the_same_key,
    what_may_happen_once_is_in_doubt_and_what_was_closed_is_not_repeated,
    a_stream_continues_after_a_restart,
    a_paused_run_stays_paused,
    a_run_of_a_newer_version_is_not_touched,
)
