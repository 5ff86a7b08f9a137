"""A run is continued from its second turn with another model, and both are compared."""

import asyncio

from weftline import Agent, Engine, tool
from weftline.testing import ScriptedModel, calls


@tool
def price(cake: str) -> str:
    """The price of a cake."""
    return f"{cake}: 5 €"


agent = Agent(ScriptedModel([calls("price", cake="lemon"), "It is 5 €."]), name="prices", tools=[price])


async def main() -> None:
    async with Engine() as engine:
        run = await engine.start(agent, "What is a lemon cake?")
        await run.result()

        other = ScriptedModel(["Five euros."])
        fork = await engine.fork(run.id, agent, turn=1, model=other, message="In words, please.")
        print((await fork.result()).text)

        compared = await engine.compare(run.id, fork.id)
        print(compared.first.text, compared.second.text, compared.first_difference)


asyncio.run(main())
