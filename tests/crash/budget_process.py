"""A process whose runs are under limits of workspace, agent and their own: `python budget_process.py FOLDER [NUMBER]`.

With a number it is killed at that point of its runs, whatever is written there. Each time a tool runs,
a line is added to `told.txt`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from weftline import Agent, Budget, Engine, RunFailed, ToolContext, tool
from weftline.messages import User
from weftline.providers.base import Chunk, ModelRequest
from weftline.providers.catalog import Catalog
from weftline.providers.pricing import Price, PriceOverride, Prices
from weftline.runtime.engine import OwnedEngine
from weftline.store import crashpoints
from weftline.store.budgets import Limit, agent_account, workspace_account
from weftline.store.records import budgets
from weftline.testing import ScriptedModel, calls

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
WORKSPACE_CALLS, CLERK_CALLS, RUN_CALLS = 3, 1, 3
TOKENS = 1_000_000


def tell(line: str) -> None:
    with (FOLDER / "told.txt").open("a") as file:
        file.write(line + "\n")


@tool(effect="idempotent")
def pay(context: ToolContext, amount: int) -> str:
    """Pays."""
    tell(f"paid {amount} {context.idempotency_key}")
    return f"Paid {amount}."


SLOWLY = {"deltas": ["We", "ll."], "delay_ms": 5}
"""Long enough for what is reserved to be written before what is used."""
SCRIPTS: dict[str, list[Any]] = {
    # Each of them wants one call more than there is: of its own budget, of its agent's and of the workspace's.
    "Go.": [SLOWLY | calls("pay", amount=1), calls("clerk", task="pay"), calls("pay", amount=3), "Done."],
    "pay": [SLOWLY | calls("pay", amount=2), calls("pay", amount=3), "as far as I came"],
    "More.": [calls("pay", amount=3)],
}


class Played(ScriptedModel):
    """Plays one script per task."""

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        first = request.messages[0]
        assert isinstance(first, User)
        return ScriptedModel(SCRIPTS[first.text]).stream(request)


clerk = Agent("lab:script", name="clerk", tools=[pay])
agent = Agent("lab:script", name="boss", tools=[pay, clerk.as_tool("Pays.")], budget=Budget(calls=9, usd=100.0))


async def main() -> None:
    models = Catalog(
        prices=Prices([PriceOverride("lab", "script", Price(input_per_1m_usd=1.0, output_per_1m_usd=1.0))])
    )
    models.add(Played(["Not asked."]), name="lab")
    async with Engine(FOLDER / "data", agents=[agent], models=models) as engine:
        runtime = cast("OwnedEngine", await engine.runtime())
        space = await runtime.workspace("default")
        limits = {
            workspace_account(space): [
                Limit("calls", WORKSPACE_CALLS, on_exceeded="stop"),
                Limit("tokens", TOKENS, "month"),
            ],
            agent_account(space, "clerk"): [Limit("calls", CLERK_CALLS), Limit("tokens", TOKENS)],
        }
        for account, wanted in limits.items():
            await engine.store.records.write(budgets.set_limits(account, wanted, workspace=space, by="ann", now=1))
        await runtime.budgets_changed(space, by="ann")
        run = await engine.start(agent, "Go.", key="once", budget=Budget(calls=RUN_CALLS))
        result = await run.result()
        print(result.text, "|", *[call.how for call in result.calls], flush=True)
        more = await engine.start(agent, "More.", key="more")
        try:
            await more.result()
        except RunFailed as failed:
            print(failed.code, flush=True)


def kill_at(number: int) -> None:
    """Dies at this point of those from the first write of a run to the last, counted from 1."""
    passed: list[str] = []

    def hit(writes: Iterable[str], side: str) -> None:
        writes = sorted(writes)
        if "store.closed" in writes or not (passed or "run.created" in writes):
            return
        passed.append(side)
        if len(passed) == number:
            (FOLDER / "killed.txt").write_text(" ".join([f"{write}:{side}" for write in writes]))
            os.kill(os.getpid(), signal.SIGKILL)

    crashpoints.armed = lambda: True
    crashpoints.hit = hit


if __name__ == "__main__":
    if len(sys.argv) > 2:
        kill_at(int(sys.argv[2]))
    asyncio.run(main())
