"""The content of a run's latest turn: its calls as they were requested, decided on and answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Self, TypeAlias

from msgspec import UNSET, Struct

from weftline.failure import Bounds, Hint, hint_of
from weftline.kernel import bodies
from weftline.kernel.batch import Call
from weftline.kernel.bodies import AnswerBody, AskBody, AskedBody, ClosedBody, EndedBody, GatedBody, TurnBody, TurnCall
from weftline.kernel.entries import AwaitClosed, CallAsked, CallClosed, ChildEnded, How, TurnCompleted
from weftline.messages import ToolCall, ToolResult, ToolResults, UserPart, joined_text

_UNCHANGED = TurnCall()
_WITH_ANSWER = frozenset[How]({"returned", "answered"})
"""How a call is closed that has an answer, from its tool or given in its place."""


class NestedCall(Struct, frozen=True):
    """A call that another call of the turn asked for: the one with the index `asked_by` and the id `parent`."""

    index: int
    asked_by: int
    parent: str
    name: str
    body: AskedBody


class Closed(Struct, frozen=True):
    """The result of a nested call."""

    index: int
    result: ToolResult
    is_json: bool = False


Nested: TypeAlias = NestedCall | Closed


class LatestTurn(Struct, eq=False, gc=False):
    """The content of one turn; every completed turn starts a new one. Indexes are those of the calls."""

    body: TurnBody | None = None
    """None before a run's first turn."""
    args: list[bytes] = []
    """The final arguments of the calls, by index, as far as they are decided."""
    gated: dict[int, GatedBody] = {}
    """The decisions of the gates."""
    answers: dict[int, tuple[AwaitClosed, AnswerBody]] = {}
    """The answers of people."""
    asked_back: dict[int, AskBody] = {}
    """What tools asked people instead of returning a result."""
    children: dict[int, tuple[ChildEnded, EndedBody]] = {}
    """How the child runs of the calls ended."""
    results: dict[int, ToolResult] = {}
    """The results of the calls that the model asked for."""
    hints: dict[int, Hint] = {}
    """Hints for the calls that failed."""
    bounds: dict[int, Bounds] = {}
    """The bounds of truncated results."""
    finals: dict[str, ClosedBody] = {}
    """The results that may end the run, by the id of the call."""
    nested: dict[int, list[Nested]] = {}
    """The nested calls of a call and their results, in the order of the log, by the index of that call. No model reads
    them.
    """
    after_results: tuple[str, ...] = ()
    """What the model reads once every call has its result."""
    _calls: tuple[ToolCall, ...] = ()
    """Those of the message, once somebody has asked for one: the message has to look for them among its parts."""
    _replaced: dict[int, bytes] = {}
    """The arguments before a gate or a person changed them."""
    _counted: tuple[tuple[Call, ...], Counter[str]] | None = None
    """The calls that are under way in the latest state that somebody has asked about."""
    _asked: dict[int, NestedCall] = {}
    _asked_by_model: int = 0
    _may_end_run: frozenset[str] = frozenset()

    @classmethod
    def of(cls, head: TurnCompleted, body: TurnBody) -> Self:
        if not head.calls:
            return cls(body)
        may_end_run = frozenset([call.id for call in head.calls if call.terminal])
        return cls(body, bodies.turn_args(body), _asked_by_model=len(head.calls), _may_end_run=may_end_run)

    def written(self, index: int) -> str:
        """The arguments of a call as the model, or the call that asked for it, wrote them."""
        return self._asked[index].body.written if index in self._asked else self._call(index).args

    def prepared(self, index: int) -> bytes:
        """The arguments of a call as they came out of the tool pipeline, before any gate."""
        before = self._replaced.get(index)
        return self.args[index] if before is None else before

    def asked(self, index: int) -> TurnCall:
        """Returns a call as the tool pipeline left it."""
        if index in self._asked:
            return self._asked[index].body.call
        body = self.body
        return body.calls[index] if body is not None and index < len(body.calls) else _UNCHANGED

    def under_way(self, calls: tuple[Call, ...]) -> Mapping[str, int]:
        """Returns how many of the turn's calls, as they are in a state, have passed the gates and have no result yet,
        by tool.

        They are counted once per state: the gates may be asked about a thousand calls in the same one.
        """
        if self._counted is None or self._counted[0] is not calls:
            names = [call.name for call in calls if not call.gated and call.stage != "closed"]
            self._counted = calls, Counter(names)
        return self._counted[1]

    def parent_of(self, index: int) -> str:
        """The id of the call that asked for this one, or "" if the model did."""
        return self._asked[index].parent if index in self._asked else ""

    def ask(self, head: CallAsked, body: AskedBody) -> None:
        """Adds a nested call."""
        asked = NestedCall(head.index, head.parent, self._call(head.parent).id, head.call.name, body)
        self._asked[head.index] = asked
        self.nested.setdefault(head.parent, []).append(asked)
        self.args.append(body.args)

    def gate(self, index: int, gated: GatedBody) -> None:
        self.gated[index] = gated
        if gated.steer:
            self.after_results += (gated.steer,)
        if gated.args is not UNSET:
            self._replace(index, bytes(gated.args))

    def answer(self, head: AwaitClosed, answer: AnswerBody) -> None:
        """Records a person's decision about a call."""
        self.answers[head.index] = head, answer
        if answer.args is not UNSET:
            self._replace(head.index, bytes(answer.args))

    def close(self, head: CallClosed, closed: ClosedBody, visible: tuple[UserPart, ...]) -> None:
        """Records the result of a call; `visible` is what the model reads of it."""
        if head.id in self._may_end_run:
            self.finals[head.id] = closed
        if head.parent:
            # A model reads why nothing happened and adapts; code would continue as if it had.
            refused = head.is_error or head.how not in _WITH_ANSWER
            result = ToolResult(head.id, head.name, closed.parts, refused)
            self._close_nested(Closed(head.index, result, closed.is_json))
            return
        self.results[head.index] = ToolResult(head.id, head.name, visible, head.is_error)
        if closed.bounds is not None and closed.bounds.truncated:
            self.bounds[head.index] = closed.bounds
        if head.is_error:
            hint = hint_of(head, tool=head.name, message=joined_text(closed.parts), failure=closed.failure)
            if hint is not None:
                self.hints[head.index] = hint

    def _call(self, index: int) -> ToolCall:
        if not self._calls:
            assert self.body is not None
            self._calls = self.body.message.calls
        return self._calls[index]

    def _replace(self, index: int, args: bytes) -> None:
        self._replaced.setdefault(index, self.args[index])
        self.args[index] = args

    def _close_nested(self, closed: Closed) -> None:
        self.nested[self._asked[closed.index].asked_by].append(closed)

    @property
    def all_results(self) -> ToolResults | None:
        """The results of the turn's calls as the model reads them, once each of them has one."""
        if len(self.results) < self._asked_by_model:
            return None
        return ToolResults(tuple(map(self.results.__getitem__, sorted(self.results))))
