"""A recorded run is a test of the agent."""

import asyncio

from weftline import Agent, Engine, tool
from weftline.testing import ScriptedModel, calls, replay


@tool
def refund(order: str, amount: int = 5) -> str:
    """Refunds an order."""
    return f"{order}: {amount} € refunded"


agent = Agent(ScriptedModel([calls("refund", order="A-17"), "Done."]), name="refunds", tools=[refund])


async def record() -> None:
    async with Engine() as engine:
        run = await engine.start(agent, "Refund A-17, please.")
        await run.result()
        await engine.export(run.id, "refund.jsonl")


def test_a_refund() -> None:
    done = replay("refund.jsonl", agents=[agent])
    assert (done.turns, done.calls) == (2, 1)


asyncio.run(record())
test_a_refund()
