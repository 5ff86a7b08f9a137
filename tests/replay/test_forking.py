"""Forks: they go on from a turn, repeat nothing before it, and leave their origin as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode

from weftline import Agent, Engine, Limits, Settings, tool
from weftline.errors import WeftlineError
from weftline.events import AwaitOpened
from weftline.kernel.bodies import decode_created
from weftline.messages import Assistant, ToolResults, User
from weftline.runtime import ids
from weftline.runtime.reads.calls import entries
from weftline.store.database import Query, statement
from weftline.store.records import threads
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import ToolContext
from weftline.workspace.thread_branches import Branches

made: list[tuple[str, str]] = []


@tool
def order(cake: str, context: ToolContext) -> str:
    """Orders a cake."""
    made.append((cake, context.idempotency_key))
    return f"{cake} ordered"


def baker(*turns: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(turns or ["Done."]), name="baker", instructions="Bake.", tools=[order])


FIRST = (calls("order", cake="lemon"), calls("order", cake="plum"), "Two cakes.")


async def log_of(engine: Engine, run_id: str) -> list[Any]:
    return [item async for item in entries(engine.store.log, ids.key_of(run_id))]


async def origin(engine: Engine, **options: Any) -> str:
    made.clear()
    run = await engine.start(baker(*FIRST), "Bake.", **options)
    await run.result()
    return run.id


@pytest.mark.requirement("run.fork.at_turn")
async def test_fork_goes_on_from_turn_and_repeats_nothing_before_it() -> None:
    async with Engine() as engine:
        first = await origin(engine, thread="customer")
        before, said = await log_of(engine, first), await engine.thread("customer").messages()
        other = ScriptedModel([calls("order", cake="apple"), "Another one."])
        fork = await engine.fork(first, baker(), turn=1, model=other)
        result = await fork.result()
        assert result.text == "Another one." and [cake for cake, _ in made] == ["lemon", "plum", "apple"]
        assert len({key for _, key in made}) == 3
        asked = other.requests[0].messages
        assert [type(message) for message in asked] == [User, Assistant, ToolResults]
        assert isinstance(asked[2], ToolResults) and asked[2].results[0].text == "lemon ordered"
        called = [
            call.id
            for message in other.requests[1].messages
            if isinstance(message, Assistant)
            for call in message.calls
        ]
        assert len(called) == len(set(called)) == 2
        created = decode_created((await log_of(engine, fork.id))[0].body)
        assert created.origin is not None and (created.origin.run, created.origin.turn) == (first, 1)
        assert await log_of(engine, first) == before and await engine.thread("customer").messages() == said


@pytest.mark.requirement("run.fork.changes")
async def test_a_fork_may_have_another_prompt_message_model_and_limits() -> None:
    async with Engine() as engine:
        first = await origin(engine)
        other = ScriptedModel([calls("order", cake="fig"), "Enough."])
        fork = await engine.fork(
            first,
            baker(),
            turn=2,
            model=other,
            instructions="Bake less.",
            message="And a fig cake.",
            settings=Settings(reasoning="high"),
            limits=Limits(max_turns=1),
        )
        await fork.result()
        request = other.requests[0]
        last = request.messages[-1]
        assert request.system == "Bake less." and request.reasoning == 80
        assert isinstance(last, User) and last.text == "And a fig cake." and len(request.messages) == 6
        assert len(other.requests) == 2 and other.requests[1].tools_disabled


@pytest.mark.parametrize(
    ("turn", "model", "code"),
    [(3, None, "invalid_request"), (-1, None, "invalid_request"), (0, "nope", "invalid_model")],
)
@pytest.mark.requirement("run.fork.changes")
async def test_fork_that_cannot_be_is_refused_before_there_is_one(turn: int, model: str | None, code: str) -> None:
    async with Engine() as engine:
        first = await origin(engine)
        with pytest.raises(WeftlineError) as refused:
            await engine.fork(first, baker("x"), turn=turn, model=model)
        assert refused.value.code == code and await engine.store.log.last_key() == ids.key_of(first)


@pytest.mark.requirement("run.fork.compare")
async def test_run_and_fork_are_compared_only_where_live() -> None:
    async with Engine() as engine:
        first = await origin(engine)
        fork = await engine.fork(first, baker(), turn=1, model=ScriptedModel([FIRST[1], "Just as well."]))
        result = await fork.result()
        compared = await engine.compare(first, fork.id)
        assert (compared.first.turns, compared.first.calls, compared.first.text) == (3, 2, "Two cakes.")
        assert (compared.second.turns, compared.second.calls, compared.second.text) == (2, 1, "Just as well.")
        assert result.turns == 2 and compared.first_difference == 2
        kept = compared.inherited
        assert kept is not None and (kept.turns, kept.calls) == (1, 1)
        assert 0 < kept.input_tokens < compared.first.input_tokens
        assert compared.second.input_tokens == result.usage.input
        same = await engine.compare(first, first)
        assert same.first_difference is None and same.inherited is None


async def test_a_fork_can_be_replayed_and_forked_again() -> None:
    async with Engine() as engine:
        first = await origin(engine)
        agent = baker(calls("order", cake="fig"), "Done.")
        fork = await engine.fork(first, agent, turn=1)
        await fork.result()
        assert (await engine.replay(fork.id, agents=[agent])).divergence is None
        again = await engine.fork(fork.id, baker("Never mind."), turn=1)
        assert (await again.result()).text == "Never mind."


async def test_fork_asks_people_again_about_approved_calls() -> None:
    @tool(confirm="Pay?")
    def pay() -> str:
        """Pays."""
        return "paid"

    agent = Agent(ScriptedModel([calls("pay"), calls("pay"), "Done."]), name="payer", tools=[pay])
    async with Engine() as engine:
        run = await engine.start(agent, "Pay.")
        asked = 0
        async for event in run.events():
            if isinstance(event, AwaitOpened):
                asked += 1
                await run.approve(event.id, remember=True)
        assert asked == 1
        fork = await engine.fork(run.id, agent, turn=1, model=ScriptedModel([calls("pay"), "Done."]))
        async for event in fork.events():
            if isinstance(event, AwaitOpened):
                asked += 1
                await fork.deny(event.id)
        assert asked == 2


async def thread_of(engine: Engine, run_id: str) -> str:
    snapshot = await engine.attach(run_id).snapshot()
    assert snapshot.thread is not None
    return snapshot.thread


async def test_a_fork_and_its_thread_go_their_own_ways() -> None:
    # A thread has messages only: there are no files and values yet that a fork could have a copy of.
    async with Engine() as engine:
        await (await engine.start(Agent(ScriptedModel(["Hello."]), name="host"), "Hi.", thread="customer")).result()
        first = await origin(engine, thread="customer")
        run, thread = engine.attach(first), engine.thread("customer")

        async def stored() -> list[Any]:
            key = ids.key_of(first)
            row = await engine.store.log.run(key)
            assert row is not None and row.thread is not None
            said = await engine.store.log.thread_messages(row.thread)
            return [row, said, encode(await run.snapshot()), await log_of(engine, first)]

        before, messages = await stored(), await thread.messages()
        fork = await engine.fork(first, baker(calls("order", cake="apple"), "One more."), turn=2, message="And?")
        assert (await fork.result()).text == "One more."
        own = engine.thread(await thread_of(engine, fork.id))
        assert own.name != await thread_of(engine, first)
        assert [str(message) for message in await own.messages()][: len(messages)] == [
            *map(str, messages[:-1]),
            str(User.of("And?")),
        ]
        assert await stored() == before and await thread.messages() == messages
        after, later = ScriptedModel(["Here you are."]), ScriptedModel(["Three cakes."])
        await (await engine.start(Agent(after, name="baker"), "The bill?", thread="customer")).result()
        assert "apple" not in str(after.requests[0].messages) and "plum" not in str((await fork.messages())[-1])
        await (await engine.start(Agent(later, name="baker"), "How many?", thread=own.name)).result()
        asked = str(later.requests[0].messages)
        assert all(word in asked for word in ("Hello.", "lemon", "plum", "apple", "One more.", "How many?"))
        assert "The bill?" not in asked and "Two cakes." not in asked
        keys = [key for _, key in made]
        assert len(keys) == len(set(keys)) == 3


async def test_failed_fork_keeps_its_earlier_thread() -> None:
    async with Engine() as engine:
        first = await origin(engine, thread="customer")
        fork = await engine.fork(first, baker({"error": {"class": "auth", "message": "no"}}), turn=1)
        with pytest.raises(WeftlineError):
            await fork.result()
        own = engine.thread(await thread_of(engine, fork.id))
        assert [type(message) for message in await own.messages()] == [User, Assistant, ToolResults]
        again = await engine.fork(fork.id, baker("Never mind."), turn=0)
        assert (await again.result()).text == "Never mind."
        third = engine.thread(await thread_of(engine, again.id))
        assert len({own.name, third.name, await thread_of(engine, first)}) == 3
        assert [type(message) for message in await third.messages()] == [User, Assistant, ToolResults, Assistant]


async def test_fork_with_thread_can_be_replayed_compared_and_exported(tmp_path: Path) -> None:
    async with Engine() as engine:
        first = await origin(engine, thread="customer")
        agent = baker(calls("order", cake="fig"), "Done.")
        fork = await engine.fork(first, agent, turn=1)
        await fork.result()
        assert (await engine.replay(fork.id, agents=[agent])).divergence is None
        compared = await engine.compare(first, fork.id)
        assert compared.inherited is not None and compared.inherited.turns == 1
        await engine.export(fork.id, tmp_path / "fork.jsonl")
        async with Engine() as elsewhere:
            await elsewhere.import_runs(tmp_path / "fork.jsonl")
            assert (await elsewhere.attach(fork.id).snapshot()).status == "succeeded"


async def test_a_fork_that_is_refused_leaves_no_thread() -> None:
    def count() -> Query[int]:
        rows = yield from statement("SELECT count(*) FROM threads")
        return rows[0][0]

    async with Engine() as engine:
        first = await origin(engine, thread="customer")
        for turn, model in ((9, None), (0, "nope")):
            with pytest.raises(WeftlineError):
                await engine.fork(first, baker("x"), turn=turn, model=model)
        assert await engine.store.records.read(count()) == 1


async def test_thread_whose_fork_crash_prevented_is_gone_after_next_start(tmp_path: Path) -> None:
    agent = baker(*FIRST, "Another.")
    async with Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Bake.", thread="customer")
        await run.result()
        row = await engine.store.log.run(ids.key_of(run.id))
        assert row is not None and row.thread is not None
        lost = await Branches(engine.workspaces).branch(row.thread)
        fork = await engine.fork(run.id, agent, turn=1)
        await fork.result()
        forked = await engine.store.log.run(ids.key_of(fork.id))
        assert forked is not None and forked.thread is not None
    async with Engine(tmp_path, agents=[agent]) as engine:
        records = engine.store.records
        assert await records.read(threads.by_key(lost)) is None
        assert await records.read(threads.marked_branches()) == []
        for thread in (row.thread, forked.thread):
            assert await records.read(threads.by_key(thread)) is not None


async def test_thread_without_its_fork_is_removed() -> None:
    async with Engine() as engine:
        first = await origin(engine, thread="customer")
        row = await engine.store.log.run(ids.key_of(first))
        assert row is not None and row.thread is not None
        branches, records = Branches(engine.workspaces), engine.store.records
        unused = await branches.branch(row.thread)
        assert await records.read(threads.by_key(unused)) is not None
        for thread in (unused, row.thread):
            await branches.remove_unused(thread)
        assert await records.read(threads.by_key(unused)) is None
        assert await records.read(threads.by_key(row.thread)) is not None
