"""Policies: how far a run may go, which tools it may use, and code that has a say in each turn."""

import asyncio

from weftline import Agent, tool
from weftline.policies import Policy, PolicyDecision, PolicyTurn
from weftline.testing import ScriptedModel, calls


@tool(effect="read", tags=["web"])
def search(query: str) -> str:
    """Searches the web."""
    return f"All about {query}."


@tool(effect="once", tags=["web", "costly"])
def order(item: str) -> str:
    """Orders something."""
    return f"Ordered {item}."


@tool(effect="idempotent", bookkeeping=True)
def note(text: str) -> str:
    """Takes a note."""
    return "Noted."


def office_hours(turn: PolicyTurn) -> PolicyDecision:
    if turn.labels.get("desk") == "closed":
        return PolicyDecision(allowed_tools=[tool.name for tool in turn.tools if "costly" not in tool.tags])
    return PolicyDecision(labels={"desk": "open"})


agent = Agent(
    "openai:gpt-5",
    tools=[search, order, note],
    policy=Policy(max_tool_calls=3, time_budget_s=60, per_tool_timeout_s={"sea*": 5}),
    policy_engine=office_hours,
)


async def main() -> None:
    turns = [
        calls(("search", {"query": "looms"}), ("order", {"item": "loom"})),
        calls("note", text="No loom."),
        "Done.",
    ]
    with agent.override(model=ScriptedModel(turns)):
        result = await agent.run("Get me a loom.", labels={"desk": "closed"})
    print([(call.name, call.how) for call in result.calls], result.reason)
    assert [call.how for call in result.calls] == ["returned", "excluded", "returned"]

    again = [calls("search", query="looms"), calls("search", query="yarn"), "Looms weave."]
    with agent.override(model=ScriptedModel(again)):
        result = await agent.run("What is a loom?", policy=Policy(max_tool_calls=1))
    assert (result.status, result.reason, result.text) == ("succeeded", "tool_cap", "Looms weave.")


if __name__ == "__main__":
    asyncio.run(main())
