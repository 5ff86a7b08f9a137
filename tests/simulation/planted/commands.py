"""In `carry_out`: what begins, and with what."""

from __future__ import annotations

from collections.abc import Callable

from simulation.planted.bug import CODE, Bug
from weftline.kernel.state import Command, RunTool, State
from weftline.runtime.driver import CarryOut
from weftline.runtime.live import WorkingSet
from weftline.runtime.services import Outcome, Services, Sink


class HastySink:
    """Lets everything begin at once."""

    def __init__(self, inner: Sink, *, tools: bool, models: bool) -> None:
        self._inner = inner
        self._tools = tools
        self._models = models

    async def permit(self, *, all: bool = False) -> None:
        if not self._models:
            await self._inner.permit(all=all)

    async def durable(self) -> None:
        if not self._tools:
            await self._inner.durable()

    def emit(self, kind: str, lines: bytes, count: int = 1) -> None:
        self._inner.emit(kind, lines, count)

    def wanted(self) -> bool:
        return self._inner.wanted()

    def take(self, outcome: Outcome) -> bool:
        return self._inner.take(outcome)

    def full(self) -> bool:
        return self._inner.full()


def hasty(*, tools: bool = False, models: bool = False) -> Callable[[CarryOut], CarryOut]:
    def plant(carry_out: CarryOut) -> CarryOut:
        async def planted(
            command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
        ) -> Outcome | None:
            return await carry_out(command, state, work, services, HastySink(sink, tools=tools, models=models))

        return planted

    return plant


def prepares_arguments_again(carry_out: CarryOut) -> CarryOut:
    async def planted(
        command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
    ) -> Outcome | None:
        if isinstance(command, RunTool) and work.toolbox is not None:
            turn, tool = work.conversation.turn, work.toolbox.get(state.batch.calls[command.index].name)
            if tool is not None:
                turn.args[command.index] = await tool.prepare(turn.written(command.index))
        return await carry_out(command, state, work, services, sink)

    return planted


def forgets_what_code_asked_for(carry_out: CarryOut) -> CarryOut:
    """Code that begins again is not answered from the log."""

    async def planted(
        command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
    ) -> Outcome | None:
        if isinstance(command, RunTool) and state.batch.calls[command.index].host:
            work.conversation.turn.nested.pop(command.index, None)
        return await carry_out(command, state, work, services, sink)

    return planted


BUGS = (
    Bug("runs_tools_before_their_start_is_durable", "C3", carry_out=hasty(tools=True)),
    Bug("asks_models_ahead_of_the_log", "C4", carry_out=hasty(models=True)),
    Bug("prepares_arguments_again", "C3", carry_out=prepares_arguments_again),
    Bug("forgets_what_code_asked_for", "N1 N2", carry_out=forgets_what_code_asked_for, among=CODE),
)
