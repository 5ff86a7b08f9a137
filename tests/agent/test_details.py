# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""What a log tells those who ask for more: phases, usage and decisions, by profile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from weftline import Agent, Engine, Limits, ToolContext, tool
from weftline.agent.run import Run
from weftline.behaviors import Behavior, Compaction
from weftline.details import (
    AwaitConfirmation,
    ChildRunLinked,
    Detail,
    PhaseChanged,
    PlannerNote,
    ToolAuthorization,
    ToolCallArgsDelta,
    ToolOutputDelta,
    UsageRecorded,
)
from weftline.errors import InvalidRequest, StoreError
from weftline.events import AnyEvent, RunEnded, RunStarted, TextDelta
from weftline.kernel.entries import FORMAT
from weftline.messages import Usage
from weftline.policies import Policy
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

from .kit import asked

PATIENCE_S = 60
SLOW_DOWN = {"error": {"class": "rate_limit", "message": "Slow down.", "retryable": False}}


@tool(effect="read")
def look(n: int = 0) -> str:
    """Looks."""
    return "Seen."


async def told(run: Run[Any], **asked: Any) -> list[Any]:
    return [event async for event in run.events(profile=asked.pop("profile", "all"), **asked)]


def phases(events: list[Any]) -> list[tuple[str, int]]:
    return [(event.phase, event.turn) for event in events if isinstance(event, PhaseChanged)]


@pytest.mark.requirement("run.phase.per_turn")
async def test_the_phase_follows_every_model_call_and_every_batch() -> None:
    def agent(*turns: Any, **limits: Any) -> Agent[Any, Any]:
        return Agent(ScriptedModel(list(turns)), tools=[look], limits=Limits(loop_soft=0, **limits))

    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        plain = await told(await engine.start(agent("Hello."), "Go."))
        assert phases(plain) == [("prompted", 0), ("planning", 0), ("succeeded", 0)]
        twice = await told(await engine.start(agent(calls("look", n=1), calls("look", n=2), "Done."), "Go."))
        assert phases(twice) == [
            ("prompted", 0),
            *(("planning", 0), ("executing_tools", 0)),
            *(("planning", 1), ("executing_tools", 1)),
            *(("planning", 2), ("succeeded", 2)),
        ]
        forced = await told(await engine.start(agent(calls("look"), "Done.", max_turns=1), "Go."))
        assert phases(forced)[-3:] == [("executing_tools", 0), ("synthesizing", 1), ("succeeded", 1)]
        failed = await told(await engine.start(agent({"error": {"class": "auth"}}), "Go."))
        assert phases(failed) == [("prompted", 0), ("planning", 0), ("failed", 0)]
        stuck = await engine.start(agent({"deltas": ["a", "b"], "delay_ms": 600_000}), "Go.")
        async for event in stuck:
            if isinstance(event, TextDelta):
                break
        await stuck.cancel()
        assert phases(await told(stuck)) == [("prompted", 0), ("planning", 0), ("cancelled", 0)]


@pytest.mark.requirement("run.usage.events")
async def test_model_calls_report_usage_and_runs_their_sum(tmp_path: Path) -> None:
    """A failed and repeated one, one of a fallback, a summary and a forced final turn included."""

    def used(tokens: int) -> dict[str, Any]:
        return {"input": tokens, "output": 1, "cached": 2, "cache_write": 3}

    def models() -> Catalog:
        found = Catalog()
        looks = [{**calls("look", n=n), "text": "Hm.", "usage": used(n)} for n in range(10, 15)]
        found.add(ScriptedModel([{**SLOW_DOWN, "usage": used(9)}, *looks]), name="first")
        found.add(ScriptedModel([*looks, *looks]), name="second")
        found.add(ScriptedModel([{"text": "Sum.", "usage": used(40)}]), name="cheap")
        return found

    agent = Agent(
        "first:script",
        name="a",
        tools=[look],
        fallbacks=["second:script"],
        limits=Limits(loop_soft=0, max_retries=1, max_turns=2),
        behavior=Behavior(compaction=Compaction(at_tokens=20, keep_turns=0, model="cheap:script")),
    )
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent], models=models()) as engine:
        run = await engine.start(agent, "Go. " * 30)
        seen: list[UsageRecorded] = []
        async for event in run.events(profile=[UsageRecorded]):
            if isinstance(event, UsageRecorded):
                seen.append(event)
                so_far = sum((one.usage for one in seen), Usage())
                now = await run.usage()
                assert sum(now.values(), Usage()).input >= so_far.input
        result = await run.result()
        by_model = await run.usage()
    classes = {event.model_class for event in seen}
    assert classes == {"default", "fallback", "summary"} and seen[0].input == 9
    assert len(seen) == result.attempts
    assert all(event.total == event.input + event.output for event in seen)
    assert sum((event.usage for event in seen), Usage()) == result.own_usage == sum(by_model.values(), Usage())
    for model, usage in by_model.items():
        assert sum((event.usage for event in seen if event.model == model), Usage()) == usage
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent], models=models()) as engine:
        again = engine.attach(run.id)
        assert await again.usage() == by_model
        assert [event for event in await told(again) if isinstance(event, UsageRecorded)] == seen


