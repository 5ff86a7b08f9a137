"""The variables that a thread must have when it is created."""

from __future__ import annotations

import pytest

from weftline import Engine
from weftline.errors import InvalidRequest
from weftline.threads import (
    PromptDefinition,
    PromptToolConfig,
    Registry,
    SideConfig,
    ThreadState,
    VariableDefinition,
    define_agent,
    define_model,
    define_prompt,
    define_tool,
)
from weftline.threads.opening import AgentThreads


def required(name: str) -> list[VariableDefinition]:
    return [VariableDefinition(name, required=True)]


def folder() -> tuple[Registry, AgentThreads]:
    @define_tool(effect="read", variables=[*required("TOOL"), VariableDefinition("OPTIONAL")])
    async def look(state: ThreadState) -> str:
        """Looks."""
        return ""

    def prompt(name: str, *tools: str | PromptToolConfig) -> PromptDefinition:
        return define_prompt(
            name=name, model="m", tool_description="x", prompt="x", tools=tools, variables=required(f"P_{name}")
        )

    registry = Registry.of(
        models=[define_model(name="m", provider="test", model="m")],
        tools=[look],
        prompts=[
            prompt("front", "look", "below", "other"),
            prompt("below", PromptToolConfig("look", env={"TOOL": "of the entry"})),
            prompt("back"),
            prompt("far"),
        ],
        agents=[
            define_agent(name="front", side_a=SideConfig("front"), variables=required("AGENT"), env={"P_front": "1"}),
            define_agent(
                name="other",
                type="dual_ai",
                side_a=SideConfig("back"),
                side_b=SideConfig("front"),
                expose_as_tool=True,
                tool_description="x",
            ),
            define_agent(name="unreached", side_a=SideConfig("far")),
        ],
    )
    agent = registry.agent("front")
    return registry, AgentThreads(agent, {}, registry)


async def test_every_variable_that_is_missing_is_named_at_once() -> None:
    _, rules = folder()
    async with Engine() as engine:
        at, workspace = engine.workspaces, 1
        with pytest.raises(InvalidRequest) as refused:
            await rules.check(at, workspace, user="ann", env={})
        assert refused.value.code == "missing_variable"
        # The second agent has no value for the prompt's variable, although the first one has.
        assert refused.value.details["variables"] == ["AGENT", "P_back", "P_below", "P_front", "TOOL"]
        await rules.check(at, workspace, user="ann", env=dict.fromkeys(refused.value.details["variables"], ""))
