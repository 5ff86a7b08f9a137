"""Summaries: a conversation that goes on for longer than any model can read."""

import asyncio

from weftline import Agent, tool
from weftline.behaviors import Behavior, Compaction
from weftline.events import ContextCompacted
from weftline.testing import ScriptedModel, calls


@tool(effect="read")
def chapter(number: int) -> str:
    """Reads a chapter."""
    return f"Chapter {number}. " + "They wove all night. " * 100


agent = Agent("openai:gpt-5", tools=[chapter], behavior=Behavior(compaction=Compaction(at_tokens=1000, keep_turns=1)))


async def main() -> None:
    turns = [calls("chapter", number=1), calls("chapter", number=2), "Chapter 1: they weave.", "They weave."]
    with agent.override(model=ScriptedModel(turns)):
        async with agent.stream("What is the book about?") as run:
            async for event in run:
                if isinstance(event, ContextCompacted):
                    print(f"{event.tokens_before} tokens became {event.tokens_after}: {event.summary}")
            result = await run.result()
    print(result.output)
    assert "They wove all night." in result.calls[0].result, "the conversation itself stays whole"


if __name__ == "__main__":
    asyncio.run(main())
