"""Text as it is written, and calls as they finish."""

import asyncio

from weftline import Agent, tool
from weftline.events import CallFinished, TextDelta
from weftline.testing import ScriptedModel, calls


@tool(effect="read")
def trains(day: str) -> str:
    """Trains on a day of the week."""
    return f"{day}: 7:04, 9:04"


agent = Agent("openai:gpt-5", tools=[trains])


async def main() -> None:
    async with agent.stream("Plan a week.") as run:
        async for event in run:
            match event:
                case TextDelta(text=text):
                    print(text, end="", flush=True)
                case CallFinished(name=name, result=result):
                    print(f"[{name}] {result}")
                case _:
                    pass
        print()
        print((await run.result()).usage)


def plain() -> None:
    with agent.stream_sync("Plan a week.") as run:
        for text in run.text():
            print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    model = ScriptedModel([calls("trains", day="Monday"), {"deltas": ["Take ", "the ", "7:04."]}])
    with agent.override(model=model):
        asyncio.run(main())
        plain()
