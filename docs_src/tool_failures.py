"""Tools that fail well: what went wrong, what is to follow, and what would help."""

import asyncio

from weftline import Agent, ToolFailed, tool
from weftline.testing import ScriptedModel, calls
from weftline.tools import Bounded, Hint, Paging


@tool(effect="read", example={"city": "Paris"}, reminder="Temperatures are in degrees Celsius.")
def forecast(city: str) -> str:
    """Forecast for a city."""
    if city == "Atlantis":
        raise ToolFailed(
            "There is no weather in Atlantis.",
            hint=Hint("invalid_arguments", "Give a city that is on the map.", clarifying_question="Which city?"),
        )
    if city == "Paris":
        raise ToolFailed("The weather service is overloaded.", kind="rate_limited")
    return "22, sunny"


@tool(effect="read")
def balance(account: str) -> str:
    """The balance of an account."""
    raise ToolFailed(f"The account {account} is locked.", recovery="finish")


ORDERS = {"ann": ["bread", "milk", "tea"]}


@tool(effect="read", bounded=Paging("cursor"))
def orders(customer: str, cursor: str = "") -> Bounded:
    """The orders of a customer."""
    found, more = ORDERS[customer][:2], ORDERS[customer][2:]
    return Bounded(value={"orders": found}, returned=2, truncated=bool(more), next_cursor="2" if more else None)


agent = Agent("openai:gpt-5", tools=[forecast, balance, orders])


async def main() -> None:
    turns = [calls("forecast"), calls("forecast", city="Atlantis"), calls("forecast", city="Rome"), "22 degrees."]
    model = ScriptedModel(turns)
    with agent.override(model=model):
        result = await agent.run("How warm is it?")
    for call in result.calls:
        print(call.name, call.args, call.failure)
    kinds = [call.failure.kind if call.failure else None for call in result.calls]
    assert kinds == ["invalid_call", "domain_rejection", None]

    model = ScriptedModel([calls("forecast", city="Paris"), "I cannot tell."])
    with agent.override(model=model):
        await agent.run("How warm is it in Paris?")
    assert [[spec.name for spec in request.tools] for request in model.requests] == [
        ["forecast", "balance", "orders"],
        ["balance", "orders"],
    ]

    with agent.override(model=ScriptedModel([calls("balance", account="7"), "It is locked."])):
        result = await agent.run("How much do I have?")
    assert (result.text, result.reason) == ("It is locked.", "tool_failure")

    with agent.override(model=ScriptedModel([calls("orders", customer="ann"), "Bread."])):
        result = await agent.run("What did Ann order?")
    assert result.calls[0].bounds is not None and result.calls[0].bounds.next_cursor == "2"


if __name__ == "__main__":
    asyncio.run(main())