async def test_usage_counts_readable_entries_of_a_newer_run(
    tmp_path: Path,
) -> None:
    model = ScriptedModel([{**calls("look"), "usage": {"input": 5}}, {"text": "Done.", "usage": {"input": 7}}])
    agent = Agent(model, name="a", tools=[look])
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        await run.result()
    db = apsw.Connection(str(tmp_path / "weftline.db"))
    first = "SELECT min(seq) FROM entries WHERE kind = 'turn.completed'"
    db.execute(f"UPDATE entries SET head = ? WHERE seq = ({first})", [b'{"type":"turn.completed"}'])
    db.execute("UPDATE runs SET format = ?", [FORMAT + 1])
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        again = engine.attach(run.id)
        assert sum((await again.usage()).values(), Usage()).input == 7
        db.execute("UPDATE runs SET format = ?", [FORMAT])
        with pytest.raises(
            StoreError, match=rf"^The log of run {run.id} is damaged: a fact cannot be read\.$"
        ) as damage:
            await again.usage()
        assert damage.value.code == "log_damaged"
    db.close()


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int, context: ToolContext[object]) -> str:
    """Pays."""
    context.emit("output", {"stream": "stdout", "delta": "counting"})
    context.emit("output", "done")
    context.emit("mood", "fine")
    return "Paid."


async def test_decisions_children_and_output_say_what_they_concern(tmp_path: Path) -> None:
    clerk = Agent(ScriptedModel(["Ann."]), name="clerk")
    model = ScriptedModel([calls("pay", amount=5), calls("ask_clerk", task="Who?"), "Done."])
    agent = Agent(model, name="payer", tools=[pay, clerk.as_tool("Knows.", name="ask_clerk")])
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.", thread="t")
        question = await asked(run)
        await run.approve(question.id, by="user:ann")
        events = await told(run)
        details = [event for event in events if isinstance(event, Detail)]
        for late in (0, question.seq, question.seq + 1, events[-1].seq - 1):
            assert await told(run, after=late) == [event for event in events if event.seq > late]
        plain = [event async for event in run.events()]
    assert isinstance(events[0], RunStarted) and isinstance(events[-1], RunEnded)
    assert [event for event in events if not isinstance(event, Detail)] == plain
    assert [event.seq for event in events] == sorted([event.seq for event in events])
    assert len({event.key for event in details}) == len(details)
    assert {(one.run_id, one.agent, one.turn_id) for one in details} == {(run.id, "payer", run.id)}
    assert {one.thread for one in details} == {details[0].thread} and details[0].thread is not None
    assert [one.at for one in details] == sorted([one.at for one in details]) and details[0].at > 0

    def of(kind: type[Any]) -> Any:
        [found] = [event for event in details if isinstance(event, kind)]
        return found

    confirmation = of(AwaitConfirmation)
    assert (confirmation.id, confirmation.question, confirmation.args) == (question.id, "Pay 5?", {"amount": 5})
    decided = of(ToolAuthorization)
    assert (decided.name, decided.call_id, decided.approved) == ("pay", question.call_id, True)
    assert (decided.summary, decided.approved_by) == ("Pay 5?", "user:ann")
    assert of(ChildRunLinked).name == "ask_clerk" and of(ChildRunLinked).child_id.startswith("run_")
    output = [(one.stream, one.delta) for one in details if isinstance(one, ToolOutputDelta)]
    assert output == [("stdout", "counting"), ("", "done")]


