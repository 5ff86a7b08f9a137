"""Lets MCP servers use the model of the run that calls them: each of their requests is a child run.

So it is in the log, under the limits and budgets of the calling run, and its cost is included in that run's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weftline.agent.subagents import Subagent
from weftline.runtime.agent_code.code import ChildEnd
from weftline.runtime.tool_calls.children import as_result
from weftline.tools.base import ServerToolset, Tool, ToolOutput
from weftline.tools.function import FunctionTool


class Sampler(Subagent):
    """Answers one request of a server, without tools and without the agent's instructions."""

    hidden = True
    bookkeeping = True

    def __init__(self, server: str, *, taken: Collection[str] = ()) -> None:
        name = f"{server}__model"
        while name in taken:
            name += "_"

        def sample(task: str, system: str | None = None) -> str:
            raise NotImplementedError

        form = FunctionTool(sample, name=name, description=f"What {server} asks a model.", effect="idempotent")
        super().__init__(form, agent=None, only=frozenset())

    def result(self, end: ChildEnd) -> ToolOutput:
        return ToolOutput.of(end.text) if end.status == "succeeded" else as_result(self.name, end)


def with_model(server: ServerToolset, tools: Sequence[Tool]) -> Sequence[Tool]:
    """Returns the tools of a server, and a sampler if the server may use the model."""
    if not getattr(server, "samples", False):
        return tools
    sampler = Sampler(server.name, taken=[one.spec.name for one in tools])
    for one in tools:
        if hasattr(one, "model"):
            one.model = sampler.name  # type: ignore[attr-defined]
    return [*tools, sampler]
