"""A tool that another system carries out, and its results."""

import asyncio

from weftline import Agent, Engine, tool
from weftline.details import AwaitExternalTools
from weftline.runs import Provided
from weftline.testing import ScriptedModel, calls


@tool(external=True)
def stock(sku: str) -> int:
    """How many pieces of an article the warehouse has."""
    raise NotImplementedError  # never called


agent = Agent("openai:gpt-5", name="orders", tools=[stock])


async def main() -> None:
    model = ScriptedModel([calls("stock", sku="A-7"), "There are 12."])
    async with Engine(agents=[agent]) as engine:  # Engine("./data", …) is durable
        with agent.override(model=model):
            run = await engine.start(agent, "How many A-7 are there?")
            async for event in run.events(profile=[AwaitExternalTools]):
                if isinstance(event, AwaitExternalTools):
                    # Any process may do this, at any time: the run is parked.
                    results = [Provided(call_id=call["call_id"], result=12) for call in event.items]
                    await run.provide(event.id, results)
            result = await run.result()
    assert result.text == "There are 12."


if __name__ == "__main__":
    asyncio.run(main())
