"""Prompts with a name and a version, and what stands in for them while the agent is in use."""

import asyncio
from tempfile import TemporaryDirectory

from weftline import Agent, Engine, RunContext
from weftline.behaviors import Prompt
from weftline.details import PromptRendered
from weftline.testing import ScriptedModel


def instructions(context: RunContext[object]) -> str:
    return context.render("tone", tone="kind")


# A script plays the model here; yours would be "openai:gpt-5".
model = ScriptedModel(["{{system}}"])
agent = Agent(model, name="support", instructions=instructions, prompts=[Prompt("tone", "Be {tone}.", version="1")])


async def main() -> None:
    with TemporaryDirectory() as folder:
        async with Engine(folder, agents=[agent]) as engine:
            print((await agent.run("Hello.", engine=engine)).text)
            await engine.override_prompt("tone", "Be very {tone}.", labels={"tier": "gold"}, version="2", by="user:ann")
            run = await engine.start(agent, "Hello.", labels={"tier": "gold"})
            print((await run.result()).text)
            async for event in run.events(profile=[PromptRendered]):
                if isinstance(event, PromptRendered):
                    print(event.prompt_id, event.version, event.scope)
            print(await engine.prompt_overrides("tone"))


if __name__ == "__main__":
    asyncio.run(main())
