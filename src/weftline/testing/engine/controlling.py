"""Cancel, pause, resume, steering and follow-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from weftline.kernel import bodies
from weftline.kernel.calls import external_id
from weftline.kernel.entries import (
    KIND,
    AttemptStarted,
    CallClosed,
    CancelRequested,
    Limits,
    MessageQueued,
    MessagesTaken,
    RunPaused,
    RunResumed,
)
from weftline.messages import User
from weftline.runtime.tool_calls.provided import Provided
from weftline.testing.engine.bench import Bench, Check, facts, refusal
from weftline.tools.base import ToolOutput


async def a_cancel_ends_the_run_and_reports_what_it_stopped(bench: Bench) -> None:
    run = await bench.run("pay")
    await bench.began()
    receipt = await bench.engine.cancel(run.key, reason="user", requested_by="somebody")
    assert receipt.status == "cancelled"
    assert [call.name for call in receipt.finished] == ["note"]
    assert [call.name for call in receipt.in_doubt] == ["pay"]
    assert receipt.stopped == ()
    assert (await bench.row(run)).status == "cancelled"
    assert (await bench.ended(run)).reason == "user"


async def calls_that_only_read_are_stopped_by_a_cancel_and_a_clients_are_in_doubt(bench: Bench) -> None:
    run = await bench.run("ask_and_hold")
    await bench.began()
    receipt = await bench.engine.cancel(run.key)
    assert [call.name for call in receipt.stopped] == ["hold"]
    # A client that was offered a call may be executing it.
    assert [call.name for call in receipt.in_doubt] == ["ask"] and receipt.finished == ()


async def a_cancel_is_executed_once(bench: Bench) -> None:
    run = await bench.run("ask")
    await bench.offers(run)
    first = await bench.engine.cancel(run.key)
    assert await bench.engine.cancel(run.key) == first
    assert len(facts(await bench.lines(run), CancelRequested)) == 1


async def a_cancel_of_a_run_that_has_ended_changes_nothing(bench: Bench) -> None:
    run = await bench.run("hello")
    await bench.ended(run)
    assert (await bench.engine.cancel(run.key)).status == "succeeded"
    assert not facts(await bench.lines(run), CancelRequested)


async def a_paused_run_begins_nothing_until_it_is_resumed(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    await bench.engine.pause(run.key, reason="lunch")
    await bench.engine.pause(run.key)
    assert (await bench.row(run)).status == "paused"
    assert await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    await bench.engine.resume(run.key)
    await bench.ended(run)
    lines = await bench.lines(run)
    order = [type(line.fact) for line in lines if isinstance(line.fact, RunPaused | RunResumed | AttemptStarted)]
    assert order == [AttemptStarted, RunPaused, RunResumed, AttemptStarted]


async def a_run_that_allows_no_interruptions_is_not_paused(bench: Bench) -> None:
    run = await bench.run("ask", limits=Limits(interrupts_allowed=False))
    (call,) = await bench.offers(run)
    assert await refusal(bench.engine.pause(run.key)) == "interrupts_not_allowed"
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    assert (await bench.ended(run)).status == "succeeded"
    assert not facts(await bench.lines(run), RunPaused)


async def who_controls_a_run_and_why_is_kept(bench: Bench) -> None:
    run = await bench.run("ask")
    await bench.offers(run)
    await bench.engine.pause(run.key, reason="lunch", requested_by="ann", labels={"team": "red"})
    await bench.engine.resume(run.key, notes="back", requested_by="ben", labels={"team": "blue"})
    await bench.engine.cancel(run.key, reason="enough", requested_by="cho")
    lines = await bench.lines(run)
    controls = [line for line in lines if isinstance(line.fact, RunPaused | RunResumed | CancelRequested)]
    assert [line.fact for line in controls] == [
        RunPaused("lunch", "ann"),
        RunResumed("back", "ben"),
        CancelRequested("enough", "cho"),
    ]
    labels = [line.body and bodies.decode_control(line.body).labels for line in controls[:2]]
    assert labels == [{"team": "red"}, {"team": "blue"}]


async def messages_that_come_with_a_resume_reach_the_next_turn(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    await bench.engine.pause(run.key)
    await bench.engine.resume(run.key, messages=["first this", "then that"])
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    await bench.ended(run)
    assert [one.text for one in bench.world.conversations[1] if isinstance(one, User)] == [
        "x",
        "first this",
        "then that",
    ]


async def a_run_that_is_not_paused_is_not_resumed(bench: Bench) -> None:
    run = await bench.run("ask")
    await bench.offers(run)
    assert await refusal(bench.engine.resume(run.key)) == "not_paused"


async def a_steering_message_skips_calls_and_reaches_the_next_turn(bench: Bench) -> None:
    run = await bench.run("hold_then_note")
    await bench.began()
    await bench.engine.steer(run.key, "stop that")
    bench.world.released.set()
    await bench.ended(run)
    assert [one.how for one in facts(await bench.lines(run), CallClosed)] == ["returned", "skipped"]
    assert bench.world.conversations[-1][-1] == User.of("stop that")


async def a_follow_up_comes_when_the_run_would_end(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    first, second = await bench.engine.follow_up(run.key, "and then?"), await bench.engine.steer(run.key, "also this")
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    await bench.ended(run)
    taken = facts(await bench.lines(run), MessagesTaken)
    assert [one.ids for one in taken] == [(second,), (first,)]
    texts = [one.text for one in bench.world.conversations[-1] if isinstance(one, User)]
    assert texts == ["x", "also this", "and then?"]


async def a_message_with_an_idempotency_key_is_accepted_once(bench: Bench) -> None:
    run = await bench.run("ask")
    await bench.offers(run)
    for send, key in ((bench.engine.steer, "s"), (bench.engine.follow_up, "f")):
        sent = await asyncio.gather(*[send(run.key, "hurry", idempotency_key=key) for _ in range(3)])
        assert len({*sent, await send(run.key, "hurry", idempotency_key=key)}) == 1
        assert await refusal(send(run.key, "wait", idempotency_key=key)) == "idempotency_conflict"
    assert await bench.count(run, MessageQueued) == 2
    await bench.subject.restart()
    assert await bench.engine.steer(run.key, "hurry", idempotency_key="s")
    assert await bench.count(run, MessageQueued) == 2


async def the_senders_names_of_messages_and_answers_are_kept(bench: Bench) -> None:
    run = await bench.run("ask_twice")
    (call,) = await bench.offers(run)
    await bench.engine.steer(run.key, "also this", message_id="m-1")
    await bench.engine.answer(run.key, call, ToolOutput.of("42"), message_id="m-2")
    _, call = await bench.offers(run, 2)
    await bench.engine.provide(run.key, external_id(1), [Provided(call_id=call, result="43")], message_id="m-3")
    await bench.ended(run)
    kinds = (KIND[MessageQueued], KIND[CallClosed])
    queued, closed, provided = await bench.engine.stored.logs.newest_facts(
        run.key, kinds=kinds, limit=9, max_bytes=10_000
    )
    assert bodies.decode_queued(queued.body).message_id == "m-1"
    assert bodies.decode_closed(closed.body).message_id == "m-2"
    assert bodies.decode_closed(provided.body).message_id == "m-3"
    assert bodies.decode_message(queued.body) == User.of("also this")


async def the_senders_of_messages_and_their_labels_are_kept(bench: Bench) -> None:
    run = await bench.run("ask")
    await bench.offers(run)
    await bench.engine.steer(run.key, "hurry", by="ann", labels={"team": "red"})
    await bench.engine.follow_up(run.key, "and then?", by="ben", labels={"team": "blue"}, idempotency_key="k")
    kinds = (KIND[MessageQueued],)
    stored = await bench.engine.stored.logs.newest_facts(run.key, kinds=kinds, limit=9, max_bytes=10_000)
    queued = [bodies.decode_queued(one.body) for one in stored]
    assert [(one.by, one.labels) for one in queued] == [("ann", {"team": "red"}), ("ben", {"team": "blue"})]


async def a_run_that_has_ended_accepts_no_messages_and_no_pause(bench: Bench) -> None:
    run = await bench.run("hello")
    await bench.ended(run)
    asked: list[Awaitable[object]] = [
        bench.engine.steer(run.key, "more"),
        bench.engine.follow_up(run.key, "more"),
        bench.engine.pause(run.key),
        bench.engine.resume(run.key),
    ]
    for one in asked:
        assert await refusal(one) == "run_terminal"


CHECKS: tuple[Check, ...] = (
    a_cancel_ends_the_run_and_reports_what_it_stopped,
    calls_that_only_read_are_stopped_by_a_cancel_and_a_clients_are_in_doubt,
    a_cancel_is_executed_once,
    a_cancel_of_a_run_that_has_ended_changes_nothing,
    a_paused_run_begins_nothing_until_it_is_resumed,
    a_run_that_allows_no_interruptions_is_not_paused,
    who_controls_a_run_and_why_is_kept,
    messages_that_come_with_a_resume_reach_the_next_turn,
    a_run_that_is_not_paused_is_not_resumed,
    a_steering_message_skips_calls_and_reaches_the_next_turn,
    a_follow_up_comes_when_the_run_would_end,
    a_message_with_an_idempotency_key_is_accepted_once,
    the_senders_names_of_messages_and_answers_are_kept,
    the_senders_of_messages_and_their_labels_are_kept,
    a_run_that_has_ended_accepts_no_messages_and_no_pause,
)
