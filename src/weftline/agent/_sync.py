"""Blocking faces of async classes, written by `scripts/faces.py`: change those, then `make faces`."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, overload

from weftline.agent.engine.budget_methods import BudgetUse
from weftline.agent.engine.logs import LogPage
from weftline.agent.events import Cursor
from weftline.agent.results import OutputT, RunResult
from weftline.agent.run import Status
from weftline.agent.settings import Budget
from weftline.agent.stored_messages import SavedMessage
from weftline.agent.sync import RunFace
from weftline.events import AnyEvent, TextDelta
from weftline.events.details import AnyDetail
from weftline.events.profiles import Profile
from weftline.events.snapshot import RunSnapshot
from weftline.messages import Usage
from weftline.runtime.people.answering import NAMELESS
from weftline.runtime.reads.calls import CancelReceipt
from weftline.runtime.tool_calls.provided import Provided


class SyncRun(RunFace[OutputT]):
    """A `Run` without `await`. Iterating over it yields its events."""

    def __iter__(self) -> Iterator[AnyEvent]:
        return self.events()

    @overload
    def events(
        self, *, after: int | Cursor = 0, children: bool = False, profile: None = None
    ) -> Generator[AnyEvent]: ...

    @overload
    def events(self, *, after: int = 0, profile: Profile) -> Generator[AnyEvent | AnyDetail]: ...

    def events(
        self, *, after: int | Cursor = 0, children: bool = False, profile: Profile | None = None
    ) -> Generator[Any]:
        """Yields the events of the run after the given `seq`, from the log and then live. See `Run.events`."""
        core: Any = self._core
        return self._each(core.events(after=after, children=children, profile=profile))

    def entries(self, *, after: int = 0, limit: int = 100) -> LogPage:
        """A page of the run's log, oldest entry first: up to `limit` entries after the given `seq`, as they are
        stored. See `Run.entries`.
        """
        return self._wait(self._core.entries(after=after, limit=limit))

    def text(self) -> Generator[str]:
        """The text of the answer as it is written. After a `TurnRestarted` it starts over."""
        for event in self.events():
            if isinstance(event, TextDelta):
                yield event.text

    def partials(self) -> Generator[Any]:
        """A typed answer as it grows: JSON, unvalidated."""
        return self._each(self._core.partials())

    def result(self) -> RunResult[OutputT]:
        """Waits for the run to end and returns its result. See `Run.result`."""
        return self._wait(self._core.result())

    def messages(self) -> list[SavedMessage]:
        """The messages of this run so far, each as soon as its turn has ended."""
        return self._wait(self._core.messages())

    def status(self) -> Status:
        """Returns `queued`, `running` or `paused`, or how the run has ended."""
        return self._wait(self._core.status())

    def snapshot(self) -> RunSnapshot:
        """The run's current state: its phase, text and usage, its calls and children, and its open questions."""
        return self._wait(self._core.snapshot())

    def usage(self) -> dict[str, Usage]:
        """Returns the tokens that the run's own model calls have used so far, by model id."""
        return self._wait(self._core.usage())

    def budgets(self) -> list[BudgetUse]:
        """The budgets that apply to the run, nearest first: each limit with what is spent and reserved."""
        return self._wait(self._core.budgets())

    def set_budget(self, budget: Budget | None, *, by: str = NAMELESS) -> BudgetUse:
        """Replaces the run's own limits, from its next call on; None restores those that it was started with. See
        `Run.set_budget`.
        """
        return self._wait(self._core.set_budget(budget, by=by))

    def steer(self, text: str, *, by: str = "", labels: Mapping[str, str] | None = None) -> None:
        """Hands a message to the run at its next turn; calls that have not begun by then are skipped. See
        `Run.steer`.
        """
        self._wait(self._core.steer(text, by=by, labels=labels))

    def follow_up(self, text: str, *, by: str = "", labels: Mapping[str, str] | None = None) -> None:
        """Hands a message to the run when it would otherwise end."""
        self._wait(self._core.follow_up(text, by=by, labels=labels))

    def pause(self, reason: str = "", *, by: str = "", labels: Mapping[str, str] | None = None) -> None:
        """Finishes work in progress and starts nothing new until `resume`."""
        self._wait(self._core.pause(reason, by=by, labels=labels))

    def resume(
        self, notes: str = "", *, messages: Sequence[str] = (), by: str = "", labels: Mapping[str, str] | None = None
    ) -> None:
        """Lets a paused run continue. The model reads `messages` before its next turn."""
        self._wait(self._core.resume(notes, messages=messages, by=by, labels=labels))

    def restore_context(self, *, by: str = "") -> bool:
        """Undoes a summary of older messages: from the next request on, the model gets the whole conversation
        again. See `Run.restore_context`.
        """
        return self._wait(self._core.restore_context(by=by))

    def cancel(self, reason: str = "user", *, by: str = "") -> CancelReceipt:
        """Ends the run at once; returns what was stopped, what had finished and what is in doubt."""
        return self._wait(self._core.cancel(reason, by=by))

    def approve(
        self,
        await_id: str,
        *,
        args: Mapping[str, Any] | None = None,
        remember: bool | Mapping[str, object] = False,
        comment: str = "",
        by: str = NAMELESS,
    ) -> None:
        """Approves the call that an await asks about, optionally with other arguments, or a plan. See
        `Run.approve`.
        """
        self._wait(self._core.approve(await_id, args=args, remember=remember, comment=comment, by=by))

    def deny(self, await_id: str, reason: str = "", *, by: str = NAMELESS) -> None:
        """Denies a call, or declines to answer a question. The model reads the reason."""
        self._wait(self._core.deny(await_id, reason, by=by))

    def answer(self, await_id: str, value: Any, *, by: str = NAMELESS, labels: Mapping[str, str] | None = None) -> None:
        """Answers a question, comments on a plan, or gives the result of a call that was in doubt. See
        `Run.answer`.
        """
        self._wait(self._core.answer(await_id, value, by=by, labels=labels))

    def provide(self, await_id: str, results: Sequence[Provided]) -> None:
        """Provides the results of all calls of a turn that wait for an outside system. See `Run.provide`."""
        self._wait(self._core.provide(await_id, results))

    def below(self, run_id: str) -> SyncRun[object]:
        """Returns a descendant of this run, at any depth, so that its questions can be answered."""
        return SyncRun(self._core.below(run_id), self._wait)
