"""The content of entries: what a log holds besides facts. Read by projections and request builders, never by the
kernel.

Bodies are our own words; the protocols outside are projections of them. Readers ignore fields they do not know, so a
field whose absence would mislead needs a new entry, which older code then rejects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType
from msgspec.json import Decoder, Encoder, decode
from msgspec.json import format as formatted
from msgspec.structs import replace

from weftline.failure import Cause, Clarification, Failure
from weftline.messages import Assistant, Message, ProviderCall, UserPart
from weftline.outcome import Bounds, ChildLink, ServerData, Telemetry


class Origin(Struct, frozen=True):
    """Of a fork: the run that it goes on from, and its first turn that is not of that run, counted from 0."""

    run: str
    turn: int


class CarriedCall(Struct, frozen=True):
    """The call that a child run carries out: its tool, and the arguments exactly as they are in the parent's log."""

    tool: str
    args: Raw


class CreatedBody(Struct, omit_defaults=True):
    """Of `run.created`: the plan in our own words, and what the client sent, to be returned exactly."""

    plan: Raw
    sent: Raw | UnsetType = UNSET
    origin: Origin | None = None
    """The messages of a fork's plan are those of its origin before that turn."""
    call: CarriedCall | None = None
    """Of a child run."""


class AskBody(Struct, omit_defaults=True):
    """What a person is asked about a call. With `options` the answer is one of them, or several if `multiple`.

    With `parts` these are several questions, and the answer is a list with one answer to each; `prompt` has them all.
    """

    prompt: str
    options: tuple[str, ...] = ()
    multiple: bool = False
    parts: tuple[AskBody, ...] = ()
    approvers: tuple[str, ...] = ()
    """Who may decide, by the names that doors give people; anybody if there are none."""


class TurnCall(Struct, frozen=True, omit_defaults=True):
    """What the tool pipeline made of one call of the message before anything was decided about it.

    `args` are the final argument bytes, absent if they are the message's own text. `invalid` is what the model reads in
    place of a result if they do not fit the tool, or if nobody can be asked about them.
    """

    args: Raw | UnsetType = UNSET
    invalid: str = ""
    ask: AskBody | None = None
    failure: Failure | None = None
    """What is known besides about arguments that do not fit."""


class TurnBody(Struct, omit_defaults=True):
    """Of `turn.completed`. `calls` is as long as the message's, or empty if every call is as in the message."""

    message: Assistant
    calls: tuple[TurnCall, ...] = ()
    problem: str = ""
    """How the answer breaks the run's output schema."""
    state: Raw | UnsetType = UNSET
    """What hooks changed of what the run remembers. As in `ClosedBody`."""


class StateBody(Struct):
    """Of `state.changed`. As in `ClosedBody`."""

    state: Raw


class AskedBody(Struct, omit_defaults=True):
    """Of `call.asked`: the arguments as the parent wrote them, a JSON object, and what the tool pipeline made of them.

    `clock_ms` is the time that the parent began at: it is shown the same when it is carried out again.
    """

    written: str
    call: TurnCall = TurnCall()
    clock_ms: int = 0

    @property
    def args(self) -> bytes:
        """The final argument bytes."""
        return self.written.encode() if self.call.args is UNSET else bytes(self.call.args)


class GatedBody(Struct, omit_defaults=True):
    """Of `call.gated`: the arguments, unless they are as the turn has them, and what the model reads in place of a
    result, if the call is not to begin.
    """

    args: Raw | UnsetType = UNSET
    parts: tuple[UserPart, ...] = ()
    is_error: bool = False
    state: Raw | UnsetType = UNSET
    """As in `ClosedBody`."""
    steer: str = ""
    """What the model reads after the results of the turn."""
    ask: AskBody | None = None
    bounds: Bounds | None = None
    """Of an answer that is a part of something larger."""
    hint: str = ""
    """What people are to read about the call, in place of what its tool says."""


class AwaitBody(Struct, omit_defaults=True):
    """Of `await.opened`: what people see. `args` are exactly the bytes that will run; `call` is the call's id."""

    prompt: str
    call: str
    name: str
    args: Raw
    options: tuple[str, ...] = ()
    multiple: bool = False
    by_tool: bool = False
    """The call has begun, and its tool asks in place of giving a result."""
    clarification: Clarification | None = None
    """What a failed call lacks."""
    key: str = ""
    """Of a call in doubt: its idempotency key."""
    called_at: int = 0
    """And when it was begun."""
    approvers: tuple[str, ...] = ()
    """As in `AskBody`."""


