"""The content of entries: everything a log holds besides facts. Projections and request builders read it; the kernel
never does.

Bodies use our own vocabulary, and outside protocols are projections of them. Readers ignore fields that they do not
know, so if ignoring a field would be misleading, it needs a new entry, which older code then rejects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType
from msgspec.json import Decoder, Encoder, decode
from msgspec.json import format as formatted
from msgspec.structs import replace

from weftline.failure import Bounds, Cause, ChildLink, Clarification, Failure, ProviderFailure, ServerData, Telemetry
from weftline.messages import Assistant, Message, ProviderCall, UserPart


class Origin(Struct, frozen=True):
    """For a fork: the run that it continues, and the first turn of its own, counted from 0."""

    run: str
    turn: int


class CarriedCall(Struct, frozen=True):
    """The call that a child run executes: its tool, and the arguments exactly as they are in the parent's log."""

    tool: str
    args: Raw


class CreatedBody(Struct, omit_defaults=True):
    """Body of `run.created`: the plan in our own vocabulary, and the client's request, to be returned exactly."""

    plan: Raw
    sent: Raw | UnsetType = UNSET
    origin: Origin | None = None
    """The messages of a fork's plan are those of its origin before that turn."""
    call: CarriedCall | None = None
    """Set for a child run."""


class AskBody(Struct, omit_defaults=True):
    """A question to a person about a call. If there are `options`, the answer is one of them, or several if `multiple`.

    If there are `parts`, they are separate questions, and the answer is a list with one answer to each; `prompt`
    contains them all.
    """

    prompt: str
    options: tuple[str, ...] = ()
    multiple: bool = False
    parts: tuple[AskBody, ...] = ()
    approvers: tuple[str, ...] = ()
    """The names of the people who may decide, as they are authenticated; anybody if empty."""


class TurnCall(Struct, frozen=True, omit_defaults=True):
    """One call of the message as the tool pipeline left it, before any decision about it.

    `args` are the final argument bytes, absent if they are the message's own text. `invalid` is what the model reads
    instead of a result if the arguments do not fit the tool, or if nobody can be asked about them.
    """

    args: Raw | UnsetType = UNSET
    invalid: str = ""
    ask: AskBody | None = None
    failure: Failure | None = None
    """Details about arguments that do not fit."""


class TurnBody(Struct, omit_defaults=True):
    """Body of `turn.completed`. `calls` has one item per call of the message, or is empty if all are unchanged."""

    message: Assistant
    calls: tuple[TurnCall, ...] = ()
    problem: str = ""
    """How the answer violates the run's output schema."""
    state: Raw | UnsetType = UNSET
    """What hooks changed in the run's state, in the same form as in `ClosedBody`."""


class StateBody(Struct):
    """Body of `state.changed`, in the same form as in `ClosedBody`."""

    state: Raw


class AskedBody(Struct, omit_defaults=True):
    """Body of `call.asked`: the arguments as the parent wrote them, a JSON object, and what the tool pipeline made of
    them.

    `clock_ms` is the time at which the parent began; its code sees the same time when it is executed again.
    """

    written: str
    call: TurnCall = TurnCall()
    clock_ms: int = 0

    @property
    def args(self) -> bytes:
        """The final argument bytes."""
        return self.written.encode() if self.call.args is UNSET else bytes(self.call.args)


class GatedBody(Struct, omit_defaults=True):
    """Body of `call.gated`: the arguments, if the gates changed them, and what the model reads instead of a result if
    the call is not to begin.
    """

    args: Raw | UnsetType = UNSET
    parts: tuple[UserPart, ...] = ()
    is_error: bool = False
    state: Raw | UnsetType = UNSET
    """In the same form as in `ClosedBody`."""
    steer: str = ""
    """What the model reads after the results of the turn."""
    ask: AskBody | None = None
    bounds: Bounds | None = None
    """For an answer that is part of something larger."""
    hint: str = ""
    """What people read about the call, instead of the text from its tool."""


