"""Asking people: at the terminal, and from somewhere else."""

import asyncio

from weftline import Agent, Engine, ask_user, tool
from weftline.events import AwaitOpened
from weftline.hooks import ask_in_terminal
from weftline.testing import ScriptedModel, calls


@tool(effect="once", confirm="Pay {amount} to {payee}?")
def pay(amount: float, payee: str) -> str:
    """Pay somebody."""
    return f"Paid {amount} to {payee}."


agent = Agent("openai:gpt-5", name="payments", tools=[pay, ask_user])


def at_the_desk() -> None:
    print(agent.run_sync("Pay Ann 5.", hooks=[ask_in_terminal]).text)


async def elsewhere(engine: Engine) -> None:
    for question in await engine.awaits():
        run = engine.attach(question.run_id)
        await run.approve(question.id, args={**question.args, "amount": 4})  # or deny(id, "why"), answer(id, value)


async def main() -> None:
    model = ScriptedModel([calls("pay", amount=5, payee="Ann"), "Done."])
    async with Engine(agents=[agent]) as engine:  # Engine("./data", …) is durable
        with agent.override(model=model):
            run = await engine.start(agent, "Pay Ann 5.")
            async for event in run:
                if isinstance(event, AwaitOpened):
                    break  # the run is parked: nothing of it stays in memory
            await elsewhere(engine)
            result = await run.result()
    assert result.calls[0].args == {"amount": 4.0, "payee": "Ann"}


if __name__ == "__main__":
    asyncio.run(main())
