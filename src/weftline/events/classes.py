"""What can happen in a run: one class for each event, whoever reads it and however it is encoded.

Import them from `weftline.events`. Adding an event means a class here, a function in `project.py` and a row in
`wire.py`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from weftline.failure import (
    Bounds,
    CallFailure,
    ChildLink,
    Clarification,
    ProviderFailure,
    ServerData,
    Telemetry,
    preview_of,
)
from weftline.messages import Usage

RETRYABLE = frozenset({"rate_limit", "overloaded", "server", "timeout", "upstream_deadline"})
"""The codes of failures after which the same run may succeed."""


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened in a run. `seq` is its position in the run's log."""

    run_id: str = ""
    seq: int = 0


class RunStarted(Event, frozen=True):
    """The run exists. `agent` is the name of the agent, if it has one."""

    agent: str | None = None


class TextDelta(Event, frozen=True):
    """A piece of the model's text. If a `TurnRestarted` follows, the pieces of that attempt are void."""

    text: str
    turn: int = 0
    attempt: int = 1


class ThinkingDelta(Event, frozen=True):
    """A piece of the model's thinking, if the model shows it."""

    text: str
    turn: int = 0
    attempt: int = 1


class TurnRestarted(Event, frozen=True):
    """The model is called again for the same turn: what earlier attempts streamed is void."""

    turn: int
    attempt: int
    reason: str = ""


class RequestedCall(Struct, frozen=True, kw_only=True):
    """A call as the model asked for it."""

    id: str
    name: str
    args: dict[str, Any] = {}


class TurnFinished(Event, frozen=True):
    """The model has answered. `text` is the turn's deltas in one piece.

    `provider_metadata` is what its provider reported about the answer, such as an id to quote to its support.
    """

    turn: int
    text: str = ""
    finish_reason: str | None = None
    calls: tuple[RequestedCall, ...] = ()
    provider_metadata: dict[str, str] = {}


