"""What tests of an agent's behavior share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weftline import Agent, Engine, Limits
from weftline.agent.run import Run
from weftline.events import AwaitOpened
from weftline.messages import Message, ToolResults, User
from weftline.providers.base import ModelRequest
from weftline.testing import ScriptedModel
from weftline.workspace import workspaces


def scripted(*turns: Any, tools: Sequence[Any], **options: Any) -> tuple[Agent[Any, Any], ScriptedModel]:
    """An agent whose model plays these turns and then says that it is done. Loops are what is being tested."""
    model = ScriptedModel([*turns, "Done."])
    options.setdefault("limits", Limits(loop_soft=0))
    return Agent(model, tools=tools, **options), model


async def asked(run: Run[Any]) -> AwaitOpened:
    """The first question of a run to people."""
    async for event in run:
        if isinstance(event, AwaitOpened):
            return event
    raise AssertionError("nobody was asked")


def results_in(messages: Sequence[Message]) -> list[str]:
    """The texts of all results, in order."""
    return [one.text for message in messages if isinstance(message, ToolResults) for one in message.results]


def last_words(request: ModelRequest) -> str:
    """What was said to the model last."""
    message = request.messages[-1]
    return message.text if isinstance(message, User) else ""


def injected(request: ModelRequest) -> list[str]:
    return [message.text for message in request.messages if isinstance(message, User) and message.injected]


async def workspace_of(engine: Engine) -> int:
    return await workspaces.ensure(engine.workspaces, "default")


async def key_of(engine: Engine, run_id: str) -> int:
    return await (await engine.runtime()).locate(run_id, workspace=await workspace_of(engine))