class OfferedTool(Struct, omit_defaults=True):
    """A tool as models are told about it. `parameters` is its JSON Schema."""

    name: str
    parameters: Raw
    description: str = ""


class OfferedBody(Struct):
    """Body of `attempt.started`, if the plan does not define the run's tools: those that it has from now on."""

    tools: tuple[OfferedTool, ...]


class AwaitBody(Struct, omit_defaults=True):
    """Body of `await.opened`: what people see. `args` are exactly the bytes that will run; `call` is the call's id."""

    prompt: str
    call: str
    name: str
    args: Raw
    options: tuple[str, ...] = ()
    multiple: bool = False
    by_tool: bool = False
    """The call has begun, and its tool asks instead of returning a result."""
    clarification: Clarification | None = None
    """What a failed call lacks."""
    key: str = ""
    """For a call in doubt: its idempotency key."""
    called_at: int = 0
    """For a call in doubt: when it began."""
    approvers: tuple[str, ...] = ()
    """As in `AskBody`."""


class Pattern(Struct, omit_defaults=True):
    """Which later calls of a run an approval covers: those of this tool with these arguments, whatever other arguments
    they have.

    `args` are exact values. `prefixes` are beginnings of strings; what follows must be plain words (see `covers`).
    """

    tool: str
    args: dict[str, Raw] = {}
    prefixes: dict[str, str] = {}


class AnswerBody(Struct, omit_defaults=True):
    """Body of `await.closed`: the answer.

    `args` are the arguments of an approval that changed them, `value` the answer to a question.
    """

    args: Raw | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
    reason: str = ""
    remember: Pattern | None = None
    sent: str = ""
    """Digest of the answer as it was submitted. Submitting it again returns the same outcome."""
    labels: dict[str, str] = {}
    """Labels that the person who answered attached to the answer."""


class RenderedBody(Struct, omit_defaults=True):
    """Body of `instructions.rendered`."""

    text: str
    state: Raw | UnsetType = UNSET
    """In the same form as in `ClosedBody`."""


class PolicyBody(Struct, omit_defaults=True):
    """Body of `policy.decided`: what the engine adds to the run's labels, and anything else that it wants recorded."""

    labels: dict[str, str] = {}
    metadata: Raw | UnsetType = UNSET


class McpPeer(Struct, frozen=True, tag_field="protocol", tag="mcp", omit_defaults=True):
    """The MCP server that the client asks, under the client's name for it, and the tool, with its annotations."""

    server: str
    tool: str
    info: Raw | UnsetType = UNSET
    """What the server says about itself."""
    annotations: Raw | UnsetType = UNSET


class A2APeer(Struct, frozen=True, tag_field="protocol", tag="a2a"):
    """The A2A agent that the client asks, by its card."""

    card: Raw


Peer: TypeAlias = McpPeer | A2APeer
"""Whom the client has to ask, as it was described when the run was created."""


class OpenedBody(Struct, omit_defaults=True):
    """Body of `call.opened` and `call.unclaimed`: the final arguments (a JSON object), and what else is offered."""

    args: Raw
    hint: str = ""
    """What people read about the call while it is in progress; if empty, its tool's name in words."""
    peer: Peer | None = None
    """For a call of the client's that it passes on to somebody else."""


class ClosedBody(Struct, omit_defaults=True):
    """Body of `call.closed`: what the model reads, and the arguments again unless they are long.

    `message_id` is the sender's id for the message that answered the call, and `idempotency_key` is the key of the
    request that did, if they had one.
    """

    parts: tuple[UserPart, ...]
    args: Raw | UnsetType = UNSET
    message_id: str = ""
    idempotency_key: str = ""
    state: Raw | UnsetType = UNSET
    """What the call changed in the state of the run's tools: an object, in which null marks a removed key."""
    failure: Failure | None = None
    """For an error: what is known about it besides its text and how the call was closed."""
    telemetry: Telemetry | None = None
    """What the call used, as reported by its tool."""
    bounds: Bounds | None = None
    """For a result that is part of something larger."""
    server_data: tuple[ServerData, ...] = ()
    """Data that models do not see."""
    child: ChildLink | None = None
    """For a call that a child run executed."""
    sent: str = ""
    """Digest of a client's result that was stored in another form, so that the same result can be submitted again."""
    is_json: bool = False
    """Whether the text is the JSON of a value that is not a text. Code that made the call gets the value."""


