"""Runs of a thread run one after another, and each starts from what the earlier ones left."""

from __future__ import annotations

from weftline.kernel.bodies import decode_message, encode
from weftline.kernel.entries import AttemptStarted, CancelRequested, HistoryPinned
from weftline.messages import Assistant, Message, User
from weftline.runtime.thread_messages import Changes, NewMessage
from weftline.store.records import threads
from weftline.store.records.thread_messages import MessageFilter
from weftline.testing.engine.bench import Bench, Check, Run, facts, plan_of, refusal
from weftline.tools.base import ToolOutput


async def runs_of_a_thread_run_in_the_order_of_their_creation(bench: Bench) -> None:
    thread = await bench.thread()
    first = await bench.run("ask", thread=thread, text="first")
    later = [await bench.run("history", thread=thread, text=text) for text in ("second", "third")]
    (call,) = await bench.offers(first)
    assert [row.queued for row in [await bench.row(run) for run in (first, *later)]] == [False, True, True]
    await bench.engine.answer(first.key, call, ToolOutput.of("42"))
    for run in later:
        await bench.ended(run)
    texts = [one.text for one in bench.world.conversations[-1] if isinstance(one, User)]
    assert texts == ["first", "second", "third"]
    assert [_kind(message) for message in await _messages(bench, thread)] == ["user", "assistant"] * 3


async def a_fork_begins_its_thread_with_earlier_messages(bench: Bench) -> None:
    thread, workspace = await bench.thread(), await bench.workspace()
    earlier = User.of("first")
    run_id = await bench.engine.create(
        workspace, plan_of("history", text="last"), thread=thread, history=[encode(earlier)]
    )
    await bench.ended(Run(await bench.engine.locate(run_id, workspace=workspace), run_id, workspace))
    assert list(bench.world.conversations[-1]) == [earlier, User.of("last")]
    assert (await _messages(bench, thread))[:2] == [earlier, User.of("last")]


async def a_run_that_fails_or_is_cancelled_adds_nothing_to_its_thread(bench: Bench) -> None:
    thread = await bench.thread()
    failed = await bench.run("refused", thread=thread, text="failed")
    cancelled = await bench.run("ask", thread=thread, text="cancelled")
    await bench.ended(failed)
    await bench.offers(cancelled)
    await bench.engine.cancel(cancelled.key)
    last = await bench.run("history", thread=thread, text="last")
    await bench.ended(last)
    assert [one.text for one in bench.world.conversations[-1] if isinstance(one, User)] == ["last"]


async def messages_that_a_run_received_and_answered_stay_in_its_thread(bench: Bench) -> None:
    thread = await bench.thread()
    first = await bench.run("ask", thread=thread, text="first")
    (call,) = await bench.offers(first)
    await bench.engine.follow_up(first.key, "and then?")
    await bench.engine.steer(first.key, "hurry")
    await bench.subject.restart()
    await bench.engine.answer(first.key, call, ToolOutput.of("42"))
    await bench.ended(first)
    messages = await _messages(bench, thread)
    kinds_and_texts = [(_kind(message), message.text) for message in messages if isinstance(message, User | Assistant)]
    asked = [("user", "first"), ("user", "hurry")]
    assert kinds_and_texts == [*asked, ("assistant", "got 42"), ("user", "and then?"), ("assistant", "got 42")]
    await bench.ended(await bench.run("history", thread=thread, text="last"))
    assert list(bench.world.conversations[-1]) == [*messages, User.of("last")]


async def messages_are_put_into_a_thread_while_a_run_reads_it_and_while_none_does(bench: Bench) -> None:
    thread = await bench.thread()
    await bench.engine.messages.inject(thread, NewMessage(text="before"))
    first = await bench.run("ask", thread=thread, text="first")
    (call,) = await bench.offers(first)
    before, _ = await bench.engine.messages.page(MessageFilter(thread=thread, limit=1))
    put = await bench.engine.messages.inject(thread, NewMessage(text="put"))
    await bench.engine.messages.update(thread, before[0].name, Changes(text="changed"))
    await bench.subject.restart()
    assert await bench.engine.messages.one(thread, put.name) == put
    await bench.engine.answer(first.key, call, ToolOutput.of("42"))
    await bench.ended(first)
    assert [one.text for one in bench.world.conversations[-1] if isinstance(one, User)] == ["changed", "first", "put"]
    assert await bench.engine.messages.delete(thread, put.name)
    await bench.ended(await bench.run("history", thread=thread, text="last"))
    assert [one.text for one in bench.world.conversations[-1] if isinstance(one, User)] == ["changed", "first", "last"]


async def a_queued_run_can_be_cancelled_without_starting_another(bench: Bench) -> None:
    thread = await bench.thread()
    first, second, third = [await bench.run("ask", thread=thread) for _ in range(3)]
    (call,) = await bench.offers(first)
    assert (await bench.engine.cancel(second.key)).status == "cancelled"
    assert not facts(await bench.lines(second), AttemptStarted)
    assert (await bench.row(third)).queued
    await bench.engine.answer(first.key, call, ToolOutput.of("42"))
    await bench.offers(third)


async def a_queued_run_that_was_paused_starts_when_it_is_resumed(bench: Bench) -> None:
    thread = await bench.thread()
    first, second = await bench.run("ask", thread=thread), await bench.run("history", thread=thread, text="second")
    (call,) = await bench.offers(first)
    await bench.engine.pause(second.key)
    await bench.engine.steer(second.key, "hurry")
    await bench.subject.restart()
    await bench.engine.answer(first.key, call, ToolOutput.of("42"))
    await bench.ended(first)
    assert (await bench.row(second)).ended_at is None
    await bench.engine.resume(second.key)
    await bench.ended(second)
    kinds = [type(line.fact) for line in await bench.lines(second)]
    assert kinds.index(HistoryPinned) < kinds.index(AttemptStarted)


async def the_end_of_a_thread_cancels_all_its_runs(bench: Bench) -> None:
    thread = await bench.thread()
    runs = [await bench.run("ask", thread=thread) for _ in range(3)]
    await bench.offers(runs[0])
    await bench.subject.store.records.write(threads.end(thread, now=2))
    await bench.engine.end_thread(thread, requested_by="ann")
    for run in runs:
        ended = await bench.ended(run)
        assert (ended.status, ended.reason) == ("cancelled", "thread_ended")
        assert [one.requested_by for one in facts(await bench.lines(run), CancelRequested)] == ["ann"]
    assert await refusal(bench.run("hello", thread=thread)) == "thread_ended"


async def _messages(bench: Bench, thread: int) -> list[Message]:
    return [decode_message(message) for message in await bench.engine.stored.logs.thread_messages(thread)]


def _kind(message: Message) -> str:
    return "assistant" if isinstance(message, Assistant) else "user" if isinstance(message, User) else "other"


CHECKS: tuple[Check, ...] = (
    runs_of_a_thread_run_in_the_order_of_their_creation,
    a_fork_begins_its_thread_with_earlier_messages,
    a_run_that_fails_or_is_cancelled_adds_nothing_to_its_thread,
    messages_that_a_run_received_and_answered_stay_in_its_thread,
    messages_are_put_into_a_thread_while_a_run_reads_it_and_while_none_does,
    a_queued_run_can_be_cancelled_without_starting_another,
    a_queued_run_that_was_paused_starts_when_it_is_resumed,
    the_end_of_a_thread_cancels_all_its_runs,
)
