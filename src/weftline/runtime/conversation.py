"""The conversation of a run, built from its entries: the input to the next model request.

It takes in every fact of the run exactly once and in order: those of the log when the run is loaded, then each one as
it is appended. Messages are only ever added at the end. Requests are built from its `view`.

Thousands of runs may wait in memory for a driver, and the garbage collector visits each of their lists, even empty
ones; an empty dict or tuple costs it nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import decode
from msgspec.structs import replace

from weftline.failure import ATTACHMENTS, Hint
from weftline.kernel import bodies
from weftline.kernel.bodies import (
    AnswerBody,
    AskBody,
    AwaitBody,
    ClosedBody,
    EditedBody,
    FailedBody,
    Pattern,
    RenderedBody,
    TurnBody,
)
from weftline.kernel.context import ContextCompacted, ContextRestored
from weftline.kernel.control import OF_RUN, DeployAdopted, Digests, adopted
from weftline.kernel.entries import (
    KIND,
    AttemptFailed,
    AwaitClosed,
    AwaitOpened,
    CallAsked,
    CallClosed,
    CallGated,
    ChildEnded,
    Fact,
    FinalForced,
    HistoryPinned,
    How,
    InstructionsRendered,
    LoopDetected,
    MessageQueued,
    MessagesEdited,
    MessagesTaken,
    OutputRejected,
    ResultsOverBudget,
    StateChanged,
    TurnCompleted,
    decode_fact,
)
from weftline.kernel.policy import PolicyDecided
from weftline.kernel.seats import SeatAskedOn, SeatClosing, SeatTaken
from weftline.messages import Assistant, Message, Text, ToolResult, ToolResults, User, joined_text
from weftline.runtime.agent_code.code import PastCall
from weftline.runtime.kept import KeptMessages
from weftline.runtime.model_calls.spending import BYTES_PER_TOKEN
from weftline.runtime.model_view import LatestTurn, ModelView, parts_within
from weftline.runtime.sides import Sides
from weftline.runtime.tool_calls.toolbox import Toolbox
from weftline.store.rows import Item
from weftline.text.canonical import canonical_value
from weftline.tools.results import output_bytes


class LatestFailure(Struct, frozen=True, eq=False, gc=False):
    """Model calls that failed, and answers that were rejected, since the latest turn was completed."""

    failed: tuple[AttemptFailed, FailedBody] | None = None
    """The latest model call that failed."""
    partial: str = ""
    """The text that had been streamed by then."""
    rejected: str = ""
    """What the model read about its latest answer, if it was rejected."""

    @property
    def message(self) -> str:
        """The error that ended the latest model call, if it failed."""
        return "" if self.failed is None else self.failed[1].message

    def after(self, attempt: AttemptFailed, body: FailedBody) -> LatestFailure:
        """Another model call has failed. If it did so before its first word, the text of an earlier one is kept."""
        return replace(self, failed=(attempt, body), partial=body.text or self.partial)


NO_FAILURE = LatestFailure()


_NOT_COUNTED = frozenset[How](
    {"blocked", "denied", "skipped", "not_run", "cancelled", "budget", "loop", "repeat_of_doubt", "excluded", "cap"}
)


class PastCalls(Struct, eq=False, gc=False):
    ids: dict[str, None] = {}
    """The ids of all calls in the conversation, with a result or without."""
    closed: int = 0
    """How many calls have a result."""
    counts: dict[str, int] = {}
    """How often each tool was called: executed, answered in its place, unknown or invalid."""
    unavailable: tuple[str, ...] = ()
    """The tools that were called since the policy engine was last asked, and did not exist or were not allowed."""
    last_hint: Hint | None = None
    """What would help after the latest call that failed."""
    _results: list[PastCall] | None = None

    @property
    def results(self) -> list[PastCall]:
        """The calls that have a result, in the order in which they got it. The list grows."""
        if self._results is None:
            self._results = []
        return self._results

    def add_ids(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if type(message) is Assistant:
                self.ids |= dict.fromkeys([call.id for call in message.calls])

    def close(self, head: CallClosed, closed: ClosedBody, args: bytes) -> None:
        self.closed += 1
        self.results.append(
            PastCall(
                head,
                args,
                closed.parts,
                closed.failure,
                closed.telemetry,
                closed.bounds,
                closed.server_data,
                closed.child,
            )
        )
        if head.how in ("unknown", "excluded"):
            self.unavailable = (*self.unavailable, head.name)
        if head.how not in _NOT_COUNTED:
            self.counts[head.name] = self.counts.get(head.name, 0) + 1


_NOTHING: dict[str, Any] = {}


class SharedState(Struct, eq=False, gc=False):
    values: dict[str, Any] = {}
    unsaved: dict[str, Any] = {}
    """Changes by hooks that no entry contains yet; None marks a removed key."""

    def changes(self, own: Mapping[str, Any] = _NOTHING) -> Raw | UnsetType:
        """The changes to record in an entry: those by hooks, followed by a call's own. Raises `NotCanonical` for values
        that are not JSON.
        """
        changed = {**self.unsaved, **own} if self.unsaved else own
        return Raw(canonical_value(dict(changed))) if changed else UNSET

    def apply(self, changes: Raw) -> None:
        """Takes in the changes that an entry contains."""
        for key, value in decode(changes, type=dict[str, Any]).items():
            if key in self.unsaved and self.unsaved[key] == value:
                del self.unsaved[key]
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value


_PARTS = (
    HistoryPinned,
    MessagesEdited,
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
    SeatTaken,
    SeatClosing,
    SeatAskedOn,
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
PARTS: frozenset[type[Fact]] = frozenset(_PARTS)
"""The facts of these entries; all others mean nothing for a conversation."""


class Conversation(Struct, eq=False, gc=False):
    """`size` is roughly the number of bytes that a model reads. Results beyond the limit are not counted.

    The list of `messages` is the conversation's own from then on.
    """

    messages: list[Message]
    size: int = 0
    result_limit_bytes: int | None = None
    view: ModelView = field(default_factory=ModelView)
    """What models read of it."""
    turn: LatestTurn = field(default_factory=LatestTurn)
    calls: PastCalls = field(default_factory=PastCalls)
    shared: SharedState = field(default_factory=SharedState)
    failure: LatestFailure = NO_FAILURE
    keeps_all: bool = False
    """Whether the run's thread keeps all its messages."""
    kept: KeptMessages | None = None
    """Those, from the run's first turn on; None if its thread gets what it keeps when the run has ended."""
    sides: Sides = field(default_factory=Sides)
    """Who has said what, in a run with seats."""
    system: str | None = None
    """The run's instructions, if code rendered them."""
    labels: dict[str, str] = {}
    """The labels that the policy engine has added to the run."""
    digests: Digests | None = None
    """What the run depends on; None before it was loaded, and for one that depends on no code."""
    approved: frozenset[str] = frozenset()
    """The awaits about the run itself that somebody approved."""
    allowed: tuple[tuple[AwaitClosed, Pattern], ...] = ()
    """Approvals that also cover later calls."""
    has_history: bool = False
    """Whether the messages begin with those of the run's thread; readers of a log may do without them."""
    _history: int = 0
    """How many messages of the thread the conversation begins with."""
    _absent: int = 0
    """How many messages of the thread come before those that are here."""
    through: int = 0
    """The position of the last message of its thread that the run began with."""
    by_id: dict[str, Message] = {}
    """Messages that can be edited, by what their ids have besides that of the run, as they are now."""
    _put: list[Message] = []
    """Those that somebody has put here, which the thread has already."""
    _deferred: tuple[Message, ...] = ()
    """Those that were put here while calls have no result: they come behind the results."""
    _given: int = 0
    """How many messages the run began with: its thread's history and its own input."""
    _left_out: int = 0
    """How much larger it would be without the summary in force."""
    _instruction: Message | None = None
    """The instruction that the model read before its final turn; it is not a message of the run."""
    _clarifying: str = ""
    """The await that asks for what a failed call lacks."""
    _queued: dict[str, User] = {}
    _found: dict[str, ToolResult] = {}
    """Results that were looked up, by the ids of their calls: a thousand calls may repeat the same one."""

    def __post_init__(self) -> None:
        self.view.messages = self.messages
        self._given = len(self.messages)
        self.calls.add_ids(self.messages)

    @property
    def given(self) -> int:
        """How many messages the run began with: its thread's history and its own input."""
        return self._given

    @property
    def own_count(self) -> int:
        """How many messages there are of the run itself, with its input."""
        return len(self.messages) - self._history

    @property
    def last_text(self) -> str:
        """The text of the latest assistant message."""
        for message in reversed(self.messages):
            if isinstance(message, Assistant):
                return message.text
        return ""

    @property
    def own_input(self) -> range:
        """The positions of the messages that the run was created with, after those of an earlier conversation."""
        first = self._given
        while first > 0 and isinstance(self.messages[first - 1], User):
            first -= 1
        return range(first, self._given)

    def added(self) -> list[Message]:
        """All messages of the run after its input."""
        messages = self.messages[self._given :]
        if self.sides.are_two:
            messages = self.sides.as_kept(self.messages, self._given)
        return [message for message in messages if message is not self._instruction and not self._is_put(message)]

    def exchange(self) -> list[Message]:
        """The messages after the run's input, without calls and results: those it received, the answers to them, the
        last text.

        Nudges, and texts that the model wrote while it was still working, are left out.
        """
        messages: list[Message] = []
        answer = ""
        for message in self.messages[self._given :]:
            if self._is_put(message):
                continue
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
        found = self._found.get(call_id) or self._find(call_id)
        if found is not None:
            self._found[call_id] = found
        return found

    def _find(self, call_id: str) -> ToolResult | None:
        for result in reversed(self.turn.results.values()):
            if result.id == call_id:
                return result
        for message in reversed(self.messages):
            if isinstance(message, ToolResults):
                for result in message.results:
                    if result.id == call_id:
                        return result
        return None

    def replay(self, rows: Sequence[Item]) -> None:
        for row in rows:
            self.take(decode_fact.decode(row.head), row.body)

    def begin(self, history: Iterable[Message], *, size: int) -> None:
        """Puts the history of the run's thread before the run's own input."""
        before = len(self.messages)
        self.has_history = True
        self.messages[:0] = history
        self._given += len(self.messages) - before
        self.calls.add_ids(self.messages[: len(self.messages) - before])
        self.view.reset()
        self.size += size

    def take(self, head: Fact, body: bytes, turn: TurnBody | None = None) -> None:
        """Adds what a fact means for the conversation; `turn` avoids decoding a body that was just encoded."""
        match head:
            case HistoryPinned():
                self.through = head.through or 0
                self._history, self._absent = (head.upto, 0) if self.has_history else (0, head.upto)
                if self.keeps_all and head.through is not None:
                    self.kept = KeptMessages()
                    for message in self.messages[head.upto : self._given]:
                        self._keep(message)
            case MessagesEdited():
                self._edit(bodies.decode_edited(body))
            case TurnCompleted():
                self._complete(head, turn or bodies.decode_turn(body), len(body))
            case CallClosed():
                self._close(head, bodies.decode_closed(body), len(body))
            case CallGated():
                gated = bodies.decode_gated(body)
                self.turn.gate(head.index, gated)
                if gated.state is not UNSET:
                    self.shared.apply(gated.state)
            case AwaitOpened():
                self._ask(head, bodies.decode_await(body))
            case AwaitClosed():
                self._answer(head, bodies.decode_answer(body) if body else AnswerBody())
            case ChildEnded():
                self.turn.children[head.index] = head, bodies.decode_ended(body)
            case CallAsked():
                self.turn.ask(head, bodies.decode_asked(body))
                self.calls.ids[head.call.id] = None
            case PolicyDecided():
                self.calls.unavailable = ()
                self.labels.update(bodies.decode_policy(body).labels if body else {})
            case InstructionsRendered():
                self._render(bodies.decode_rendered(body))
            case StateChanged():
                self.shared.apply(bodies.decode_state_changed(body).state)
            case DeployAdopted():
                if self.digests is not None:
                    self.digests = adopted(self.digests, head.changed)
                if body:
                    self._render(bodies.decode_rendered(body))
            case SeatTaken():
                said = bodies.decode_spoken(body).text if body else ""
                if said and self.kept is not None and self.sides.side == "b":
                    self.kept.add(User.of(said))
                self.sides.take(head, said, at=len(self.messages))
            case (
                LoopDetected() | FinalForced() | OutputRejected() | ResultsOverBudget() | SeatClosing() | SeatAskedOn()
            ):
                text = bodies.decode_text(body).text if body else ""
                if text:
                    self._add(User.of(text, injected=True), len(text), keep=not isinstance(head, FinalForced))
                if isinstance(head, OutputRejected):
                    self.failure = replace(self.failure, rejected=text)
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
                self.view.compact((head, bodies.decode_summary(body)))
                self._left_out += self.size - head.size
                self.size = head.size
            case ContextRestored():
                self.view.compact(None)
                self.size += self._left_out
                self._left_out = 0
            case AttemptFailed():
                if head.reason == "error":
                    self.failure = self.failure.after(head, bodies.decode_failed(body))
            case _:
                pass  # not part of the conversation

    def queued_texts(self, ids: Sequence[str]) -> tuple[str, ...]:
        """The texts of queued messages that have not been taken yet."""
        return tuple([joined_text(self._queued[id].parts) if id in self._queued else "" for id in ids])

    def _complete(self, head: TurnCompleted, turn: TurnBody, size: int) -> None:
        if turn.state is not UNSET:
            self.shared.apply(turn.state)
        message = turn.message
        assert isinstance(message, Assistant)
        self.turn = LatestTurn.of(head, turn)
        self.failure = NO_FAILURE
        for call in head.calls:
            self.calls.ids[call.id] = None
        if self.kept is not None and self.sides.side == "a":
            self.by_id[self.kept.answer(message, head)] = message
        elif self.kept is not None and message.text:
            self.kept.add(User.of(message.text))  # a thread keeps what the other side says as a user's
        self._add(message, size, keep=False)

    def _close(self, head: CallClosed, closed: ClosedBody, size: int) -> None:
        turn, calls = self.turn, self.calls
        if closed.state is not UNSET:
            self.shared.apply(closed.state)
        calls.close(head, closed, turn.args[head.index] if head.index < len(turn.args) else b"{}")
        visible = closed.parts if head.is_error else parts_within(self.result_limit_bytes, closed)
        turn.close(head, closed, visible)
        if head.parent:
            return
        calls.last_hint = turn.hints.get(head.index, calls.last_hint)
        self.size += size if visible is closed.parts else output_bytes(visible)
        if self.kept is not None and self.sides.side == "a":
            files = [one.data for one in closed.server_data if one.kind == ATTACHMENTS]
            self.kept.result(turn.results[head.index], turn=head.turn, index=head.index, files=files)
        if (results := turn.all_results) is not None:
            self._add(results, 0, keep=False)  # counted, and kept, one by one
            self.by_id |= dict.fromkeys([f"_{head.turn}_{index}" for index in turn.results], results)
            for message in self._deferred:
                self._add(message, len(bodies.encode(message)), keep=False)
            self._deferred = ()
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

    def _render(self, rendered: RenderedBody) -> None:
        self.system = rendered.text
        if rendered.state is not UNSET:
            self.shared.apply(rendered.state)

    def _add(self, message: Message, size: int, *, keep: bool = True) -> None:
        self.messages.append(message)
        if keep and not (self.sides.side == "b" and _is_injected(message)):
            self._keep(message)
        if self.view.compacted is not None:
            self.view.add(message)
        self.size += size

    def position_of(self, id: str) -> int | None:
        """The position of a message of the run, by what its id has besides that of the run; None if it has none yet."""
        wanted = self.by_id.get(id)
        return next((at for at, message in enumerate(self.messages) if message is wanted), None)

    def _keep(self, message: Message) -> None:
        if self.kept is not None:
            self.by_id[self.kept.add(message)] = message

    def _is_put(self, message: Message) -> bool:
        return any(one is message for one in self._put)

    def _edit(self, edited: EditedBody) -> None:
        """Changes messages in a new list, because what was made of the old one relies on it only growing."""
        messages, size, first = list(self.messages), 0, self._absent
        removed = [at - first for at in edited.removed if at >= first]
        self._absent -= len(edited.removed) - len(removed)
        for one in edited.changed:
            if one.at < first:
                continue
            old = messages[one.at - first]
            messages[one.at - first] = one.message
            self.by_id |= {id: one.message for id, message in self.by_id.items() if message is old}
            self._put = [one.message if message is old else message for message in self._put]
            size += len(bodies.encode(one.message)) - len(bodies.encode(old))
        size -= sum([len(bodies.encode(messages[at])) for at in removed])
        self.messages = [message for at, message in enumerate(messages) if at not in removed]
        self._given -= sum([at < self._given for at in removed])
        self._history -= sum([at < self._history for at in removed])
        self.sides.remove(removed)
        self.size = max(0, self.size + size)
        self.view.messages = self.messages
        self.view.reset()
        for new in edited.added:
            self._put.append(new.message)
            self.by_id[new.id] = new.message
            if self.turn.has_open_calls:
                self._deferred += (new.message,)
            else:
                self._add(new.message, len(bodies.encode(new.message)), keep=False)


def _is_injected(message: Message) -> bool:
    return isinstance(message, User) and message.injected


def _in_words(answer: AnswerBody) -> str:
    value: object = answer.reason if answer.value is UNSET else decode(answer.value)
    return value.strip() if isinstance(value, str) else canonical_value(value).decode()
