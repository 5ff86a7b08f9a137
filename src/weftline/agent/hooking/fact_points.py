"""Turns the facts of a run into the hook points between calls, as the log grows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from weftline.agent import hooks as points
from weftline.agent.agent_tools import Aliases
from weftline.agent.hooking.calling import Hooks
from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    BudgetExceeded,
    CallClosed,
    Fact,
    MessagesTaken,
    ResultsOverBudget,
    RunEnded,
    TurnCompleted,
)
from weftline.messages import Assistant, Message, ToolCall, ToolResult, ToolResults, User

Notify: TypeAlias = Callable[[points.Point], Awaitable[None]]
POINTS: tuple[type[points.Point], ...] = (
    points.RunStarted,
    points.MessagesTaken,
    points.MessageInjected,
    points.UsageCounted,
    points.ToolBudgetExceeded,
    points.OutputBudgetExceeded,
    points.ResultsStored,
    points.TurnEnded,
)
"""What facts are turned into."""


class FactPoints:
    """The fact points of one run, while it is in memory."""

    def __init__(self, hooks: Hooks, aliases: Aliases, notify: Notify, *, asked: int = 0) -> None:
        """`asked` is the number of messages in the run's own prompt."""
        self._hooks = hooks
        self._aliases = aliases
        self._notify = notify
        self._asked = asked
        used = [point for point in POINTS if point in hooks]
        self.has_hooks = bool(used)
        """Whether there are hooks at any of these points."""
        self.fail_closed = any(hooks.fail_closed(point) for point in used)
        """Whether one of them must not fail."""
        self._messages: Sequence[Message] = ()
        self._upto = 0
        """How many of the messages there were after the facts; the conversation may grow while hooks are at work."""
        self._began = False
        self._open: dict[int, int] = {}
        """By turn: how many of its calls have no result yet."""
        self._held: int | None = None
        """A turn without calls whose answer hooks still have to judge. It ends after that."""

    def about_to_drive(self, turn: int, *, calls: int, unclosed: int) -> None:
        """Continues in this turn, for which an earlier process called the model."""
        if not self._began:
            self._open[turn] = unclosed if calls else -1

    async def publish(self, facts: Sequence[Fact], *, messages: Sequence[Message]) -> None:
        """Notifies the hooks of these facts. `messages` is the conversation after them."""
        self._messages, self._upto = messages, len(messages)
        if not self._began:
            self._began = True
            # The facts that created the run were appended before its code existed.
            first = [fact for fact in facts if isinstance(fact, AttemptStarted) and (fact.turn, fact.attempt) == (0, 1)]
            if points.RunStarted in self._hooks:
                await self._notify(points.RunStarted(resumed=not first))
            if first and self._asked and points.MessagesTaken in self._hooks:
                await self._notify(points.MessagesTaken(self._asked))
            # The process may have died before it notified the hooks of these.
            for turn, unclosed in [(turn, count) for turn, count in self._open.items() if count <= 0]:
                await (self._done(turn, calls=True) if unclosed == 0 else self._answered(turn))
        for fact in facts:
            await self._one(fact)

    async def _one(self, fact: Fact) -> None:
        hooks = self._hooks
        match fact:
            case BudgetExceeded() if points.ToolBudgetExceeded in hooks:
                display_name = self._aliases.wire(fact.tool)
                await self._notify(points.ToolBudgetExceeded(fact.tool, fact.max_calls, fact.call_index, display_name))
            case ResultsOverBudget() if points.OutputBudgetExceeded in hooks:
                await self._notify(points.OutputBudgetExceeded(fact.turn, fact.bytes, fact.budget))
            case AttemptStarted() | RunEnded():
                await self.judged()  # no later verdict can come
            case AttemptFailed():
                await self._count(fact)
            case MessagesTaken():
                await self._taken(len(fact.ids))
            case TurnCompleted():
                await self._count(fact)
                self._open[fact.turn] = len(fact.calls)
                if not fact.calls:
                    await self._answered(fact.turn)
            case CallClosed() if fact.turn in self._open and not fact.parent:
                self._open[fact.turn] -= 1
                if not self._open[fact.turn]:
                    await self._done(fact.turn, calls=True)
            case _:
                pass

    async def _taken(self, count: int) -> None:
        if points.MessagesTaken in self._hooks:
            await self._notify(points.MessagesTaken(count))
        if points.MessageInjected in self._hooks:
            # The model is called next, so these are the last messages so far.
            for message in [one for one in self._messages[: self._upto] if isinstance(one, User)][-count:]:
                await self._notify(points.MessageInjected(message.text))

    async def _count(self, fact: AttemptFailed | TurnCompleted) -> None:
        if points.UsageCounted in self._hooks:
            await self._notify(points.UsageCounted(fact.turn, fact.attempt, fact.usage, usd(fact.cost_nusd)))

    @property
    def waits(self) -> bool:
        """True if hooks still have to be notified of the end of a turn."""
        return self._held is not None

    async def judged(self) -> None:
        """Ends the turn that was held back for the hooks at `OutputReady`, now that they have judged or never will."""
        turn, self._held = self._held, None
        if turn is not None:
            await self._done(turn, calls=False)

    async def _answered(self, turn: int) -> None:
        if points.OutputReady in self._hooks:
            self._held = turn
        else:
            await self._done(turn, calls=False)

    async def _done(self, turn: int, *, calls: bool) -> None:
        self._open.pop(turn, None)
        if calls and points.ResultsStored in self._hooks:
            await self._notify(points.ResultsStored(turn, *_latest_batch(self._messages, upto=self._upto)))
        if points.TurnEnded in self._hooks:
            await self._notify(points.TurnEnded(turn))


def _latest_batch(messages: Sequence[Message], *, upto: int) -> tuple[tuple[ToolCall, ...], tuple[ToolResult, ...]]:
    """The calls of the latest turn that had some, and their results, of the first `upto` messages."""
    results = tuple[ToolResult, ...]()
    for at in range(upto - 1, -1, -1):
        message = messages[at]
        if isinstance(message, ToolResults) and not results:
            results = message.results
        elif isinstance(message, Assistant) and results:
            return tuple(message.calls), results
    return (), results


def usd(cost_nusd: int | None) -> float | None:
    return None if cost_nusd is None else cost_nusd / 1_000_000_000
