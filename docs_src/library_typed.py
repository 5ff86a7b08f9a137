"""A typed answer, and a tool that gets what the agent's own code needs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal

from pydantic import BaseModel

from weftline import Agent, Limits, RunContext, Settings, ToolContext, tool
from weftline.hooks import OutputReady
from weftline.runs import RunInfo
from weftline.testing import ScriptedModel, calls


class Invoice(BaseModel):
    number: str
    total_eur: Decimal


class Database:
    tenant = "acme"


@asynccontextmanager
async def open_database(run: RunInfo) -> AsyncGenerator[Database]:
    yield Database()


@tool(effect="read")
def supplier(context: ToolContext[Database], vat: str) -> str:
    """A supplier by VAT number."""
    return f"{vat}: a supplier of {context.deps.tenant}"


def instructions(context: RunContext[Database]) -> str:
    return f"You read invoices for {context.deps.tenant}."


agent = Agent(
    "openai:gpt-5",
    instructions=instructions,
    output=Invoice,
    deps=open_database,
    tools=[supplier],
    settings=Settings(reasoning="low"),
    limits=Limits(max_turns=20, max_cost_usd=0.50),
)


@agent.on(OutputReady)
def positive(answer: OutputReady[Invoice]) -> None:
    if answer.output.total_eur <= 0:
        answer.reject("The total must be positive.")  # asks the model again


async def main() -> None:
    model = ScriptedModel(
        [
            calls("supplier", vat="FR40"),
            '{"number": "7", "total_eur": "-12.50"}',
            '{"number": "7", "total_eur": "12.50"}',
        ]
    )
    with agent.override(model=model):
        result = await agent.run("Read this: …")
    print(result.output, result.usage, result.cost_usd)
    assert result.output == Invoice(number="7", total_eur=Decimal("12.50"))

    with agent.override(model=ScriptedModel([{"deltas": ['{"number": "7", ', '"total_eur": "12.50"}']}])):
        async with agent.stream("Read this: …") as run:
            partials = [partial async for partial in run.partials()]
    assert partials == [{"number": "7"}, {"number": "7", "total_eur": "12.50"}]


if __name__ == "__main__":
    asyncio.run(main())
