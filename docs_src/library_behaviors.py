"""Behaviors: budgets, large results in files, names that the model knows, and what agents have in common."""

import asyncio
import os

from weftline import Agent, tool
from weftline.behaviors import Behavior, Preset, ToolBudget, compose_presets
from weftline.testing import ScriptedModel, calls


@tool(effect="read")
def search(query: str) -> str:
    """Searches the web."""
    return f"All about {query}. " * 200


careful = Preset(
    instructions="Say where you found it.",
    behavior=Behavior(
        tool_budgets={"search": ToolBudget(1, "steer")},
        dedup_tools={"search": lambda args: args["query"].lower()},
    ),
)
tidy = Preset(behavior=Behavior(persist_threshold_bytes=1000, persist_dir="results"))
agent = Agent(
    "openai:gpt-5", tools=[search], tool_aliases={"search": "WebSearch"}, preset=compose_presets(careful, tidy)
)


async def main() -> None:
    model = ScriptedModel([calls("WebSearch", query="Looms"), calls("WebSearch", query="LOOMS"), "Found it."])
    with agent.override(model=model):
        result = await agent.run("What is a loom?")
    for call in result.calls:
        print(call.name, call.how, call.result.partition("\n")[0])
    assert [call.how for call in result.calls] == ["returned", "answered"]
    assert len(os.listdir("results")) == 1


if __name__ == "__main__":
    asyncio.run(main())
