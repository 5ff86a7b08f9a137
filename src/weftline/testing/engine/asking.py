"""Awaits: a call waits for a person, in whichever engine, and begins once, with the arguments that the person
approved.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from weftline.errors import WeftlineError
from weftline.kernel.bodies import Pattern, decode_await
from weftline.kernel.entries import AwaitClosed, AwaitOpened, CallClosed, CallStarted, Limits
from weftline.messages import ToolResults
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.store.rows import AwaitFilter
from weftline.testing.engine.bench import Bench, Check, Run, facts, refusal

_YES = AwaitAnswer(outcome="approved")
_NO = AwaitAnswer(outcome="denied", reason="Too much.")


async def _open(bench: Bench, run: Run, count: int = 1) -> list[str]:
    return [opened.id for opened in await bench.until(run, AwaitOpened, count=count)]


async def _listed(bench: Bench, run: Run) -> list[str]:
    return [one.id for one in await bench.engine.stored.awaits(AwaitFilter(workspace=run.workspace))]


async def a_call_waits_for_a_person_and_begins_when_it_is_approved(bench: Bench) -> None:
    run = await bench.run("refund")
    (id,) = await _open(bench, run)
    (listed,) = await bench.engine.stored.awaits(AwaitFilter(workspace=run.workspace))
    asked = decode_await(listed.body)
    assert (listed.id, listed.kind, asked.name, bytes(asked.args)) == (id, "confirm", "refund", b'{"n":0}')
    assert (await bench.row(run)).status == "paused"
    assert not bench.world.executions
    assert await bench.engine.answer_await(run.key, id, _YES, by="key:ops", person_of=as_named) == "approved"
    assert "refund is done" in await bench.answer_text(run)
    assert [execution.args for execution in bench.world.executions] == [b'{"n":0}']
    assert await _listed(bench, run) == []
    (closed,) = facts(await bench.lines(run), AwaitClosed)
    assert (closed.id, closed.outcome, closed.by) == (id, "approved", "key:ops")


async def a_call_that_is_denied_never_begins(bench: Bench) -> None:
    run = await bench.run("refund")
    (id,) = await _open(bench, run)
    assert await bench.engine.answer_await(run.key, id, _NO, by="key:ops", person_of=as_named) == "denied"
    assert "Too much." in await bench.answer_text(run)
    assert not bench.world.executions
    (closed,) = facts(await bench.lines(run), CallClosed)
    assert (closed.how, closed.is_error) == ("denied", False)


async def an_approval_may_change_the_arguments(bench: Bench) -> None:
    run = await bench.run("refund")
    (opened,) = await bench.until(run, AwaitOpened)
    bad = AwaitAnswer(outcome="approved", args={"n": "many"})
    assert (
        await refusal(bench.engine.answer_await(run.key, opened.id, bad, by="key:ops", person_of=as_named))
        == "invalid_answer"
    )
    less = AwaitAnswer(outcome="approved", args={"n": 7})
    assert await bench.engine.answer_await(run.key, opened.id, less, by="key:ops", person_of=as_named) == "approved"
    await bench.ended(run)
    assert [execution.args for execution in bench.world.executions] == [b'{"n":7}']
    (closed,) = facts(await bench.lines(run), AwaitClosed)
    assert closed.digest and closed.digest != opened.digest


async def several_awaits_are_open_at_once_and_answered_in_any_order(bench: Bench) -> None:
    run = await bench.run("refund_three")
    first, second, third = await _open(bench, run, 3)
    assert await _listed(bench, run) == [first, second, third]
    for id, answer in ((third, _YES), (first, _NO), (second, _YES)):
        await bench.engine.answer_await(run.key, id, answer, by="key:ops", person_of=as_named)
    await bench.ended(run)
    assert sorted(execution.args for execution in bench.world.executions) == [b'{"n":1}', b'{"n":2}']
    (results,) = [one for one in bench.world.conversations[-1] if isinstance(one, ToolResults)]
    assert len(results.results) == 3


async def an_invalid_answer_is_refused_and_changes_nothing(bench: Bench) -> None:
    run = await bench.run("refund")
    (id,) = await _open(bench, run)

    async def answer_with(answer: AwaitAnswer, *, by: str = "key:ops", id: str = id) -> str:
        return await refusal(bench.engine.answer_await(run.key, id, answer, by=by, person_of=as_named))

    assert await answer_with(_YES, id="await_9_9_9") == "unknown_await"
    assert await answer_with(AwaitAnswer(outcome="answered", value="yes")) == "invalid_answer"
    assert await answer_with(AwaitAnswer(outcome="denied", args={"n": 1})) == "invalid_answer"
    assert await answer_with(_YES, by="") == "invalid_answer"
    assert await answer_with(replace(_YES, remember=Pattern("pay"))) == "invalid_answer"
    assert await _listed(bench, run) == [id]
    assert await bench.engine.answer_await(run.key, id, _YES, by="key:ops", person_of=as_named) == "approved"
    await bench.ended(run)
    assert len(bench.world.executions) == 1


async def of_answers_that_race_one_counts_and_it_may_be_repeated(bench: Bench) -> None:
    run = await bench.run("refund")
    (id,) = await _open(bench, run)
    outcomes = await asyncio.gather(
        *[
            bench.engine.answer_await(run.key, id, answer, by="key:ops", person_of=as_named)
            for answer in (_YES, _YES, _NO)
        ],
        return_exceptions=True,
    )
    assert [one.code if isinstance(one, WeftlineError) else one for one in outcomes] == (
        ["approved", "approved", "await_closed"]
    )
    await bench.ended(run)
    await bench.subject.restart()
    assert await bench.engine.answer_await(run.key, id, _YES, by="key:ops", person_of=as_named) == "approved"
    assert (
        await refusal(bench.engine.answer_await(run.key, id, _NO, by="key:ops", person_of=as_named)) == "await_closed"
    )
    assert len(bench.world.executions) == 1


async def an_await_survives_the_process(bench: Bench) -> None:
    run = await bench.run("refund")
    (id,) = await _open(bench, run)
    before = len(await _so_far(bench, run))
    await bench.subject.restart()
    assert await _listed(bench, run) == [id]
    assert len(await _so_far(bench, run)) == before  # waiting is not work that a new process has to take over
    assert (await bench.row(run)).status == "paused"
    await bench.engine.answer_await(run.key, id, _YES, by="key:ops", person_of=as_named)
    await bench.ended(run)
    assert len(bench.world.executions) == 1


async def _so_far(bench: Bench, run: Run) -> list[str]:
    kinds = ("await.opened", "run.adopted", "turn.completed", "call.started")
    found = await bench.engine.stored.logs.newest_facts(run.key, kinds=kinds, limit=100, max_bytes=10**6)
    return [fact.kind for fact in found]


async def a_cancel_withdraws_what_people_are_asked(bench: Bench) -> None:
    run = await bench.run("refund")
    (id,) = await _open(bench, run)
    await bench.engine.cancel(run.key)
    (closed,) = facts(await bench.lines(run), AwaitClosed)
    assert (closed.id, closed.outcome, closed.by) == (id, "withdrawn", "runtime")
    assert await _listed(bench, run) == []
    assert (
        await refusal(bench.engine.answer_await(run.key, id, _YES, by="key:ops", person_of=as_named)) == "await_closed"
    )
    assert not bench.world.executions


async def an_approval_may_cover_later_calls_of_the_run(bench: Bench) -> None:
    run = await bench.run("refund_twice")
    (id,) = await _open(bench, run)
    always = AwaitAnswer(outcome="approved", remember=Pattern("refund"))
    await bench.engine.answer_await(run.key, id, always, by="key:ops", person_of=as_named)
    await bench.ended(run)
    lines = await bench.lines(run)
    assert len(facts(lines, AwaitOpened)) == 1
    assert len(facts(lines, CallStarted)) == 2


async def a_paused_run_accepts_an_answer_and_continues_when_it_is_resumed(bench: Bench) -> None:
    run = await bench.run("refund")
    (id,) = await _open(bench, run)
    await bench.engine.pause(run.key)
    assert await bench.engine.answer_await(run.key, id, _YES, by="key:ops", person_of=as_named) == "approved"
    assert not bench.world.executions
    await bench.engine.resume(run.key)
    await bench.ended(run)
    assert len(bench.world.executions) == 1


async def whoever_requested_a_run_may_not_approve_it_by_the_rule_of_four_eyes(bench: Bench) -> None:
    run = await bench.run("refund", limits=Limits(four_eyes=True), requested_by="key:ann")
    (id,) = await _open(bench, run)
    assert await refusal(bench.engine.answer_await(run.key, id, _YES, by="key:ann", person_of=as_named)) == "four_eyes"
    assert await bench.engine.answer_await(run.key, id, _YES, by="key:bob", person_of=as_named) == "approved"
    await bench.ended(run)


async def whoever_changes_the_arguments_may_not_approve_them_by_the_rule_of_four_eyes(bench: Bench) -> None:
    run = await bench.run("refund", limits=Limits(four_eyes=True), requested_by="key:ann")
    (id,) = await _open(bench, run)
    more = AwaitAnswer(outcome="approved", args={"n": 7})
    assert await refusal(bench.engine.answer_await(run.key, id, more, by="key:bob", person_of=as_named)) == "four_eyes"
    assert not bench.world.executions
    same = AwaitAnswer(outcome="approved", args={"n": 0})
    assert await bench.engine.answer_await(run.key, id, same, by="key:bob", person_of=as_named) == "approved"
    await bench.ended(run)
    assert [execution.args for execution in bench.world.executions] == [b'{"n":0}']


async def two_names_of_one_person_count_as_one_person(bench: Bench) -> None:
    async def person_of(name: str) -> str | None:
        return {"key:spare": "key:ann", "app:gone": None}.get(name, name)

    run = await bench.run("refund", limits=Limits(four_eyes=True), requested_by="key:ann")
    (id,) = await _open(bench, run)
    for by in ("key:spare", "app:gone"):
        answered = bench.engine.answer_await(run.key, id, _YES, by=by, person_of=person_of)
        assert await refusal(answered) == "four_eyes"
    assert await bench.engine.answer_await(run.key, id, _YES, by="key:bob", person_of=person_of) == "approved"
    await bench.ended(run)


async def whoever_requested_a_run_may_not_decide_its_calls_in_doubt(bench: Bench) -> None:
    limits = Limits(four_eyes=True, in_doubt="ask")
    run = await bench.run("pay", limits=limits, requested_by="key:ann")
    await bench.began()
    await bench.subject.restart()
    (id,) = await _open(bench, run)
    invented = AwaitAnswer(outcome="answered", value="Paid, believe me.")
    assert (
        await refusal(bench.engine.answer_await(run.key, id, invented, by="key:ann", person_of=as_named)) == "four_eyes"
    )
    assert await bench.engine.answer_await(run.key, id, invented, by="key:bob", person_of=as_named) == "answered"
    await bench.ended(run)


CHECKS: tuple[Check, ...] = (
    a_call_waits_for_a_person_and_begins_when_it_is_approved,
    a_call_that_is_denied_never_begins,
    an_approval_may_change_the_arguments,
    several_awaits_are_open_at_once_and_answered_in_any_order,
    an_invalid_answer_is_refused_and_changes_nothing,
    of_answers_that_race_one_counts_and_it_may_be_repeated,
    an_await_survives_the_process,
    a_cancel_withdraws_what_people_are_asked,
    an_approval_may_cover_later_calls_of_the_run,
    a_paused_run_accepts_an_answer_and_continues_when_it_is_resumed,
    whoever_requested_a_run_may_not_approve_it_by_the_rule_of_four_eyes,
    whoever_changes_the_arguments_may_not_approve_them_by_the_rule_of_four_eyes,
    two_names_of_one_person_count_as_one_person,
    whoever_requested_a_run_may_not_decide_its_calls_in_doubt,
)
