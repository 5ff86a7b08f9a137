"""Calls that are executed by a run of their own."""

from __future__ import annotations

import asyncio

from weftline.kernel.entries import AwaitOpened, CallClosed
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.store.rows import AwaitFilter, OpenAwait
from weftline.testing.engine.bench import TIMEOUT_S, Bench, Check, Run, facts

_YES = AwaitAnswer(outcome="approved")


async def _asked(bench: Bench, run: Run) -> OpenAwait:
    """The question that the child of a run asks, once it is open."""
    follower = bench.engine.follow(run.key, run.id)
    follower.follows_below = True
    async with asyncio.timeout(TIMEOUT_S):
        while not (found := await bench.engine.stored.awaits(AwaitFilter(workspace=run.workspace, root=run.key))):
            assert await follower.next() is not None, "the run has ended without its child"
    follower.close()
    return found[0]


async def a_run_continues_when_its_child_has_ended(bench: Bench) -> None:
    run = await bench.run("delegate")
    asked = await _asked(bench, run)
    assert asked.run != run.key
    assert await bench.engine.answer_await(asked.run, asked.id, _YES, by="key:ops", person_of=as_named) == "approved"
    assert "refund is done" in await bench.answer_text(run)


async def a_parent_and_its_child_continue_after_a_crash(bench: Bench) -> None:
    run = await bench.run("delegate")
    await _asked(bench, run)
    await bench.crash()
    asked = await _asked(bench, run)
    await bench.engine.answer_await(asked.run, asked.id, _YES, by="key:ops", person_of=as_named)
    await bench.crash()
    assert (await bench.ended(run)).status == "succeeded"
    assert len(facts(await bench.lines(run), CallClosed)) == 1


async def a_cancel_ends_the_runs_below_too(bench: Bench) -> None:
    run = await bench.run("delegate")
    asked = await _asked(bench, run)
    assert (await bench.engine.cancel(run.key)).status == "cancelled"
    child = await bench.engine.stored.row(asked.run)
    assert child is not None and child.status == "cancelled"


async def it_is_known_whether_a_tree_of_runs_waits_for_people(bench: Bench) -> None:
    client, person, parent = [await bench.run(model) for model in ("ask", "refund", "delegate")]
    await bench.offers(client)
    (opened,) = await bench.until(person, AwaitOpened)
    await _asked(bench, parent)
    waits = [await bench.engine.waits_for_people(run.key) for run in (client, person, parent)]
    assert waits == [False, True, True]
    await bench.engine.answer_await(person.key, opened.id, _YES, by="key:ops", person_of=as_named)
    await bench.ended(person)
    assert not await bench.engine.waits_for_people(person.key)


CHECKS: tuple[Check, ...] = (
    a_run_continues_when_its_child_has_ended,
    a_parent_and_its_child_continue_after_a_crash,
    a_cancel_ends_the_runs_below_too,
    it_is_known_whether_a_tree_of_runs_waits_for_people,
)
