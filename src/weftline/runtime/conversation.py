"""The conversation of a run, built from its entries: the input to the next model request.

It takes in every fact of the run exactly once and in order: those of the log when the run is loaded, then each one as
it is appended. Messages are only ever added at the end. Requests are built from `visible`, in which a summary may
replace the older messages; `native` keeps each visible message as encoded for a provider.

Thousands of runs may wait in memory for a driver, and the garbage collector visits each of their lists, even empty
ones; an empty dict or tuple costs it nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import decode
from msgspec.structs import replace

from weftline import prompts
from weftline.canonical import canonical_value
from weftline.failure import Hint
from weftline.kernel import bodies
from weftline.kernel.bodies import (
    AnswerBody,
    AskBody,
    AwaitBody,
    ClosedBody,
    Pattern,
    RenderedBody,
    SummaryBody,
    TurnBody,
)
from weftline.kernel.context import ContextCompacted, ContextRestored
from weftline.kernel.deploys import DeployAdopted, Digests, adopted
from weftline.kernel.entries import (
    KIND,
    OF_RUN,
    AttemptFailed,
    AwaitClosed,
    AwaitOpened,
    CallAsked,
    CallClosed,
    CallGated,
    ChildEnded,
    Fact,
    FinalForced,
    How,
    InstructionsRendered,
    LoopDetected,
    MessageQueued,
    MessagesTaken,
    OutputRejected,
    ResultsOverBudget,
    StateChanged,
    TurnCompleted,
    decode_fact,
)
from weftline.kernel.policy import PolicyDecided
from weftline.messages import (
    Assistant,
    Image,
    Message,
    Text,
    ToolResult,
    ToolResults,
    User,
    UserPart,
    joined_text,
)
from weftline.runtime.agent_code.code import PastCall
from weftline.runtime.latest_turn import LatestTurn
from weftline.runtime.message_parts import with_parts
from weftline.runtime.model_calls.cutting import Cut, with_summary
from weftline.runtime.model_calls.spending import BYTES_PER_TOKEN
from weftline.runtime.tool_calls.omitting import parts_within
from weftline.runtime.tool_calls.toolbox import Toolbox
from weftline.store.base import Stored
from weftline.tools.results import output_bytes

_PARTS = (
    InstructionsRendered,
    StateChanged,
    DeployAdopted,
    TurnCompleted,
    CallAsked,
    CallGated,
    AwaitOpened,
    AwaitClosed,
    ChildEnded,
    CallClosed,
    PolicyDecided,
    LoopDetected,
    FinalForced,
    MessageQueued,
    MessagesTaken,
    OutputRejected,
    ResultsOverBudget,
    AttemptFailed,
    ContextCompacted,
    ContextRestored,
)
KINDS: tuple[str, ...] = tuple([KIND[cls] for cls in _PARTS])
"""The entries that a conversation is built from, in addition to the plan in `run.created`."""
_TYPES = frozenset(_PARTS)

_NOT_COUNTED = frozenset[How](
    {"blocked", "denied", "skipped", "not_run", "cancelled", "budget", "loop", "repeat_of_doubt", "excluded", "cap"}
)


_NOTHING: dict[str, Any] = {}


class Conversation(Struct, eq=False, gc=False):
    """`size` is roughly the number of bytes that a model reads. Results beyond the limit are not counted.

    The list of `messages` is the conversation's own from then on.
    """

    messages: list[Message]
    size: int = 0
    result_limit_bytes: int | None = None
    _given: int = 0
    """How many messages the run began with: its thread's history and its own input."""
    _native: dict[str, list[bytes | None]] = {}
    """Each message as encoded for the model that was called last, by that model."""
    call_ids: dict[str, None] = {}
    labels: dict[str, str] = {}
    """The labels that the policy engine has added to the run."""
    unavailable: tuple[str, ...] = ()
    """The tools that were called since the policy engine was last asked, and did not exist or were not allowed."""
    turn: LatestTurn = field(default_factory=LatestTurn)
    allowed: tuple[tuple[AwaitClosed, Pattern], ...] = ()
    """Approvals that also cover later calls."""
    closed: int = 0
    """How many calls have a result."""
    memory: dict[str, Any] = {}
    """The state of the run's tools and hooks."""
    unsaved: dict[str, Any] = {}
    """Changes to `memory` by hooks that no entry contains yet; None marks a removed key."""
    _past: list[PastCall] | None = None
    _instruction: Message | None = None
    """The instruction that the model read before its final turn; it is not a message of the run."""
    counts: dict[str, int] = {}
    """How often each tool was called: executed, answered in its place, unknown or invalid."""
    system: str | None = None
    """The run's instructions, if code rendered them."""
    digests: Digests | None = None
    """What the run depends on; None before it was loaded, and for one that depends on no code."""
    approved: frozenset[str] = frozenset()
    """The awaits about the run itself that somebody approved."""
    failure: str = ""
    """The error that ended the latest model call, if it failed."""
    failed: tuple[AttemptFailed, bodies.FailedBody] | None = None
    """The latest model call that failed."""
    partial: str = ""
    """The text that it had streamed by then."""
    rejected: str = ""
    """What the model was told about its latest answer, if it was rejected."""
    _whole_size: int = 0
    """The size without a summary."""
    compacted: tuple[ContextCompacted, SummaryBody] | None = None
    """The summary in force."""
    _visible: list[Message] | None = None
    contents: dict[str, str] = {}
    """The contents of the blobs that messages refer to, in base64, by id."""
    _changed: dict[bool, list[Message]] = {}
    """The messages with their blobs filled in, by whether notes replace images."""
    last_hint: Hint | None = None
    """What would help after the latest call that failed."""
    _clarifying: str = ""
    """The await that asks for what a failed call lacks."""
    _queued: dict[str, User] = {}

    def __post_init__(self) -> None:
        self._given = len(self.messages)
        self._whole_size = self.size
        _add_call_ids(self.call_ids, self.messages)

    @property
    def last_text(self) -> str:
        """The text of the latest assistant message."""
        for message in reversed(self.messages):
            if isinstance(message, Assistant):
                return message.text
        return ""

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

    @property
    def own_input(self) -> range:
        """The positions of the messages that the run was created with, after those of an earlier conversation."""
        first = self._given
        while first > 0 and isinstance(self.messages[first - 1], User):
            first -= 1
        return range(first, self._given)

    def added(self) -> list[Message]:
        """All messages of the run after its input."""
        return [message for message in self.messages[self._given :] if message is not self._instruction]

    def exchange(self) -> list[Message]:
        """The messages after the run's input, without calls and results: those it received, the answers to them, the
        last text.

        Nudges, and texts that the model wrote while it was still working, are left out.
        """
        messages: list[Message] = []
        answer = ""
        for message in self.messages[self._given :]:
            match message:
                case Assistant():
                    answer = "" if message.calls else message.text
                case User():
                    if not message.injected:
                        messages += [Assistant((Text(answer),)), message] if answer else [message]
                    answer = ""  # consumed, or rejected
                case _:
                    pass
        messages.append(Assistant((Text(self.last_text),)))
        return messages

    def estimate(self, tools: Toolbox) -> int:
        """A rough count of the tokens in a request with the whole conversation and these tools, at least 1."""
        return -(-(self.size + tools.size) // BYTES_PER_TOKEN) or 1

    def result_of(self, call_id: str) -> ToolResult | None:
        """The result of a call of this run, by its id; the latest calls are found first."""
        for result in self.turn.results.values():
            if result.id == call_id:
                return result
        for message in reversed(self.messages):
            if isinstance(message, ToolResults):
                for result in message.results:
                    if result.id == call_id:
                        return result
        return None

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

    def _filled(self, part: UserPart) -> UserPart:
        if isinstance(part, Text) or part.blob is None:
            return part
        content = self.contents.get(part.blob)
        return Text(prompts.models.lost_attachment(part.media_type)) if not content else replace(part, data=content)

    def _in_words(self, part: UserPart) -> UserPart:
        return Text(prompts.models.unseen_image(part.media_type)) if isinstance(part, Image) else self._filled(part)

    def replay(self, rows: Sequence[Stored]) -> None:
        for row in rows:
            self.take(decode_fact.decode(row.head), row.body)

    def begin(self, history: Iterable[Message], *, size: int) -> None:
        """Puts the history of the run's thread before the run's own input."""
        before = len(self.messages)
        self.messages[:0] = history
        self._given += len(self.messages) - before
        _add_call_ids(self.call_ids, self.messages[: len(self.messages) - before])
        self._reset_visible()
        self.size += size
        self._whole_size += size

    def _reset_visible(self) -> None:
        """Creates new lists: callers that keep something per list of messages rely on the list only growing."""
        self._visible = None
        self._native = {}
        self._changed = {}

    def take(self, head: Fact, body: bytes, turn: TurnBody | None = None) -> None:
        """Adds what a fact means for the conversation; `turn` avoids decoding a body that was just encoded."""
        if type(head) not in _TYPES:
            return
        match head:
            case TurnCompleted():
                self._complete(head, turn or bodies.decode_turn(body), len(body))
            case CallClosed():
                self._close(head, bodies.decode_closed(body), len(body))
            case CallGated():
                gated = bodies.decode_gated(body)
                self.turn.gate(head.index, gated)
                if gated.state is not UNSET:
                    self._remember(gated.state)
            case AwaitOpened():
                self._ask(head, bodies.decode_await(body))
            case AwaitClosed():
                self._answer(head, bodies.decode_answer(body) if body else AnswerBody())
            case ChildEnded():
                self.turn.children[head.index] = head, bodies.decode_ended(body)
            case CallAsked():
                self.turn.ask(head, bodies.decode_asked(body))
                self.call_ids[head.call.id] = None
            case PolicyDecided():
                self.unavailable = ()
                self.labels.update(bodies.decode_policy(body).labels if body else {})
            case InstructionsRendered():
                self._render(bodies.decode_rendered(body))
            case StateChanged():
                self._remember(bodies.decode_state_changed(body).state)
            case DeployAdopted():
                if self.digests is not None:
                    self.digests = adopted(self.digests, head.changed)
                if body:
                    self._render(bodies.decode_rendered(body))
            case LoopDetected() | FinalForced() | OutputRejected() | ResultsOverBudget():
                text = bodies.decode_text(body).text if body else ""
                if text:
                    self._add(User.of(text, injected=True), len(text))
                if isinstance(head, OutputRejected):
                    self.rejected = text
                if isinstance(head, FinalForced) and text:
                    self._instruction = self.messages[-1]
            case MessageQueued():
                user = bodies.decode_message(body)
                assert isinstance(user, User)
                self._queued[head.id] = user
            case MessagesTaken():
                for identity in head.ids:
                    user = self._queued.pop(identity, None)
                    if user is not None:
                        self._add(user, len(user.text))
            case ContextCompacted():
                self.compacted = head, bodies.decode_summary(body)
                self.size = head.size
                self._reset_visible()
            case ContextRestored():
                self.compacted = None
                self.size = self._whole_size
                self._reset_visible()
            case AttemptFailed():
                failed = bodies.decode_failed(body)
                if head.reason == "error":
                    # A later attempt that failed before its first word does not discard what an earlier one had
                    # written.
                    self.failure, self.partial = failed.message, failed.text or self.partial
                    self.failed = head, failed
            case _:
                pass  # not part of the conversation

    def queued_texts(self, ids: Sequence[str]) -> tuple[str, ...]:
        """The texts of queued messages that have not been taken yet."""
        return tuple([joined_text(self._queued[id].parts) if id in self._queued else "" for id in ids])

    def _complete(self, head: TurnCompleted, turn: TurnBody, size: int) -> None:
        if turn.state is not UNSET:
            self._remember(turn.state)
        message = turn.message
        assert isinstance(message, Assistant)
        self.turn = LatestTurn.of(head, turn)
        self.failure = self.partial = self.rejected = ""
        self.failed = None
        for call in head.calls:
            self.call_ids[call.id] = None
        self._add(message, size)

    def _close(self, head: CallClosed, closed: ClosedBody, size: int) -> None:
        turn = self.turn
        self.closed += 1
        if closed.state is not UNSET:
            self._remember(closed.state)
        self._keep(head, closed)
        if head.how in ("unknown", "excluded"):
            self.unavailable = (*self.unavailable, head.name)
        if head.how not in _NOT_COUNTED:
            self.counts[head.name] = self.counts.get(head.name, 0) + 1
        visible = closed.parts if head.is_error else parts_within(self.result_limit_bytes, closed)
        turn.close(head, closed, visible)
        if head.parent:
            return
        self.last_hint = turn.hints.get(head.index, self.last_hint)
        self._grow(size if visible is closed.parts else output_bytes(visible))
        if (results := turn.all_results) is not None:
            self._add(results, 0)
            for text in turn.after_results:
                self._add(User.of(text, injected=True), len(text))
            turn.after_results = ()

    def _ask(self, head: AwaitOpened, asked: AwaitBody) -> None:
        if asked.clarification is not None:
            self._clarifying = head.id
        if asked.by_tool:
            self.turn.asked_back[head.index] = AskBody(asked.prompt, asked.options, asked.multiple)

    def _answer(self, head: AwaitClosed, answer: AnswerBody) -> None:
        if head.id == self._clarifying:
            # The call has its result already: this is what it lacked, in the person's words.
            text = _in_words(answer)
            if text:
                self._add(User.of(text), len(text))
            return
        if head.index == OF_RUN:
            if head.outcome == "approved":
                self.approved |= {head.id}
            return
        self.turn.answer(head, answer)
        if answer.remember is not None and head.outcome == "approved":
            self.allowed += ((head, answer.remember),)

    def _keep(self, head: CallClosed, closed: ClosedBody) -> None:
        args = self.turn.args[head.index] if head.index < len(self.turn.args) else b"{}"
        about = closed.failure, closed.telemetry, closed.bounds, closed.server_data, closed.child
        self.past.append(PastCall(head, args, closed.parts, *about))

    @property
    def past(self) -> list[PastCall]:
        """The calls that have a result, in the order in which they got it."""
        if self._past is None:
            self._past = []
        return self._past

    def changes(self, own: Mapping[str, Any] = _NOTHING) -> Raw | UnsetType:
        """The changes of state to record in an entry: those by hooks, followed by a call's own. Raises `NotCanonical`
        for values that are not JSON.
        """
        changed = {**self.unsaved, **own} if self.unsaved else own
        return Raw(canonical_value(dict(changed))) if changed else UNSET

    def _render(self, rendered: RenderedBody) -> None:
        self.system = rendered.text
        if rendered.state is not UNSET:
            self._remember(rendered.state)

    def _remember(self, changes: Raw) -> None:
        for key, value in decode(changes, type=dict[str, Any]).items():
            if key in self.unsaved and self.unsaved[key] == value:
                del self.unsaved[key]
            if value is None:
                self.memory.pop(key, None)
            else:
                self.memory[key] = value

    def _add(self, message: Message, size: int) -> None:
        self.messages.append(message)
        if self._visible is not None:
            self._visible.append(message)
        if size:
            self._grow(size)

    def _grow(self, size: int) -> None:
        self.size += size
        self._whole_size += size


def _in_words(answer: AnswerBody) -> str:
    value: object = answer.reason if answer.value is UNSET else decode(answer.value)
    return value.strip() if isinstance(value, str) else canonical_value(value).decode()


def _add_call_ids(ids: dict[str, None], messages: Iterable[Message]) -> None:
    for message in messages:
        if type(message) is Assistant:
            ids |= dict.fromkeys([call.id for call in message.calls])
