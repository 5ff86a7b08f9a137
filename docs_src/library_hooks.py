"""Code of your own at the points of a run."""

import asyncio

from weftline import Agent, RunContext, hook, tool
from weftline.hooks import ContextBuilt, ToolGate
from weftline.testing import ScriptedModel, calls


@tool
def shell(command: str) -> str:
    """Runs a command."""
    return f"ran {command}"


agent = Agent("openai:gpt-5", deps=str, tools=[shell])


@agent.on(ToolGate)
async def only_this_folder(gate: ToolGate, context: RunContext[str]) -> None:
    if gate.tool == "shell" and ".." in gate.args["command"]:
        gate.block(f"Stay inside {context.deps}.")  # or answer(…), or set gate.args


@hook(ContextBuilt)
def recent(request: ContextBuilt) -> None:
    request.messages = request.messages[-20:]


async def main() -> None:
    with agent.override(model=ScriptedModel([calls("shell", command="ls .."), "I stay here."])):
        result = await agent.run("Look around.", deps="/srv/app", hooks=[recent])
    assert [(call.how, call.result) for call in result.calls] == [("blocked", "Blocked: Stay inside /srv/app.")]


if __name__ == "__main__":
    asyncio.run(main())