class Pattern(Struct, omit_defaults=True):
    """Which later calls of a run an approval covers: those of this tool with these arguments, whatever the others are.

    `args` are exact values. `prefixes` are how texts begin; what follows must be plain words (see `covers`).
    """

    tool: str
    args: dict[str, Raw] = {}
    prefixes: dict[str, str] = {}


class AnswerBody(Struct, omit_defaults=True):
    """Of `await.closed`: what whoever answered had to say.

    `args` are the arguments of an approval that changed them, `value` the answer to a question.
    """

    args: Raw | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
    reason: str = ""
    remember: Pattern | None = None
    sent: str = ""
    """Digest of the answer as it was given: whoever gives it again is told the same."""
    labels: dict[str, str] = {}
    """Whoever answered has given it these."""


class RenderedBody(Struct, omit_defaults=True):
    """Of `instructions.rendered`."""

    text: str
    state: Raw | UnsetType = UNSET
    """As in `ClosedBody`."""


class PolicyBody(Struct, omit_defaults=True):
    """Of `policy.decided`: what the engine adds to the run's labels, and whatever else it wants to be on record."""

    labels: dict[str, str] = {}
    metadata: Raw | UnsetType = UNSET


class OpenedBody(Struct, omit_defaults=True):
    """Of `call.opened`: the final arguments (a JSON object), and the fields that an offer to a client carries."""

    args: Raw
    echo: Raw | UnsetType = UNSET
    hint: str = ""
    """What people read about the call while it is under way. Empty for the name of its tool in words."""


class ClosedBody(Struct, omit_defaults=True):
    """Of `call.closed`: what the model reads, and the arguments again unless they are long.

    `message_id` is the sender's name for the message that answered the call, and `idempotency_key` that of the request
    that did, if they had one.
    """

    parts: tuple[UserPart, ...]
    args: Raw | UnsetType = UNSET
    message_id: str = ""
    idempotency_key: str = ""
    state: Raw | UnsetType = UNSET
    """What the call changed of what the run's tools remember: an object; null stands for what they forgot."""
    failure: Failure | None = None
    """Of an error: what is known about it besides its text and how the call was closed."""
    telemetry: Telemetry | None = None
    """What the call took, as far as its tool has said so."""
    bounds: Bounds | None = None
    """Of a part of something larger."""
    server_data: tuple[ServerData, ...] = ()
    """What no model reads."""
    child: ChildLink | None = None
    """Of a call that a run of its own carried out."""
    sent: str = ""
    """Digest of a client's result, if it was stored as something else: the same one may come again."""


class QueuedBody(Struct, tag_field="role", tag="user", omit_defaults=True):
    """Of `message.queued`: a `User` message, with the sender's name for it, if it had one."""

    parts: tuple[UserPart, ...]
    message_id: str = ""
    by: str = ""
    """Who sent it, if that is known."""
    labels: dict[str, str] = {}
    """The sender's own."""
    request: str = ""
    """Digest of the sender and of the name that the request had, if it had one: the same one is taken once."""


class TakenBody(Struct):
    """Of `messages.taken`: the texts of the messages, so that the entry can be shown without those before it."""

    texts: tuple[str, ...]


class TextBody(Struct):
    """Of `loop.detected`, `final.forced`, `output.rejected` and `results.over_budget`: a message to the model."""

    text: str


class ControlBody(Struct, omit_defaults=True):
    """Of `run.paused` and `run.resumed`, if there is more to say: the requester's own labels, and how many messages
    came with it.
    """

    labels: dict[str, str] = {}
    messages: int = 0


class FailedBody(Struct, omit_defaults=True):
    """Of `attempt.failed` and `compaction.failed`: the error, the text streamed before it, and what the provider said
    about itself.
    """

    message: str
    text: str = ""
    code: str | None = None
    status: int | None = None
    retry_after_s: float | None = None
    causes: tuple[Cause, ...] = ()
    """The exceptions that led to it, the nearest first; for whoever runs the server."""


class SummaryBody(Struct, omit_defaults=True):
    """Of `context.compacted`: what the model reads in place of the messages, and which of them stay nevertheless."""

    text: str
    kept: tuple[int, ...] = ()
    """The positions of these, in order."""
    model: str = ""
    """The one that wrote it."""


class ProviderFailure(Struct, frozen=True, omit_defaults=True):
    """What a model's provider failed with: the kind is one of our classes, code and status are its own."""

    provider: str
    operation: str
    """`chat`, as traces call it."""
    kind: str
    retryable: bool
    code: str | None = None
    status: int | None = None


