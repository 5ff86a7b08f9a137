"""A process with an agent whose model writes code that calls its tools: `python code_process.py FOLDER`.

Each time a tool runs, a line is added to `told.txt`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from weftline import Agent, Budget, Engine, code, tool
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
SOURCE = """
said = []
for payee in ["Ann", "Bob"]:
    try:
        said.append(await pay(payee=payee))
    except Exception as error:
        said.append(str(error))
default = said
"""


@tool(effect="once")
def pay(payee: str) -> str:
    """Pays."""
    with (FOLDER / "told.txt").open("a") as file:
        file.write(f"{payee}\n")
    return f"Paid {payee}."


CALLS = 3
"""As many as are made, that of the code itself included."""
agent = Agent("lab:script", name="coder", tools=[pay, code(languages=["python"])], budget=Budget(calls=CALLS))


async def main() -> None:
    models = Catalog()
    models.add(ScriptedModel([calls("code", code=SOURCE), "Done."]), name="lab")
    async with Engine(FOLDER / "data", agents=[agent], models=models) as engine:
        result = await (await engine.start(agent, "Pay.", key="once")).result()
        print(result.text, "|", result.calls[-1].result, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
