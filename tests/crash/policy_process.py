"""A process with an agent that has a policy, and an engine for it: `python policy_process.py FOLDER`.

Each time the engine is asked, a line is added to `asked.txt`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from weftline import Agent, Engine, tool
from weftline.policies import Policy, PolicyDecision, PolicyTurn
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()


@tool(effect="read")
def look(page: int) -> str:
    """Looks at a page."""
    return f"Page {page}."


async def engine_of_policy(turn: PolicyTurn) -> PolicyDecision:
    # On the loop: after the hop back from a thread the run may have come to its end before the kill takes effect.
    with (FOLDER / "asked.txt").open("a") as file:
        file.write(f"{turn.turn}\n")
    return PolicyDecision(labels={"turn": str(turn.turn)})


agent = Agent(
    "lab:script",
    name="reader",
    tools=[look],
    policy=Policy(max_tool_calls=1, time_budget_s=3600),
    policy_engine=engine_of_policy,
)


async def main() -> None:
    models = Catalog()
    models.add(ScriptedModel([calls("look", page=1), calls("look", page=2), "A novel."]), name="lab")
    async with Engine(FOLDER / "data", agents=[agent], models=models) as engine:
        result = await (await engine.start(agent, "What is it?", key="once")).result()
        print(result.text, result.reason, [call.how for call in result.calls], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
