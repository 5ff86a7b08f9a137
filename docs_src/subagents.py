"""A subagent, a copy of the agent itself, and what the parent sees of them."""

from __future__ import annotations

import asyncio

from weftline import Agent, Limits, spawn, tool
from weftline.events import ChildEnded, TextDelta
from weftline.hooks import ChildToolGate
from weftline.testing import ScriptedModel, calls


@tool(effect="read")
def search(words: str) -> str:
    """Searches the archive."""
    return f"3 letters about {words}"


# Scripts in place of models, which would choose for themselves.
digging = ScriptedModel([calls("search", words="rent"), "The rent was raised twice."])
leading = ScriptedModel([calls("archivist", task="What do the letters say about the rent?"), "Twice, it seems."])

archivist = Agent(digging, name="archivist", instructions="You know the archive.", tools=[search])
agent = Agent(
    leading,
    tools=[archivist.as_tool("Finds things in the archive."), spawn()],
    limits=Limits(max_children=3, max_depth=2, max_cost_usd=0.5),
)


@agent.on(ChildToolGate)
def nothing_about_people(gate: ChildToolGate) -> None:
    if "Ann" in gate.args.get("words", ""):
        gate.block("Letters about people are closed.")


async def main() -> None:
    async with agent.stream("How often was the rent raised?") as run:
        async for event in run.events(children=True):
            match event:
                case TextDelta(text=text):
                    print("agent:" if event.run_id == run.id else "archivist:", text)
                case ChildEnded(name=name, status=status, turns=turns):
                    print(f"[{name} {status} after {turns} turns]")
                case _:
                    pass
        print((await run.result()).usage)


if __name__ == "__main__":
    asyncio.run(main())