class AddedMessage(Struct, frozen=True):
    """A message that was put into a conversation, under its id."""

    id: str
    message: Message


class ChangedMessage(Struct, frozen=True):
    """What the message at a position is now."""

    at: int
    message: Message


class EditedBody(Struct, frozen=True, omit_defaults=True):
    """Positions are those before the edit."""

    added: tuple[AddedMessage, ...] = ()
    changed: tuple[ChangedMessage, ...] = ()
    removed: tuple[int, ...] = ()


class QueuedBody(Struct, tag_field="role", tag="user", omit_defaults=True):
    """Body of `message.queued`: a `User` message, with the sender's id for it, if it had one."""

    parts: tuple[UserPart, ...]
    message_id: str = ""
    by: str = ""
    """Who sent it, if that is known."""
    labels: dict[str, str] = {}
    """The sender's own labels."""
    request: str = ""
    """Digest of the sender and the idempotency key of the request, if it had one. A repeated request is accepted once.
    """


class TakenBody(Struct):
    """Body of `messages.taken`: the texts of the messages, so that the entry can be displayed without earlier ones."""

    texts: tuple[str, ...]


class TextBody(Struct):
    """Body of `loop.detected`, `final.forced`, `output.rejected`, `results.over_budget`, `seat.closing` and
    `seat.asked_on`: a message to the model.
    """

    text: str


class SpokenBody(Struct):
    """Body of `seat.taken`, if a call ended the side turn before it: what the other side reads of it."""

    text: str


class ControlBody(Struct, omit_defaults=True):
    """Body of `run.paused` and `run.resumed`, if needed: the requester's own labels, and how many messages came with
    the request.
    """

    labels: dict[str, str] = {}
    messages: int = 0


class FailedBody(Struct, omit_defaults=True):
    """Body of `attempt.failed` and `compaction.failed`: the error, the text streamed before it, and what the provider
    reported.
    """

    message: str
    text: str = ""
    code: str | None = None
    status: int | None = None
    retry_after_s: float | None = None
    causes: tuple[Cause, ...] = ()
    """The exceptions that led to it, the nearest first; for operators."""


class SummaryBody(Struct, omit_defaults=True):
    """Body of `context.compacted`: what the model reads in place of the messages, and which of them are kept."""

    text: str
    kept: tuple[int, ...] = ()
    """The positions of the kept messages, in order."""
    model: str = ""
    """The model that wrote the summary."""


class FinalResult(Struct, frozen=True, omit_defaults=True):
    """The result of the terminal tool that ended a child run, in the same form as in `ClosedBody`."""

    parts: tuple[UserPart, ...]
    telemetry: Telemetry | None = None
    bounds: Bounds | None = None
    server_data: tuple[ServerData, ...] = ()
    failure: Failure | None = None
    """Set if the tool ended the run with an error."""


class EndedBody(Struct, omit_defaults=True):
    """Body of `run.ended`, and of `child.ended` in the parent's log. `provider` is set if a model call ended the
    run.
    """

    text: str = ""
    error: str = ""
    partial_text: str | None = None
    provider: ProviderFailure | None = None
    labels: dict[str, str] = {}
    """The labels that the run was created with."""
    calls: int = 0
    """For a child run: how many of its calls have a result."""
    final: FinalResult | None = None
    """For a child run: its result, instead of a text."""
    full: str = ""
    """The original error, if the operator has replaced it by the text in `error`; for operators."""
    causes: tuple[Cause, ...] = ()
    """The exceptions that led to it, the nearest first; for operators."""


