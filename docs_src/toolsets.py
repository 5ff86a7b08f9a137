"""Tools of an agent as a set, whose functions see every call of them."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from weftline import Agent, tool
from weftline.testing import ScriptedModel, calls
from weftline.tools import ToolOutput, ToolsetCall, toolset


@tool(effect="read")
def invoice(customer: str) -> str:
    """The open invoice of a customer."""
    return f"{customer} owes 40 €."


@tool(effect="once")
def refund(customer: str, cents: int) -> str:
    """Pays money back."""
    return f"{cents / 100:.2f} € paid to {customer}."


def unwrapped(call: ToolsetCall) -> Mapping[str, Any] | None:
    """Some models put all arguments into one more object."""
    args = json.loads(call.args)
    return args["input"] if list(args) == ["input"] else None


def receipt(call: ToolsetCall, result: ToolOutput) -> str:
    return f"{result.text} ({call.toolset}, {call.tool})"


agent = Agent("openai:gpt-5", tools=[*toolset("billing", invoice, refund, adapt=unwrapped, materialize=receipt)])


async def main() -> None:
    model = ScriptedModel([calls("refund", input={"customer": "Ann", "cents": 250}), "{{all_tool_results}}"])
    with agent.override(model=model):
        result = await agent.run("Pay Ann 2.50 € back.")
    assert result.text == "2.50 € paid to Ann. (billing, refund)", result.text


if __name__ == "__main__":
    asyncio.run(main())
