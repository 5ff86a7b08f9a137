"""A process with an agent that keeps its time while its subagent waits for a person.

`python waiting_process.py FOLDER`: whatever is open is approved.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from weftline import Agent, Engine, Run, tool
from weftline.policies import Policy
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
TIMED = Policy(time_budget_s=3600)


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    with (FOLDER / "told.txt").open("a") as file:
        file.write(f"paid {amount}\n")
    return f"Paid {amount}."


cashier = Agent("cashier:script", name="cashier", tools=[pay], policy=TIMED)
agent = Agent("boss:script", name="boss", tools=[cashier.as_tool("Pays.")], policy=TIMED)


async def approve_all(engine: Engine, run: Run[Any]) -> None:
    while True:
        for question in await engine.awaits():
            await run.approve(f"{question.run_id}:{question.id}")
        await asyncio.sleep(0.005)


async def main() -> None:
    models = Catalog()
    models.add(ScriptedModel([calls("cashier", task="Pay."), "Done."]), name="boss")
    models.add(ScriptedModel([calls("pay", amount=5), "Paid."]), name="cashier")
    async with Engine(FOLDER / "data", agents=[agent], models=models) as engine:
        run = await engine.start(agent, "Go.", key="once")
        approving = asyncio.create_task(approve_all(engine, run))
        result = await run.result()
        approving.cancel()
        print(result.text, *[call.how for call in result.calls], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
