"""Deadlines, timers and retries. The times are short; nothing here depends on how busy the machine is."""

from __future__ import annotations

from weftline.kernel.entries import AttemptFailed, AttemptStarted, AwaitClosed, CallClosed, Limits, TimerFired
from weftline.testing.engine.bench import Bench, Check, facts

_SOON = Limits(local_timeout_us=50_000)
_SOON_REPORTED = Limits(local_timeout_us=50_000, on_local_timeout="report")


async def a_call_that_nobody_answers_ends_the_run(bench: Bench) -> None:
    run = await bench.run("ask", limits=_SOON)
    ended = await bench.ended(run)
    assert (ended.status, ended.code) == ("failed", "local_timeout")
    assert facts(await bench.lines(run), TimerFired)


async def a_call_that_nobody_answers_is_reported_to_the_model(bench: Bench) -> None:
    run = await bench.run("ask", limits=_SOON_REPORTED)
    assert (await bench.ended(run)).status == "succeeded"
    assert [one.how for one in facts(await bench.lines(run), CallClosed)] == ["timeout"]


async def a_deadline_is_kept_while_a_tool_runs(bench: Bench) -> None:
    run = await bench.run("ask_and_hold", limits=_SOON_REPORTED)
    await bench.began()
    (closed,) = await bench.until(run, CallClosed)
    assert (closed.name, closed.how) == ("ask", "timeout"), "the client's call waited for the server's"
    bench.world.released.set()
    assert (await bench.ended(run)).status == "succeeded"


async def a_deadline_is_kept_while_a_watcher_is_at_work(bench: Bench) -> None:
    bench.world.watches = True
    run = await bench.run("ask", limits=_SOON)
    await bench.began()
    ended = await bench.ended(run)
    assert (ended.status, ended.code) == ("failed", "local_timeout")


async def what_nobody_answers_is_reported_while_a_watcher_is_at_work(bench: Bench) -> None:
    bench.world.watches = True
    run = await bench.run("ask", limits=_SOON_REPORTED)
    await bench.began()
    (closed,) = await bench.until(run, CallClosed)
    assert (closed.name, closed.how) == ("ask", "timeout")
    assert len(bench.world.conversations) == 1, "the model was called before the watcher had returned"
    bench.world.released.set()
    assert (await bench.ended(run)).status == "succeeded"


async def a_question_to_people_expires_while_a_watcher_is_at_work(bench: Bench) -> None:
    bench.world.watches = True
    run = await bench.run("refund", limits=Limits(await_timeout_us=50_000))
    await bench.began()
    (closed,) = await bench.until(run, AwaitClosed)
    assert closed.outcome == "expired"
    bench.world.released.set()
    assert (await bench.ended(run)).status == "succeeded"


async def a_run_is_cancelled_while_a_watcher_is_at_work(bench: Bench) -> None:
    bench.world.watches = True
    run = await bench.run("ask")
    await bench.began()
    await bench.engine.cancel(run.key)
    assert (await bench.ended(run)).status == "cancelled"


async def a_run_is_cancelled_while_its_tools_are_opened(bench: Bench) -> None:
    bench.world.opens.clear()
    run = await bench.run("ask")
    await bench.engine.cancel(run.key)
    assert (await bench.ended(run)).status == "cancelled"


async def a_timer_fires_after_a_restart(bench: Bench) -> None:
    run = await bench.run("retry")
    await bench.until(run, AttemptFailed)
    await bench.subject.restart()
    assert (await bench.ended(run)).status == "succeeded"


async def a_model_call_that_fails_is_retried(bench: Bench) -> None:
    run = await bench.run("retry")
    ended = await bench.ended(run)
    assert (ended.status, ended.turns, ended.attempts) == ("succeeded", 1, 2)
    started = facts(await bench.lines(run), AttemptStarted)
    assert [(one.turn, one.attempt, one.cause) for one in started] == [(0, 1, ""), (0, 2, "overloaded")]


async def a_permanent_failure_ends_the_run(bench: Bench) -> None:
    run = await bench.run("refused")
    ended = await bench.ended(run)
    assert (ended.status, ended.code, ended.attempts) == ("failed", "auth", 1)


CHECKS: tuple[Check, ...] = (
    a_call_that_nobody_answers_ends_the_run,
    a_call_that_nobody_answers_is_reported_to_the_model,
    a_deadline_is_kept_while_a_tool_runs,
    a_deadline_is_kept_while_a_watcher_is_at_work,
    what_nobody_answers_is_reported_while_a_watcher_is_at_work,
    a_question_to_people_expires_while_a_watcher_is_at_work,
    a_run_is_cancelled_while_a_watcher_is_at_work,
    a_run_is_cancelled_while_its_tools_are_opened,
    a_timer_fires_after_a_restart,
    a_model_call_that_fails_is_retried,
    a_permanent_failure_ends_the_run,
)
