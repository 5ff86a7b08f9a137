"""A process with an agent, its subagent and the subagent of that, which waits for a person: all keep their time.

`python tree_process.py FOLDER`: the question is answered once no time passes for any of the runs.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from weftline import Agent, Budget, Engine, Run, tool
from weftline.kernel.entries import Fact, decode_fact
from weftline.kernel.evolve import fold
from weftline.kernel.policies import is_clock_stopped
from weftline.kernel.state import State
from weftline.policies import Policy
from weftline.providers.catalog import Catalog
from weftline.runtime import ids
from weftline.store.base import LogReader
from weftline.testing import ScriptedModel, calls

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
TIMED = Policy(time_budget_s=3600)
BUDGET = Budget(calls=3, seconds=3600)


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    with (FOLDER / "told.txt").open("a") as file:
        file.write(f"paid {amount}\n")
    return f"Paid {amount}."


cashier = Agent("cashier:script", name="cashier", tools=[pay], policy=TIMED, budget=BUDGET)
clerk = Agent("clerk:script", name="clerk", tools=[cashier.as_tool("Pays.")], policy=TIMED, budget=BUDGET)
agent = Agent("boss:script", name="boss", tools=[clerk.as_tool("Sees to it.")], policy=TIMED, budget=BUDGET)


async def timed_facts(logs: LogReader, run_id: str) -> list[tuple[int, Fact]]:
    page = await logs.page(ids.key_of(run_id), after=0, max_bytes=2**24)
    assert page is not None
    return [(item.at, decode_fact.decode(item.head)) for item in page.items if item.head]


async def state_of(engine: Engine, run_id: str) -> State:
    """As the log has it: what memory knows may be ahead of it."""
    return fold(State(), await timed_facts((await engine.runtime()).stored.logs, run_id))


async def approve_all(engine: Engine, run: Run[Any]) -> None:
    while True:
        await asyncio.sleep(0.005)
        for question in await engine.awaits():
            family = [question.run_id]
            while (parent := (await state_of(engine, family[-1])).parent) is not None:
                family.append(parent.run)
            if all([is_clock_stopped(await state_of(engine, one)) for one in family]):
                await asyncio.sleep(0.05)  # a wait that can be told from none
                await run.approve(f"{question.run_id}:{question.id}")


async def main() -> None:
    models = Catalog()
    models.add(ScriptedModel([calls("clerk", task="Pay."), "Done."]), name="boss")
    models.add(ScriptedModel([calls("cashier", task="Pay."), "Seen to."]), name="clerk")
    models.add(ScriptedModel([calls("pay", amount=5), "Paid."]), name="cashier")
    async with Engine(FOLDER / "data", agents=[agent], models=models) as engine:
        run = await engine.start(agent, "Go.", key="once")
        approving = asyncio.create_task(approve_all(engine, run))
        result = await run.result()
        approving.cancel()
        print(result.text, *[call.how for call in result.calls], flush=True)
        [budget] = await run.budgets()
        [made] = [limit for limit in budget.limits if limit.unit == "calls"]
        print(f"{made.spent:g} of {made.limit:g} calls, {made.reserved:g} reserved", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
