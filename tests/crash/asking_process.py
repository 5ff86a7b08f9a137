"""A process with an agent that asks people: `python asking_process.py FOLDER ask|answer`.

The one that asks is killed while it waits. The other one answers what is open and waits for the result.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from weftline import Agent, Engine, hook, tool
from weftline.events import AwaitOpened
from weftline.hooks import AwaitGate
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 2 else Path()


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    with (FOLDER / "told.txt").open("a") as file:
        file.write(f"paid {amount}\n")
    return f"Paid {amount}."


@hook(AwaitGate)
def leaves_it_to_people(gate: AwaitGate) -> None:
    pass


agent = Agent("lab:script", name="billing", tools=[pay], hooks=[leaves_it_to_people])


async def main(role: str) -> None:
    models = Catalog()
    models.add(ScriptedModel([calls("pay", amount=5), "Done."]), name="lab")
    async with Engine(FOLDER / "data", agents=[agent], models=models) as engine:
        run = await engine.start(agent, "Pay.", key="once")
        if role == "ask":
            async for event in run:
                if isinstance(event, AwaitOpened) and not os.environ["WEFTLINE_CRASH"].startswith("await.passed"):
                    os.kill(os.getpid(), signal.SIGKILL)
        for question in await engine.awaits():
            await run.approve(question.id, args={"amount": 4}, by="user:bob")
        result = await run.result()
        print(*[f"{call.how}:{call.result}" for call in result.calls], flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[2]))
