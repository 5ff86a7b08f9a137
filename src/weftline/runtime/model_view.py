"""The conversation as models read it: its messages, with a summary in place of older ones, and with their blobs.

`LatestTurn` has the calls of the latest turn as they were requested, decided on and answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeAlias

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weftline import prompts
from weftline.failure import Bounds, Hint, hint_of, preview_of
from weftline.kernel import bodies
from weftline.kernel.batch import Call
from weftline.kernel.bodies import (
    AnswerBody,
    AskBody,
    AskedBody,
    ClosedBody,
    EndedBody,
    GatedBody,
    SummaryBody,
    TurnBody,
    TurnCall,
)
from weftline.kernel.context import ContextCompacted
from weftline.kernel.entries import AwaitClosed, CallAsked, CallClosed, ChildEnded, How, TurnCompleted
from weftline.messages import Image, Message, Text, ToolCall, ToolResult, ToolResults, User, UserPart, joined_text
from weftline.providers.calls import warn_unread
from weftline.runtime.model_calls.cutting import Cut, with_summary
from weftline.text.canonical import canonical_value


def blobs_of(messages: Iterable[Message]) -> set[str]:
    """The blobs that messages refer to."""
    users = [message for message in messages if isinstance(message, User)]
    return {part.blob for user in users for part in user.parts if not isinstance(part, Text) and part.blob}


def with_parts(message: Message, change: Callable[[UserPart], UserPart]) -> Message:
    """The message with a function applied to each part of a user's message or a tool's result."""
    match message:
        case User():
            return replace(message, parts=_each(message.parts, change))
        case ToolResults():
            return ToolResults(
                tuple([replace(result, parts=_each(result.parts, change)) for result in message.results])
            )
        case _:
            return message


def _each(parts: tuple[UserPart, ...], change: Callable[[UserPart], UserPart]) -> tuple[UserPart, ...]:
    return tuple([change(part) for part in parts])


REASON = "size_limit"


def parts_within(limit_bytes: int | None, closed: ClosedBody) -> tuple[UserPart, ...]:
    """The result of a successful call, as the model reads it: one object replaces texts beyond the limit."""
    parts = closed.parts
    if limit_bytes is None:
        return parts
    texts = [part.text for part in parts if isinstance(part, Text)]
    if sum([len(text.encode()) for text in texts]) <= limit_bytes:
        return parts
    fields: dict[str, Any] = {"omitted": True, "reason": REASON}
    if preview := preview_of("\n".join(texts)):
        fields["preview"] = preview
    if closed.bounds is not None:
        fields["bounds"] = _bounds(closed.bounds)
    return Text(canonical_value(fields).decode()), *[part for part in parts if not isinstance(part, Text)]


def _bounds(bounds: Bounds) -> dict[str, Any]:
    fields: dict[str, Any] = {"returned": bounds.returned, "truncated": bounds.truncated}
    more = {
        "total": bounds.total,
        "next_cursor": bounds.next_cursor,
        "refinement_hint": bounds.refinement_hint or None,
    }
    return fields | {name: value for name, value in more.items() if value is not None}


class ModelView(Struct, eq=False, gc=False):
    messages: list[Message] = []
    """Those of the conversation: the same list, which grows."""
    compacted: tuple[ContextCompacted, SummaryBody] | None = None
    """The summary in force."""
    contents: dict[str, str] = {}
    """The contents of the blobs that messages refer to, in base64, by id."""
    _native: dict[str, list[bytes | None]] = {}
    """Each message as encoded for the model that was called last, by that model."""
    _visible: list[Message] | None = None
    """The messages with the summary."""
    _changed: dict[bool, list[Message]] = {}
    """The messages with their blobs filled in, by whether notes replace images."""

    @property
    def visible(self) -> list[Message]:
        """The messages that a request is built from. The same list, which grows, until a summary is made or undone."""
        if self.compacted is None:
            return self.messages
        if self._visible is None:
            head, body = self.compacted
            self._visible = with_summary(self.messages, head.upto, body)
        return self._visible

    @property
    def cut(self) -> Cut | None:
        """Which messages the current summary replaces."""
        return None if self.compacted is None else Cut(self.compacted[0].upto, self.compacted[1].kept)

    def for_model(self, *, vision: bool | None) -> list[Message]:
        """The messages for a model. If the model is known to have no vision, a note replaces each image."""
        in_words = vision is False
        if not in_words and not self.contents:
            return self.visible
        changed = self._changed.setdefault(in_words, [])
        change = self._in_words if in_words else self._filled
        changed += [with_parts(message, change) for message in self.visible[len(changed) :]]
        return changed

    def native(self, model: str) -> list[bytes | None]:
        """The messages encoded for a model so far; its provider adds those that are missing."""
        if model not in self._native:
            self._native = {model: []}
        return self._native[model]

    def add(self, message: Message) -> None:
        """Adds a message that was added to the conversation."""
        if self._visible is not None:
            self._visible.append(message)

    def compact(self, compacted: tuple[ContextCompacted, SummaryBody] | None) -> None:
        """Puts a summary in force, or none."""
        self.compacted = compacted
        self.reset()

    def reset(self) -> None:
        """Creates new lists: callers that keep something per list of messages rely on the list only growing."""
        self._visible = None
        self._native = {}
        self._changed = {}

    def _filled(self, part: UserPart) -> UserPart:
        if isinstance(part, Text) or part.blob is None:
            return part
        content = self.contents.get(part.blob)
        return Text(prompts.models.lost_attachment(part.media_type)) if not content else replace(part, data=content)

    def _in_words(self, part: UserPart) -> UserPart:
        if not isinstance(part, Image):
            return self._filled(part)
        warn_unread(part.media_type)
        return Text(prompts.models.unseen_image(part.media_type))


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

    @property
    def has_open_calls(self) -> bool:
        """Whether calls of the model have no result."""
        return len(self.results) < self._asked_by_model

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
