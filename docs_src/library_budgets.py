"""A run asks for more when its budget is used up, and goes on when somebody raises its limit."""

import asyncio

from weftline import Agent, Budget, Engine, tool
from weftline.events import AwaitOpened
from weftline.testing import ScriptedModel, calls


@tool(effect="read")
def look(place: str) -> str:
    """Looks somewhere."""
    return f"nothing in {place}"


agent = Agent("openai:gpt-5", name="finder", tools=[look], budget=Budget(calls=1, on_exceeded="ask"))


async def find(engine: Engine) -> None:
    await engine.set_budget(Budget(tokens=2_000_000), per_day=Budget(tokens=500_000), agent=agent)
    run = await engine.start(agent, "Find my keys.")
    async for event in run:
        if isinstance(event, AwaitOpened) and event.kind == "budget":
            print(event.question)
            await run.set_budget(Budget(calls=5, on_exceeded="ask"), by="ann")
    for budget in await run.budgets():
        for limit in budget.limits:
            print(budget.level, limit.unit, limit.period, f"{limit.spent:g} of {limit.limit:g}", limit.set_by)


async def main() -> None:
    model = ScriptedModel([calls("look", place="the hall"), calls("look", place="the car"), "They are gone."])
    with agent.override(model=model):
        async with Engine() as engine:
            await find(engine)


if __name__ == "__main__":
    asyncio.run(main())
