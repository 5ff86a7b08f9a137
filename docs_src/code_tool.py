"""A model that writes code: four calls of tools, one turn."""

from __future__ import annotations

import asyncio

from weftline import Agent, code, tool
from weftline.testing import ScriptedModel, calls

PRICES = {"tea": 300, "coffee": 700, "cocoa": 450}


@tool(effect="read")
def price(article: str) -> dict[str, str | int]:
    """What an article costs."""
    return {"article": article, "cents": PRICES[article]}


@tool(effect="once")
def order(article: str) -> str:
    """Orders an article."""
    return f"{article} is ordered."


agent = Agent("openai:gpt-5", name="buyer", tools=[price, order, code(languages=["typescript", "python"])])

SOURCE = """
const prices = await Promise.all(["tea", "coffee", "cocoa"].map((article) => price({article})));
const cheap = prices.filter((one) => one.cents < 500);
for (const one of cheap) await order({article: one.article});
export default cheap.map((one) => one.article);
"""


async def main() -> None:
    model = ScriptedModel([calls("code", code=SOURCE, language="typescript"), "Tea and cocoa are ordered."])
    with agent.override(model=model):
        result = await agent.run("Order what costs less than five euros.")
    for call in result.calls:
        print(call.name, call.args if call.parent_call else "", "→", call.result)
    assert [call.name for call in result.calls] == ["price", "price", "price", "order", "order", "code"]
    assert result.calls[-1].result == '["tea", "cocoa"]'


if __name__ == "__main__":
    asyncio.run(main())
