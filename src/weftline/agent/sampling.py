"""The model of a run, for the MCP servers that it calls: each request of theirs is a run of its own, below it.

So it is in the log, under the limits and budgets of the run that called the server, and its cost is theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weftline.agent.subagents import Subagent
from weftline.runtime.children import as_result
from weftline.runtime.code import ChildEnd
from weftline.tools.base import ServerToolset, Tool, ToolOutput
from weftline.tools.function import FunctionTool


class Sampler(Subagent):
    """Answers one request of a server: without tools, and without the agent's instructions."""

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
    """The tools of a server, and what asks the model for it if it may."""
    if not getattr(server, "samples", False):
        return tools
    sampler = Sampler(server.name, taken=[one.spec.name for one in tools])
    for one in tools:
        if hasattr(one, "model"):
            one.model = sampler.name  # type: ignore[attr-defined]
    return [*tools, sampler]
