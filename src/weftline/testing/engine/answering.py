"""Clients' answers: each call gets one result, and the model reads exactly that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from weftline.errors import NotFound
from weftline.kernel.bodies import ClosedBody, encode
from weftline.kernel.calls import external_id
from weftline.kernel.entries import (
    CallClosed,
    CallStarted,
    CancelRequested,
    HistoryPinned,
    Limits,
    RunAdopted,
    TimerFired,
)
from weftline.messages import Text, ToolResults
from weftline.runtime.tool_calls.provided import Provided
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


async def the_results_of_a_turn_are_accepted_together_or_not_at_all(bench: Bench) -> None:
    run = await bench.run("ask_three")
    calls = await bench.offers(run, 3)
    results = [Provided(call_id=call, name="ask", result=f"result of {call}") for call in reversed(calls)]

    async def provide(some: Sequence[Provided] = results, *, id: str = external_id(0), key: str = "k") -> bool:
        return await bench.engine.provide(run.key, id, some, idempotency_key=key)

    for wrong in (
        results[:2],
        [*results, Provided(call_id="nothing", result=1)],
        [*results[:2], replace(results[2], name="hold")],
    ):
        assert await refusal(provide(wrong)) == "invalid_answer"
    assert await refusal(provide(id=external_id(1))) == "unknown_await"
    found = {1: [("result", "It is not JSON.")]}
    assert await refusal(bench.engine.provide(run.key, external_id(0), results, problems=found)) == "invalid_answer"
    assert await bench.count(run, CallClosed) == 0, "some of the results were accepted"
    assert await provide()
    await bench.ended(run)
    assert [one.id for one in facts(await bench.lines(run), CallClosed)] == calls
    assert await provide()
    assert await refusal(provide(key="another")) == "run_terminal"
    assert await bench.count(run, CallClosed) == 3


async def a_result_that_nobody_waits_for_any_more_is_dropped(bench: Bench) -> None:
    """Of a tool that goes on although its run has ended."""
    run = await bench.run("linger", limits=Limits(local_timeout_us=50_000))
    await bench.began()
    assert (await bench.ended(run)).code == "local_timeout"
    before = await bench.lines(run)
    bench.world.released.set()
    await bench.world.returned.wait()
    assert (await bench.ended(await bench.run("note"))).status == "succeeded"
    assert await bench.lines(run) == before
    assert (await bench.row(run)).next_seq == before[-1].seq + 1


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
    the_results_of_a_turn_are_accepted_together_or_not_at_all,
    a_result_that_nobody_waits_for_any_more_is_dropped,
    a_request_from_outside_is_accepted_only_while_it_applies,
    what_is_not_a_request_is_refused_from_outside,
)
