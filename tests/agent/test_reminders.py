"""Reminders that a run keeps: when they are due, where they stand, and that nobody keeps them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, ToolContext, tool
from weftline.behaviors import Reminder
from weftline.errors import InvalidRequest
from weftline.messages import ToolResults, User
from weftline.providers.base import ModelRequest
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

from .kit import asked

PATIENCE_S = 60
OPEN = "<system-reminder>"


@tool(effect="read")
def remind(context: ToolContext, id: str = "", text: str = "", end: str = "", most: int = 0, gap: int = 0) -> str:
    """Adds or ends a reminder."""
    if id:
        context.remind(Reminder(id=id, text=text, max_per_run=most or None, min_turns_between=gap))
    if end:
        context.end_reminder(end)
    return "ok"


def read(request: ModelRequest) -> str:
    """All that a model read of reminders, in order."""
    said = [request.system or "", *[one.text for one in request.messages if isinstance(one, User)]]
    return " ".join([line for text in said for line in text.splitlines() if line.startswith("!")])


@pytest.mark.requirement("run.reminder.schedule")
async def test_reminder_frequency_and_counters_survive_a_restart(tmp_path: Path) -> None:
    given = [
        Reminder(id="b", text="!b", max_per_run=2),
        Reminder(id="c", text="!c", min_turns_between=2, max_per_run=2),
        Reminder(id="z", text="!z", tier="safety", max_per_run=1, min_turns_between=1),
        Reminder(id="a", text="!a", attachment="run_start", max_per_run=1),
    ]
    turns = [
        calls("remind"),
        calls("remind", id="b", text="!b again", most=3),  # two of its three are used up
        calls("remind", id="new", text="!new", gap=1),
        {"error": {"class": "auth"}},
        calls("remind", end="z"),
        calls("remind", id="late", text="!late", end="new"),
        "Done.",
    ]

    def models() -> tuple[Catalog, ScriptedModel, ScriptedModel]:
        found, first, second = Catalog(), ScriptedModel(turns), ScriptedModel(turns)
        found.add(first, name="first")
        found.add(second, name="second")
        return found, first, second

    agent = Agent("first:script", name="a", tools=[remind], fallbacks=["second:script"], limits=Limits(loop_soft=0))
    catalog, first, second = models()
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent], models=catalog) as engine:
        run = await engine.start(agent, "Go.", reminders=given)
        result = await run.result()
    requests = sorted([*first.requests, *second.requests], key=lambda one: one.call_index)
    assert [read(request) for request in requests] == [
        "!a !z !b !c",  # at the head of the instructions, then by tier and id
        "!b",
        "!z !b again",
        "!c !new",
        "!c !new",  # the same turn, asked of the next model
        "",
        "!late",
    ]
    assert result.text == "Done."
    await restarted(tmp_path / "another")


async def restarted(folder: Path) -> None:
    """The run waits for a person in between, and another process carries it on."""

    @tool(effect="once", confirm="Sure?")
    def pay() -> str:
        """Pays."""
        return "Paid."

    def agent(model: ScriptedModel) -> Agent[Any, Any]:
        return Agent(model, name="a", tools=[remind, pay], limits=Limits(loop_soft=0))

    turns = [calls("remind", id="n", text="!n", most=2), calls("pay"), calls("remind"), calls("remind"), "Done."]
    before, after = ScriptedModel(turns), ScriptedModel(turns)
    async with asyncio.timeout(PATIENCE_S), Engine(folder, agents=[one := agent(before)]) as engine:
        run = await engine.start(one, "Go.")
        question = await asked(run)
    async with asyncio.timeout(PATIENCE_S), Engine(folder, agents=[agent(after)]) as engine:
        again = engine.attach(run.id)
        await again.approve(question.id)
        await again.result()
    assert [read(request) for request in before.requests] == ["", "!n"]
    assert [read(request) for request in after.requests] == ["!n", "", ""]


@pytest.mark.requirement("run.reminder.placement")
async def test_reminders_stand_in_request_only_and_beside_last_message() -> None:
    given = [
        Reminder(id="start", text="Be kind.", attachment="run_start"),
        Reminder(id="turn", text="Be brief."),
        Reminder(id="tagged", text=f"{OPEN}Be wise.</system-reminder>"),
    ]
    model = ScriptedModel([calls("remind"), "Done."])
    agent = Agent(model, instructions="You help.", tools=[remind])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.", reminders=given, messages=[User.of("Hello.")])
        result = await run.result()
        entries = (await run.entries(limit=1000)).entries
        events = [event async for event in run.events(profile="all")]
    first, second = model.requests
    head = f"{OPEN}\nBe kind.\n</system-reminder>\n\nYou help."
    said = f"{OPEN}Be wise.</system-reminder>\n{OPEN}\nBe brief.\n</system-reminder>"
    assert first.system == second.system == head
    texts = [message.text for message in first.messages if isinstance(message, User)]
    assert texts == ["Hello.", said, "Go."]
    assert isinstance(second.messages[-2], ToolResults)
    last = second.messages[-1]
    assert isinstance(last, User) and last.text == said
    assert [message.text for message in second.messages if isinstance(message, User)] == ["Hello.", "Go.", said]
    assert OPEN not in str(result.messages) + str(events)
    assert not any(OPEN in str(entry) for entry in entries if entry.kind != "run.created")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"id": ""}, "the id of a reminder must have 1 to 128 characters, not ''"),
        ({"text": ""}, "the text of a reminder must have 1 to 16,000 characters"),
        ({"tier": "high"}, "the tier of a reminder is safety or guidance, not 'high'"),
        ({"attachment": "end"}, "the attachment of a reminder must be run_start or user_turn, not 'end'"),
        ({"max_per_run": 0}, "max_per_run is a number above 0, or None, not 0"),
        ({"min_turns_between": -1}, "min_turns_between is a number, 0 or more, not -1"),
    ],
)
def test_a_reminder_that_makes_no_sense_is_refused(wrong: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"id": "a", "text": "b", **wrong}
    with pytest.raises(ValueError) as refused:
        Reminder(**given)
    assert str(refused.value) == words


async def test_value_that_is_not_a_reminder_list_is_refused() -> None:
    one = Reminder(id="a", text="b")
    async with Engine() as engine:
        for wrong in ([one, one], ["text"], one, [Reminder(id=str(n), text="x") for n in range(65)]):
            with pytest.raises(InvalidRequest, match="reminders= takes a list of up to 64 Reminders"):
                await engine.start(Agent(ScriptedModel(["Done."])), "Go.", reminders=wrong)  # type: ignore[arg-type]
