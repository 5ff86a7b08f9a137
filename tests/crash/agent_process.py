"""A process with a durable agent whose own code decides: `python agent_process.py FOLDER`.

Each time code of the agent's is asked, and each time a tool runs, a line is added to `told.txt`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from weftline import Agent, Engine, RunContext, ToolContext, tool
from weftline.behaviors import Behavior
from weftline.hooks import OutputReady, ToolGate, TurnEnded
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()


def tell(line: str) -> None:
    with (FOLDER / "told.txt").open("a") as file:
        file.write(line + "\n")


@tool(effect="idempotent")
def pay(context: ToolContext, amount: int) -> str:
    """Pays."""
    tell(f"paid {amount} {context.idempotency_key}")
    context.state["paid"] = context.state.get("paid", 0) + amount
    return f"Paid {context.state['paid']}."


def instructions(context: RunContext) -> str:
    tell("rendered")
    return "Pay what is asked."


behavior = Behavior(tool_output_budget_bytes=20)
agent = Agent("lab:script", name="billing", tools=[pay], instructions=instructions, behavior=behavior)


@agent.on(ToolGate)
def at_most_five(gate: ToolGate) -> None:
    tell(f"gate {gate.args['amount']}")
    if gate.args["amount"] > 100:
        gate.block("Too much.")
    elif gate.args["amount"] > 5:
        gate.args = {"amount": 5}


@agent.on(TurnEnded)
def count(turn: TurnEnded, context: RunContext) -> None:
    context.state["turns"] = turn.turn + 1


@agent.on(OutputReady)
def polite(answer: OutputReady[str]) -> None:
    tell(f"checked {answer.output}")
    if "please" not in answer.output:
        answer.reject("Say please.")


async def main() -> None:
    asked = {"tool_calls": [{"name": "pay", "args": {"amount": amount}} for amount in (1, 50, 500)]}
    model = ScriptedModel([asked, calls("pay", amount=2), "Done.", "Done, please."])
    models = Catalog()
    models.add(model, name="lab")
    async with Engine(FOLDER / "data", agents=[agent], models=models) as engine:
        run = await engine.start(agent, "Pay.", key="once")
        result = await run.result()
        print(result.text, "|", *[f"{call.how}:{call.result}" for call in result.calls], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
