"""A durable run that is killed in the middle and goes on in the next process, without paying twice."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from weftline import Agent, Engine, ToolContext, tool
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

PAID = Path("paid.txt")


@tool(effect="idempotent")
def pay(context: ToolContext, amount: int) -> str:
    """Pays an amount."""
    if context.idempotency_key not in (PAID.read_text() if PAID.exists() else ""):
        with PAID.open("a") as file:
            file.write(f"{context.idempotency_key} {amount}\n")
    if "--killed" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)  # as if the machine had lost power right after the payment
    return f"Paid {amount}."


agent = Agent("lab:script", name="billing", tools=[pay])


async def main() -> None:
    models = Catalog()
    models.add(ScriptedModel([calls("pay", amount=5), "Done: {{tool_results.0}}"]), name="lab")
    async with Engine("./data", agents=[agent], models=models) as engine:  # continues the runs of an earlier process
        run = await engine.start(agent, "Pay 5.", key="invoice-7")  # the same run in both processes
        print((await run.result()).text)


if __name__ == "__main__":
    if "--killed" in sys.argv:
        asyncio.run(main())
    else:
        killed = subprocess.run([sys.executable, __file__, "--killed"], check=False)
        assert killed.returncode == -signal.SIGKILL
        asyncio.run(main())
        assert PAID.read_text().count("\n") == 1
