"""A process with an agent that is another one in each version: `python deploy_process.py FOLDER VERSION`.

Each time a model is asked or a tool runs, a line with the version is added to `told.txt`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from weftline import Agent, Engine, tool
from weftline.providers.base import Chunk, ModelRequest
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 2 else Path()
VERSION = sys.argv[2] if len(sys.argv) > 2 else ""


def tell(line: str) -> None:
    with (FOLDER / "told.txt").open("a") as file:
        file.write(line + "\n")


@tool(effect="idempotent")
def pay(amount: int) -> str:
    """Pays."""
    tell(f"{VERSION}: paid {amount}")
    return f"Paid {amount} by {VERSION}."


class Told(ScriptedModel):
    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        tell(f"{VERSION}: asked {request.system}")
        return super().stream(request)


agent = Agent("lab:script", name="billing", instructions=f"Pay as in {VERSION}.", tools=[pay])


async def main() -> None:
    models = Catalog()
    models.add(Told([calls("pay", amount=5), "Done."]), name="lab")
    async with Engine(FOLDER / "data", agents=[agent], models=models, code_version=VERSION) as engine:
        result = await (await engine.start(agent, "Pay.", key="once")).result()
        print(result.text, "|", *[f"{call.how}:{call.result}" for call in result.calls], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
