"""Reminders, which a model reads with some requests and nobody keeps, and notes, which no model reads."""

import asyncio

from weftline import Agent, RunContext, ToolContext, tool
from weftline.behaviors import Reminder
from weftline.hooks import AfterModel
from weftline.testing import ScriptedModel, calls


@tool(effect="read")
def open_file(context: ToolContext, name: str) -> str:
    """Opens a file."""
    context.remind(Reminder(id="open", text=f"{name} is still open.", max_per_run=3))
    return "Opened."


@tool(effect="read")
def close_file(context: ToolContext) -> str:
    """Closes it."""
    context.end_reminder("open")
    return "Closed."


# A script plays the model here; yours would be "openai:gpt-5".
model = ScriptedModel([calls("open_file", name="a.txt"), calls("close_file"), "Done."])
agent = Agent(model, tools=[open_file, close_file])


@agent.on(AfterModel)
def count(point: AfterModel, context: RunContext[object]) -> None:
    context.note(f"Turn {point.turn} is over.", {"source": "hook"})


async def main() -> None:
    safety = Reminder(id="safety", text="Delete nothing.", tier="safety", attachment="run_start", min_turns_between=4)
    result = await agent.run("Look into a.txt.", reminders=[safety])
    print([note.text for note in result.notes])
    assert "Delete nothing." in str(model.requests[0].system)
    assert "a.txt is still open." in str(model.requests[1].messages)
    assert "a.txt is still open." not in str(model.requests[2].messages)


if __name__ == "__main__":
    asyncio.run(main())
