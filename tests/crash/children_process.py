"""A process with an agent that has a subagent, which has one too: `python children_process.py FOLDER [MAX_CHILDREN]`.

Each time a model is asked and each time a tool runs, a line is added to `told.txt`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from weftline import Agent, Engine, Limits, ToolContext, tool
from weftline.messages import User
from weftline.providers.base import Chunk, ModelRequest
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()


def tell(line: str) -> None:
    with (FOLDER / "told.txt").open("a") as file:
        file.write(line + "\n")


@tool(effect="idempotent")
def pay(context: ToolContext, amount: int) -> str:
    """Pays."""
    tell(f"paid {amount} {context.idempotency_key}")
    return f"Paid {amount}."


SCRIPTS: dict[str, list[Any]] = {
    "Go.": [{"tool_calls": [{"name": "clerk", "args": {"task": task}} for task in ("a", "b")]}, "Done."],
    "a": [calls("cashier", task="pay 1"), "a paid"],
    "b": ["b has nothing to pay"],
    "pay 1": [calls("pay", amount=1), "one paid"],
}


class Told(ScriptedModel):
    """Plays one script per task and says that it was asked."""

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        first = request.messages[0]
        assert isinstance(first, User)
        tell(f"asked {first.text}: {request.call_index}")
        return ScriptedModel(SCRIPTS[first.text]).stream(request)


cashier = Agent("lab:script", name="cashier", tools=[pay])
clerk = Agent("lab:script", name="clerk", tools=[cashier.as_tool("Pays.")])
agent = Agent("lab:script", name="boss", tools=[clerk.as_tool("Sees to things.")])


async def main() -> None:
    models = Catalog()
    models.add(Told(["Not asked."]), name="lab")
    async with Engine(FOLDER / "data", agents=[agent], models=models) as engine:
        limits = Limits(max_children=int(sys.argv[2])) if len(sys.argv) > 2 else Limits()
        run = await engine.start(agent, "Go.", key="once", limits=limits)
        result = await run.result()
        calls_made = sorted(f"{call.how}:{call.result}" for call in result.calls)
        print(result.text, "|", *calls_made, "|", result.usage.output, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
