"""Who speaks in the runs of an agent: its sides, and the agents that it can hand over to, as seats of those runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeGuard

from msgspec import Struct

from weftline import prompts
from weftline.runtime.agent_code.seats import Ending, Seat
from weftline.threads.definitions.agents import AgentDefinition, SideConfig
from weftline.threads.definitions.base import alias_of
from weftline.threads.definitions.prompts import (
    PromptDefinition,
    PromptEnvPart,
    PromptIncludePart,
    PromptTextPart,
    entry_name,
)
from weftline.threads.registry import Registry
from weftline.tools.function import FunctionTool


class Speaker(Struct, frozen=True):
    """One seat as the folder defines it. `name` is `<agent>/<side>`."""

    name: str
    agent: AgentDefinition
    prompt: PromptDefinition
    side: SideConfig
    letter: Literal["a", "b"] = "a"
    above: tuple[str, ...] = ()
    """The prompts through which it was called, from the first on; empty for a side."""

    @property
    def scoped(self) -> frozenset[str]:
        """The variables that are not taken from the threads above."""
        return frozenset([one.name for one in (*self.agent.variables, *self.prompt.variables) if one.scoped])


def speakers_of(agent: AgentDefinition, registry: Registry) -> dict[str, Speaker]:
    """Returns who may speak in the runs of an agent, the first of them first: its own sides, or its side and those of
    all agents that it can reach by hand-offs.
    """
    found = {one.name: one for one in sides_of(agent, registry)}
    waiting = list(found.values()) if agent.type == "ai_human" else []
    while waiting:
        speaker = waiting.pop(0)
        for entry in speaker.prompt.entries:
            other = registry.callable(entry)
            if hands_over(other) and seat_of(other.name) not in found:
                [reached] = sides_of(other, registry)
                found[reached.name] = reached
                waiting.append(reached)
    return found


def hands_over(found: object) -> TypeGuard[AgentDefinition]:
    """Returns True if a prompt that lists this hands over to it."""
    return isinstance(found, AgentDefinition) and found.type == "ai_human"


def seat_of(agent: str, side: str = "a") -> str:
    return f"{agent}/{side}"


def agent_of(seat: str) -> str:
    return seat.rpartition("/")[0]


def called_by(caller: Speaker, prompt: PromptDefinition) -> Speaker:
    """Returns who speaks while a prompt of the caller's has called this one."""
    name, above = f"{caller.name}/{prompt.name}", (*caller.above, caller.prompt.name)
    return Speaker(name, caller.agent, prompt, SideConfig(prompt=prompt.name), above=above)


def sides_of(agent: AgentDefinition, registry: Registry) -> Iterator[Speaker]:
    """Yields the sides of an agent, the first one first."""
    for field, side in agent.sides.items():
        letter = "b" if field == "side_b" else "a"
        yield Speaker(seat_of(agent.name, letter), agent, registry.prompt(side.prompt), side, letter)


def endings_of(speaker: Speaker, registry: Registry) -> dict[str, Ending]:
    """Returns what the tools of a prompt end, by the name that models call them."""
    found: dict[str, Ending] = {}
    for entry in speaker.prompt.entries:
        other = registry.callable(entry)
        if hands_over(other):
            found[alias_of(other.name)] = Ending("handoff", seat=seat_of(other.name))
    side = speaker.side
    if side.stop_tool is not None:
        found[alias_of(side.stop_tool)] = Ending("side", argument=side.stop_tool_response_property or "")
    for field, binding in side.bindings.items():
        if field != "session_status":
            ends = "session" if field == "session_stop" else "failure"
            found[alias_of(binding.name)] = Ending(ends, argument=binding.message_property or "")
    return found


class HandOff(FunctionTool[..., Any, Any]):
    """The tool that hands a thread over to an agent."""

    def __init__(self, agent: AgentDefinition, prompt: PromptDefinition) -> None:
        async def hand_over() -> str:
            return prompts.seats.handed_over(agent.name)

        super().__init__(
            hand_over,
            name=alias_of(agent.name),
            description=agent.tool_description or agent.description or prompt.tool_description,
            effect="read",
            concurrent=False,  # what follows it in the turn is for the other agent to decide
        )


def parts_of(prompt: PromptDefinition, registry: Registry) -> Iterable[PromptTextPart | PromptEnvPart]:
    """The text and variables of a prompt and of those that it includes, in order."""
    for part in prompt.parts:
        if isinstance(part, PromptIncludePart):
            yield from parts_of(registry.prompt(part.prompt), registry)
        else:
            yield part


def text_of(prompt: PromptDefinition, registry: Registry) -> str:
    """The prompt with `{NAME}` where a variable's value will be: what its digest is made of."""
    parts = parts_of(prompt, registry)
    own = "".join([one.content if isinstance(one, PromptTextPart) else f"{{{one.property}}}" for one in parts])
    return f"{registry.instructions}\n\n{own}" if registry.instructions else own


def seats_of(
    speakers: Mapping[str, Speaker],
    registry: Registry,
    *,
    models: Mapping[str, tuple[str | None, tuple[str, ...]]],
    levels: Mapping[str, int | None],
) -> tuple[Seat, ...]:
    """Returns the seats of an agent's runs. `models` and `levels` have the model with its fallbacks, and the reasoning
    level, of each speaker.
    """
    seats: list[Seat] = []
    for name, one in speakers.items():
        model, fallbacks = models[name]
        seats.append(
            Seat(
                name=name,
                side=one.letter,
                model=model,
                fallbacks=fallbacks,
                system=text_of(one.prompt, registry),
                reasoning=levels[name],
                tools=frozenset([alias_of(entry_name(entry)) for entry in one.prompt.entries]),
                endings=endings_of(one, registry),
                stop_on_response=one.side.stop_on_response,
                max_steps=one.side.max_steps,
                stop_tool=alias_of(one.side.stop_tool or ""),
            )
        )
    return tuple(seats)
