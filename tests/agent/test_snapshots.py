"""A run as it stands, at any moment of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given

from kernel.histories import History, histories, lived
from weftline import Agent, Engine, tool
from weftline.details import AwaitConfirmation
from weftline.events.project_details import RunFacts
from weftline.events.snapshot import SnapshotFold
from weftline.kernel.entries import AwaitClosed, AwaitOpened, CallClosed, CallOpened, RunEnded
from weftline.messages import Usage
from weftline.testing import ScriptedModel, calls

from .kit import asked

PATIENCE_S = 60


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    return "Paid."


@tool(effect="read")
def look() -> str:
    """Looks."""
    raise ValueError("It is\ndark.")


@pytest.mark.requirement("run.snapshot.fields")
async def test_a_snapshot_has_the_run_as_it_stands(tmp_path: Path) -> None:
    clerk = Agent(ScriptedModel([calls("look"), "Ann."]), name="clerk", tools=[look])
    turns = [
        {**calls("look"), "text": "A look first."},
        calls("pay", amount=5),
        calls("ask_clerk", task="Who?"),
        "Done.",
    ]
    tools = [look, pay, clerk.as_tool("Knows.", name="ask_clerk")]
    agent = Agent(ScriptedModel(turns), name="payer", tools=tools)
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.", thread="t", turn_id="turn-7", labels={"team": "red"})
        question = await asked(run)
        half = await run.snapshot()
        await run.approve(question.id, by="user:ann")
        await run.result()
        whole = await run.snapshot()
        other = await (await engine.start(agent, "Go.")).snapshot()
    assert (half.run_id, half.agent, half.turn_id, half.labels) == (run.id, "payer", "turn-7", {"team": "red"})
    assert half.thread is not None and half.thread == whole.thread and other.thread is None
    assert (half.status, half.phase, half.last_message) == ("paused", "executing_tools", "A look first.")
    assert half.started_at is not None and half.created_at <= half.started_at <= half.updated_at
    [waiting] = half.awaits
    assert isinstance(waiting, AwaitConfirmation)
    assert (waiting.id, waiting.question, waiting.args) == (question.id, "Pay 5?", {"amount": 5})
    [failed] = half.calls
    assert (failed.name, failed.turn, failed.child_id) == ("look", 0, None)
    assert failed.error is not None and "\n" not in failed.error and failed.duration_ms is not None
    assert failed.scheduled_at <= (failed.started_at or 0) <= (failed.completed_at or 0)
    assert half.usage == sum(half.usage_by_model.values(), Usage()) and half.usage.input > 0

    assert (whole.status, whole.phase, whole.last_message, whole.reason) == ("succeeded", "succeeded", "Done.", "")
    assert whole.awaits == () and whole.updated_at >= half.updated_at and whole.usage.input > half.usage.input
    assert [call.name for call in whole.calls] == ["look", "pay", "ask_clerk"]
    places = [(call.scheduled_at, call.id) for call in whole.calls]
    assert places == sorted(places)
    [child] = whole.children
    delegated = whole.calls[-1]
    assert (child.run_id, child.call_id, child.status) == (delegated.child_id, delegated.id, "succeeded")
    assert (delegated.expected_children, delegated.observed_children) == (1, 1)
    assert (whole.calls[0].expected_children, whole.calls[0].observed_children) == (0, 0)


@given(histories)
def test_state_has_open_questions_and_calls_at_any_moment(history: History) -> None:
    fold, open_awaits, announced, closed = SnapshotFold(RunFacts("run_1")), list[str](), set[str](), set[str]()
    for seq, entry in enumerate(lived(history).entries, 1):
        fold.take(entry.head, entry.body, seq=seq, at=entry.at)
        match entry.head:
            case AwaitOpened(id=id):
                open_awaits.append(id)
            case AwaitClosed(id=id):
                open_awaits.remove(id)
            case CallOpened(id=id):
                announced.add(id)
            case CallClosed(id=id):
                closed.add(id)
            case RunEnded():
                open_awaits = []
            case _:
                pass
        now = fold.build(status="running", below={})
        assert [one.id for one in now.awaits] == open_awaits
        assert {call.id for call in now.calls} == announced
        assert {call.id for call in now.calls if call.completed_at is not None} == closed & announced
        assert (now.status in ("succeeded", "failed", "cancelled")) == isinstance(entry.head, RunEnded)