class Peer(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Whom a client has to ask to execute a call: a tool of an MCP server, or an A2A agent by its card."""

    mcp_server: str | None = None
    """The client's own name for the server."""
    mcp_tool_name: str | None = None
    mcp_server_info: Any = None
    """What the server says about itself."""
    annotations: Any = None
    """Those of the tool."""
    agent_card: Any = None


class CallOpened(Event, frozen=True):
    """A call was announced. It may not have begun yet. `client` is set if a client executes it. Such a call is offered
    again if a client that had claimed it released it or is gone: `attempt` counts that.

    `parent_call` is the call whose code made it, if it was not the model. `display_hint` is what people read while it
    is in progress. `peer` is whom the client has to ask in turn, if anybody.
    """

    call_id: str
    name: str
    args: dict[str, Any] = {}
    turn: int = 0
    client: str | None = None
    parent_call: str | None = None
    attempt: int = 1
    display_hint: str = ""
    peer: Peer | None = None


class CallClaimed(Event, frozen=True):
    """A client has claimed a call for `lease_ms` milliseconds, and keeps it as long as it sends heartbeats."""

    call_id: str
    name: str = ""
    by: str = ""
    lease_ms: int = 0


class CallFellBack(Event, frozen=True):
    """The client that had claimed a call is gone: `fallback`, a server tool, executes it."""

    call_id: str
    name: str = ""
    fallback: str = ""
    turn: int = 0


class Attachment(Struct, frozen=True, rename="camel"):
    """A part of a result that is not text. Its content is in the conversation only."""

    type: Literal["image", "audio", "file"]
    media_type: str


class CallFinished(Event, frozen=True):
    """A call has its result. `how` says where it comes from: its tool (`returned`, `failed`), or what came in between.

    `failure` says why a call is not `ok`, `telemetry` what it cost, `bounds` how much of the whole its result holds,
    and `server_data` has additional data for those who follow the run. If the result came from a client (`by_client`),
    which knows them, `args` and `attachments` are empty; `args` also if they are long.
    """

    call_id: str
    name: str
    ok: bool
    result: str = ""
    how: str = "returned"
    parent_call: str | None = None
    failure: CallFailure | None = None
    telemetry: Telemetry = Telemetry(0)
    bounds: Bounds | None = None
    server_data: tuple[ServerData, ...] = ()
    child: ChildLink | None = None
    """The run that executed it, if there was one, and how many calls that run has made."""
    by_client: bool = False
    args: dict[str, Any] = {}
    attachments: tuple[Attachment, ...] = ()

    @property
    def preview(self) -> str:
        """The beginning of the result, on one line."""
        return preview_of(self.result)


class ChildStarted(Event, frozen=True):
    """A call is executed by a run of its own, whose id is `child_id`."""

    call_id: str
    name: str
    child_id: str
    turn: int = 0


class ChildEnded(Event, frozen=True):
    """The run that executes a call has ended; the result of the call follows.

    `usage` and `cost_usd` are part of this run's own from here on, and include those of the child's children.
    """

    call_id: str
    name: str
    child_id: str
    status: Literal["succeeded", "failed", "cancelled"]
    turns: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = None


class CallProgress(Event, frozen=True):
    """The progress of a call, in its tool's own units; `total` is None if the tool does not know it."""

    call_id: str
    name: str
    progress: float
    total: float | None = None
    message: str = ""


class ProviderCalled(Event, frozen=True):
    """A tool that the model's provider itself ran, such as its web search.

    `call_id` is the provider's own; `args` are what it reports about the input, in whatever form.
    """

    name: str
    status: str = "completed"
    result: str = ""
    turn: int = 0
    call_id: str = ""
    provider: str = ""
    args: Any = None


class Note(Event, frozen=True):
    """What a tool reported while it ran: its own `kind`, and data. `name` is the tool's."""

    call_id: str
    kind: str
    data: Any = None
    name: str = ""


class AwaitOpened(Event, frozen=True):
    """A person is asked about a call or a run.

    `kind` is `confirm`, `question`, `plan`, `doubt`, `clarification`, `deploy` or `budget`. For a `clarification`, the
    field of that name has what the failed call lacks.
    """

    id: str
    kind: str
    question: str
    name: str
    args: dict[str, Any] = {}
    call_id: str = ""
    options: tuple[str, ...] = ()
    clarification: Clarification | None = None
    approvers: tuple[str, ...] = ()
    """Who may decide; empty means anybody."""
    multiple: bool = False
    """Whether an answer may be several of the options."""
    turn: int = 0
    digest: str = ""
    """The digest of the arguments as they are shown; for a deploy, of what the run would depend on."""
    timeout_ms: int | None = None
    """How long an answer may take."""
    called_at: int | None = None
    """For a call in doubt: when it began, in microseconds since the epoch, UTC."""
    idempotency_key: str = ""
    """For a call in doubt: the key that it was made with."""


class AwaitClosed(Event, frozen=True):
    """The question has an answer (`approved`, `denied`, `answered`), or no longer needs one (`expired`, `withdrawn`).

    `by` is who gave it; `args` are those of an approval that changed them; `labels` came with the answer. `digest` is
    that of the arguments that an approval covers, and `remember` which later calls it covers too.
    """

    id: str
    outcome: str
    by: str
    reason: str = ""
    args: dict[str, Any] | None = None
    labels: dict[str, str] = {}
    digest: str = ""
    remember: dict[str, Any] | None = None


class MessagesTaken(Event, frozen=True):
    """Messages sent to the running run are in the conversation from its next turn on."""

    texts: tuple[str, ...]


class OutputRejected(Event, frozen=True):
    """The answer is invalid, and the model is asked once more. `message` is what it reads."""

    turn: int
    message: str = ""


class LoopDetected(Event, frozen=True):
    """The model repeats itself; `hard` if that ends the run."""

    count: int
    hard: bool
    tools: tuple[str, ...] = ()


class BudgetExceeded(Event, frozen=True):
    """A call was over the budget of its tool."""

    tool: str
    max_calls: int
    call_index: int


class PolicyDecided(Event, frozen=True):
    """The agent's policy engine was asked about the calls of a turn, before any of them began.

    None restricts nothing. If it `failed`, no call of the turn is made. `metadata` is what else it wants recorded.
    """

    turn: int
    allowed_tools: tuple[str, ...] | None = None
    calls_left: int | None = None
    failures_left: int | None = None
    disable_tools: bool = False
    failed: bool = False
    labels: dict[str, str] = {}
    metadata: Any = None


class FinalForced(Event, frozen=True):
    """The next turn is the last one, without tools, because of the limit in `reason`.

    For a budget, `level` is where it was set, and `unit` what it counts.
    """

    reason: str
    level: str | None = None
    unit: str | None = None


class ContextCompacted(Event, frozen=True):
    """From here on, requests have a summary in place of the older messages. Sizes are estimates, in tokens.

    `inherited` means that it comes from an earlier run of the thread. `usage` and `cost_usd` are those of writing it.
    """

    summary: str
    tokens_before: int = 0
    tokens_after: int = 0
    model: str = ""
    inherited: bool = False
    usage: Usage = Usage()
    cost_usd: float | None = None


class ContextRestored(Event, frozen=True):
    """The summary was undone: requests have the whole conversation again."""

    by: str = ""


class RunPaused(Event, frozen=True):
    """Nothing more begins until the run is resumed. `by` is who asked for that; `labels` are theirs."""

    reason: str = ""
    by: str = ""
    labels: dict[str, str] = {}


class RunResumed(Event, frozen=True):
    """The run continues. `notes`, `by`, `labels` and `message_count` are those of the request to resume it."""

    notes: str = ""
    by: str = ""
    labels: dict[str, str] = {}
    message_count: int = 0


class ModelUsed(Struct, frozen=True, rename="camel"):
    """The model that answered. `reasoning_effort` is None if no effort was sent."""

    id: str = ""
    provider: str = ""
    vendor_model_id: str = ""
    reasoning_effort: str | None = None


class RunEnded(Event, frozen=True):
    """The last event of every run. `cost_usd` is None if the price of some model call is not known.

    `text` is the answer, or its beginning if the run failed. `by` is who cancelled it. `attempts` counts model calls,
    where `turns` counts each turn once. `finish_reason` is why the model stopped, if `text` is its last answer.
    """

    status: Literal["succeeded", "failed", "cancelled"]
    text: str = ""
    error: str = ""
    code: str = ""
    retryable: bool = False
    reason: str = ""
    turns: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = None
    by: str = ""
    labels: dict[str, str] = {}
    """The labels that the run started with."""
    attempts: int = 0
    model: ModelUsed = ModelUsed()
    """Empty if no model was called."""
    finish_reason: str | None = None
    partial_text: str | None = None
    """What the model had written when the run failed; None if it was not writing."""
    provider_error: ProviderFailure | None = None
    """Set if the run failed because a model call did."""
    usage_estimated: bool = False
    """Whether some model call did not report its usage, so that `usage` and `cost_usd` contain an estimate."""


class UnknownEvent(Event, frozen=True):
    """An event that only newer code knows."""

    type: str
    data: Any = None


AnyEvent: TypeAlias = (
    RunStarted
    | TextDelta
    | ThinkingDelta
    | TurnRestarted
    | TurnFinished
    | CallOpened
    | CallClaimed
    | CallFellBack
    | CallFinished
    | ChildStarted
    | ChildEnded
    | CallProgress
    | ProviderCalled
    | Note
    | AwaitOpened
    | AwaitClosed
    | MessagesTaken
    | OutputRejected
    | LoopDetected
    | BudgetExceeded
    | PolicyDecided
    | FinalForced
    | ContextCompacted
    | ContextRestored
    | RunPaused
    | RunResumed
    | RunEnded
    | UnknownEvent
)
