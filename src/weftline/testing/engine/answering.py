"""Clients' answers: each call gets one result, and the model reads exactly that."""

from __future__ import annotations

import asyncio

from weftline.errors import NotFound
from weftline.kernel.bodies import ClosedBody, encode
from weftline.kernel.entries import CallClosed, CallStarted, CancelRequested, HistoryPinned, RunAdopted, TimerFired
from weftline.messages import Text, ToolResults
from weftline.testing.engine.bench import Bench, Check, facts, refusal
from weftline.tools.base import ToolOutput


async def an_answer_continues_the_run(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    assert await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    assert "42" in await bench.answer_text(run)


async def answers_at_the_same_moment_each_reach_the_model_once(bench: Bench) -> None:
    run = await bench.run("ask_three")
    calls = await bench.offers(run, 3)
    texts = {call: f"result of {call}" for call in calls}
    answers = [bench.engine.answer(run.key, call, ToolOutput.of(texts[call])) for call in reversed(calls)]
    assert await asyncio.gather(*answers) == [True, True, True]
    await bench.ended(run)
    (results,) = [one for one in bench.world.conversations[-1] if isinstance(one, ToolResults)]
    assert [(result.id, result.text) for result in results.results] == [(call, texts[call]) for call in calls]


async def the_first_of_two_answers_counts(bench: Bench) -> None:
    run = await bench.run("ask_twice")
    (call,) = await bench.offers(run)
    answers = [bench.engine.answer(run.key, call, ToolOutput.of(text)) for text in ("one", "two")]
    first, second = await asyncio.gather(*answers, return_exceptions=True)
    assert first is True
    assert isinstance(second, NotFound) and second.code == "unknown_call"
    (closed,) = await bench.until(run, CallClosed)
    assert (closed.id, closed.how) == (call, "returned")


async def an_answer_with_an_idempotency_key_may_be_repeated(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)

    async def answer(text: str = "42", *, key: str = "k", is_error: bool = False) -> bool:
        output = ToolOutput.of(text, is_error=is_error)
        return await bench.engine.answer(run.key, call, output, idempotency_key=key)

    assert await asyncio.gather(answer(), answer()) == [True, True]
    await bench.ended(run)
    assert await answer()
    await bench.subject.restart()
    assert await answer()
    assert await refusal(answer("43")) == await refusal(answer(is_error=True)) == "idempotency_conflict"
    assert await refusal(answer(key="another")) == await refusal(answer(key="")) == "run_terminal"
    assert len(facts(await bench.lines(run), CallClosed)) == 1


async def an_answer_to_nothing_is_refused_and_changes_nothing(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    assert await refusal(bench.engine.answer(run.key, "nothing", ToolOutput.of("42"))) == "unknown_call"
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    await bench.ended(run)
    assert await refusal(bench.engine.answer(run.key, call, ToolOutput.of("42"))) == "run_terminal"


async def an_error_is_a_result_too(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    await bench.engine.answer(run.key, call, ToolOutput.of("it broke", is_error=True))
    closed = facts(await bench.lines(run), CallClosed)
    assert [(one.how, one.is_error) for one in closed] == [("failed", True)]


async def an_answer_after_a_cancel_is_accepted_and_changes_nothing(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    await bench.engine.cancel(run.key)
    assert not await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    lines = await bench.lines(run)
    assert [one.how for one in facts(lines, CallClosed)] == ["cancelled"]


async def a_request_from_outside_is_accepted_only_while_it_applies(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    body = encode(ClosedBody((Text("42"),)))
    for wrong in (
        CallClosed(0, 9, "none", "ask", "returned"),
        CallClosed(0, 0, "none", "ask", "returned"),
        CallClosed(0, 0, call, "other", "returned"),
        CallClosed(0, 0, call, "ask", "in_doubt"),
    ):
        assert not await bench.engine.accept(run.key, wrong, body)
    assert await bench.engine.accept(run.key, CancelRequested())
    await bench.ended(run)
    assert not await bench.engine.accept(run.key, CancelRequested())


async def what_is_not_a_request_is_refused_from_outside(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    for fact in (TimerFired(10**17), RunAdopted(10**15), HistoryPinned(5), CallStarted(0, 0, 1)):
        assert await refusal(bench.engine.accept(run.key, fact)) == "invalid_request"
    answer = CallClosed(0, 0, call, "ask", "returned")
    assert await refusal(bench.engine.accept(run.key, answer, b"not JSON")) == "invalid_request"
    assert await bench.engine.accept(run.key, answer, encode(ClosedBody((Text("42"),))))
    assert "42" in await bench.answer_text(run)


CHECKS: tuple[Check, ...] = (
    an_answer_continues_the_run,
    answers_at_the_same_moment_each_reach_the_model_once,
    the_first_of_two_answers_counts,
    an_answer_with_an_idempotency_key_may_be_repeated,
    an_answer_to_nothing_is_refused_and_changes_nothing,
    an_error_is_a_result_too,
    an_answer_after_a_cancel_is_accepted_and_changes_nothing,
    a_request_from_outside_is_accepted_only_while_it_applies,
    what_is_not_a_request_is_refused_from_outside,
)