class FinalResult(Struct, frozen=True, omit_defaults=True):
    """The result of the terminal tool that a child run has ended with, as in `ClosedBody`."""

    parts: tuple[UserPart, ...]
    telemetry: Telemetry | None = None
    bounds: Bounds | None = None
    server_data: tuple[ServerData, ...] = ()
    failure: Failure | None = None
    """If the tool has ended the run with an error."""


class EndedBody(Struct, omit_defaults=True):
    """Of `run.ended`, and of `child.ended` in the parent's log. `provider` is that of a run that a model call ended."""

    text: str = ""
    error: str = ""
    partial_text: str | None = None
    provider: ProviderFailure | None = None
    labels: dict[str, str] = {}
    """Those that the run began with."""
    calls: int = 0
    """Of a child run: how many of its calls have a result."""
    final: FinalResult | None = None
    """Of a child run, in place of a text."""
    full: str = ""
    """The error that an operator has replaced by another text in `error`; for whoever runs the server."""
    causes: tuple[Cause, ...] = ()
    """The exceptions that led to it, the nearest first; likewise."""


class ProviderNote(Struct):
    """Of `note.provider_call`: the call as in the message, without the parts that only the provider understands."""

    call: ProviderCall
    turn: int


class ProgressNote(Struct, omit_defaults=True):
    """Of `note.tool_progress`: the call, and how far it has come in whatever its tool counts."""

    call: str
    name: str
    progress: float
    total: float | None = None
    message: str = ""


class ToolNote(Struct):
    """Of `note.tool`: the call, and what its tool had to say."""

    call: str
    name: str
    kind: str
    data: Raw


encode = Encoder().encode
_NOBODY: dict[int, AskBody] = {}
_NO_FAILURES: dict[int, Failure] = {}
decode_created = Decoder(CreatedBody).decode
decode_turn = Decoder(TurnBody).decode
decode_state = Decoder(StateBody).decode
decode_asked = Decoder(AskedBody).decode
decode_gated = Decoder(GatedBody).decode
decode_rendered = Decoder(RenderedBody).decode
decode_policy = Decoder(PolicyBody).decode
decode_opened = Decoder(OpenedBody).decode
decode_await = Decoder(AwaitBody).decode
decode_answer = Decoder(AnswerBody).decode
decode_closed = Decoder(ClosedBody).decode
decode_text = Decoder(TextBody).decode
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


def turn_body(
    message: Assistant,
    *,
    args: Sequence[bytes],
    invalid: Mapping[int, str],
    asks: Mapping[int, AskBody] = _NOBODY,
    failures: Mapping[int, Failure] = _NO_FAILURES,
) -> TurnBody:
    """The body of a completed turn: `args` has the final bytes of each of the message's calls, in their order."""
    made = message.calls
    if not made and not args:
        return TurnBody(message)
    calls = [
        turn_call(
            asked.args,
            args=final,
            invalid=invalid.get(index, ""),
            ask=asks.get(index),
            failure=failures.get(index),
        )
        for index, (asked, final) in enumerate(zip(made, args, strict=True))
    ]
    plain = not invalid and not asks and not [call for call in calls if call.args is not UNSET]
    return TurnBody(message, () if plain else tuple(calls))


def turn_call(
    written: str, *, args: bytes, invalid: str, ask: AskBody | None, failure: Failure | None = None
) -> TurnCall:
    """What became of a call's arguments. They are not repeated if they are as they were written."""
    return TurnCall(UNSET if args == written.encode(errors="surrogatepass") else Raw(args), invalid, ask, failure)


def turn_args(body: TurnBody) -> list[bytes]:
    """The final argument bytes of every call: digest, idempotency key and execution all use these."""
    if not body.calls:
        return [asked.args.encode() for asked in body.message.calls]
    return [
        asked.args.encode() if call.args is UNSET else bytes(call.args)
        for asked, call in zip(body.message.calls, body.calls, strict=True)
    ]


def note_body(call: ProviderCall, *, turn: int) -> bytes:
    """The body of a note about `call`: one line, whatever the provider sent, because notes are joined by newlines."""
    return encode(ProviderNote(replace(call, input=_line(call.input), result=_line(call.result), opaque=UNSET), turn))


def provider_result(call: ProviderCall) -> str:
    """The result of a tool that the provider ran itself, as JSON; "" if there is none."""
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