async def test_a_rate_limited_model_call_leaves_a_note() -> None:
    agent = Agent(ScriptedModel([SLOW_DOWN]), limits=Limits(max_retries=0))
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.")
        [note, end] = await told(run, profile=[PlannerNote])
    assert (note.text, note.labels, note.turn) == ("Slow down.", {"code": "rate_limited"}, 0)
    assert isinstance(end, RunEnded)


async def test_subscription_has_events_of_its_profile_and_always_end() -> None:
    agent = Agent(ScriptedModel([calls("look"), "Done."]), tools=[look])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.")
        plain: list[AnyEvent] = [event async for event in run.events()]
        assert await told(run, profile="default") == plain
        metrics = await told(run, profile="metrics")
        assert {type(event) for event in metrics} == {PhaseChanged, UsageRecorded, RunEnded}
        assert [type(event) for event in await told(run, profile=[RunStarted])] == [RunStarted, RunEnded]
        for wrong, words in [
            ("al", "'al' is not a profile: default, all, metrics, or classes of events. Did you mean 'all'?"),
            ((), "An empty list: a profile is a list of event classes"),
            ([str], "<class 'str'>: a profile is a list of event classes"),
        ]:
            with pytest.raises(InvalidRequest) as refused:
                run.events(profile=wrong)  # type: ignore[call-overload]
            assert refused.value.message.startswith(words)
        with pytest.raises(InvalidRequest, match="profile= is for one run"):
            run.events(profile="all", children=True)  # type: ignore[call-overload]


async def test_arguments_are_streamed_if_the_run_asks() -> None:
    agent = Agent(ScriptedModel([calls("look", n=7), "Done."]), tools=[look])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.", stream_arguments=True)
        pieces = [event for event in await told(run) if isinstance(event, ToolCallArgsDelta)]
        plain = await engine.start(agent, "Go.")
        assert not [event for event in await told(plain) if isinstance(event, ToolCallArgsDelta)]
        assert "delta.args" not in [entry.kind for entry in (await plain.entries(limit=1000)).entries]
    assert "".join([piece.delta for piece in pieces]) == '{"n":7}'
    assert {(piece.name, piece.turn, piece.attempt) for piece in pieces} == {("look", 0, 1)}


@pytest.mark.requirement("run.start.input_kept")
async def test_everything_that_run_was_given_is_in_its_first_entry(tmp_path: Path) -> None:
    clerk = Agent(ScriptedModel(["Ann."]), name="clerk")
    model = ScriptedModel([calls("ask_clerk", task="Who?"), "Done."])
    agent = Agent(model, name="boss", tools=[clerk.as_tool("Knows.", name="ask_clerk")])
    given: dict[str, Any] = {
        "thread": "t",
        "turn_id": "turn-7",
        "labels": {"team": "red"},
        "metadata": {"ticket": "7"},
        "policy": Policy(max_tool_calls=3, time_budget_s=60),
        "requested_by": "user:ann",
    }
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.", **given)
        await run.result()
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        entries = (await engine.attach(run.id).entries(limit=1000)).entries
        [child] = (await engine.attach(run.id).snapshot()).children
        below = (await engine.attach(child.run_id).entries(limit=1000)).entries
        session = (await engine.attach(run.id).snapshot()).thread
    first, plan = entries[0], entries[0].body["plan"]
    assert first.kind == "run.created" and first.head is not None and first.head["thread"] > 0 and session is not None
    assert (plan["code"], plan["turn_id"], plan["labels"]) == ("boss", "turn-7", {"team": "red"})
    assert (plan["metadata"], plan["requested_by"]) == ({"ticket": "7"}, "user:ann")
    assert plan["messages"] == [{"role": "user", "parts": [{"type": "text", "text": "Go."}]}]
    policy = first.head["limits"]["policy"]
    assert (policy["max_tool_calls"], policy["time_budget_us"]) == (3, 60_000_000)
    assert {entry.turn_id for entry in (*entries, *below)} == {"turn-7"}
    link = below[0].head
    assert link is not None and link["parent"]["run"] == run.id
    started = next(entry for entry in entries if entry.kind == "call.started")
    assert started.head is not None
    assert (link["parent"]["turn"], link["parent"]["index"]) == (started.head["turn"], started.head["index"])
    assert below[0].body["plan"]["labels"] == {"team": "red"}
    assert below[0].body["call"] == {"tool": "ask_clerk", "args": {"task": "Who?"}}