class ProviderNote(Struct):
    """Body of `note.provider_call`: the call as in the message, without the parts that only the provider can read."""

    call: ProviderCall
    turn: int


class ProgressNote(Struct, omit_defaults=True):
    """Body of `note.tool_progress`: the call, and its progress, in whatever unit its tool counts."""

    call: str
    name: str
    progress: float
    total: float | None = None
    message: str = ""


class ToolNote(Struct):
    """Body of `note.tool`: the call, and the text of its tool."""

    call: str
    name: str
    kind: str
    data: Raw


encode = Encoder().encode
_UNCHANGED = TurnCall()
decode_created = Decoder(CreatedBody).decode
decode_offered = Decoder(OfferedBody).decode
decode_edited = Decoder(EditedBody).decode
decode_turn = Decoder(TurnBody).decode
decode_state_changed = Decoder(StateBody).decode
decode_asked = Decoder(AskedBody).decode
decode_gated = Decoder(GatedBody).decode
decode_rendered = Decoder(RenderedBody).decode
decode_policy = Decoder(PolicyBody).decode
decode_opened = Decoder(OpenedBody).decode
decode_await = Decoder(AwaitBody).decode
decode_answer = Decoder(AnswerBody).decode
decode_closed = Decoder(ClosedBody).decode
decode_text = Decoder(TextBody).decode
decode_spoken = Decoder(SpokenBody).decode
decode_control = Decoder(ControlBody).decode
decode_failed = Decoder(FailedBody).decode
decode_summary = Decoder(SummaryBody).decode
decode_ended = Decoder(EndedBody).decode
decode_taken = Decoder(TakenBody).decode
decode_queued = Decoder(QueuedBody).decode
decode_message = Decoder(Message).decode
decode_note = Decoder(ProviderNote).decode
decode_progress = Decoder(ProgressNote).decode
decode_tool_note = Decoder(ToolNote).decode


def turn_body(message: Assistant, calls: Sequence[TurnCall]) -> TurnBody:
    """The body of a completed turn. `calls` is what became of each of the message's calls, in order; it is not stored
    if nothing did.
    """
    return TurnBody(message, tuple(calls) if any(map(_UNCHANGED.__ne__, calls)) else ())


def turn_call(
    written: str, *, args: bytes, invalid: str = "", ask: AskBody | None = None, failure: Failure | None = None
) -> TurnCall:
    """Returns the outcome for a call's arguments. They are not stored again if they are unchanged."""
    return TurnCall(UNSET if args == written.encode(errors="surrogatepass") else Raw(args), invalid, ask, failure)


def turn_args(body: TurnBody) -> list[bytes]:
    """The final argument bytes of every call. Digest, idempotency key and execution all use these."""
    if not body.calls:
        return [asked.args.encode() for asked in body.message.calls]
    return [
        asked.args.encode() if call.args is UNSET else bytes(call.args)
        for asked, call in zip(body.message.calls, body.calls, strict=True)
    ]


def note_body(call: ProviderCall, *, turn: int) -> bytes:
    """The body of a note about `call`, on one line whatever the provider sent, because notes are joined by newlines."""
    return encode(ProviderNote(replace(call, input=_line(call.input), result=_line(call.result), opaque=UNSET), turn))


def provider_result(call: ProviderCall) -> str:
    """The result of a tool that the provider ran itself, as JSON, or "" if there is none."""
    if call.result is UNSET:
        return ""
    try:
        return encode(decode(call.result)).decode()
    except (DecodeError, RecursionError):
        return encode(bytes(call.result).decode(errors="replace")).decode()


def _line(raw: Raw | UnsetType) -> Raw | UnsetType:
    """JSON without whitespace; anything that is not JSON becomes a string."""
    if raw is UNSET:
        return UNSET
    text = bytes(raw).decode(errors="replace")
    try:
        return Raw(formatted(text, indent=-1).encode())
    except (DecodeError, RecursionError):
        return Raw(encode(text))
