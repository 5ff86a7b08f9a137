"""The code that a run's agent provides besides its tools: hooks that are consulted, and hooks that observe.

The runtime only knows this protocol; `weftline.agent` implements it with hooks. A run that a client described over HTTP
has no such code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from weftline.failure import Bounds, ChildLink, Failure, Hint, ServerData, Telemetry
from weftline.kernel.bodies import AskBody, FinalResult
from weftline.kernel.entries import AwaitKind, CallClosed, Fact, Over, RunEnded, Verdict
from weftline.kernel.seats import RunStopped, SeatForced
from weftline.kernel.state import State
from weftline.messages import Assistant, Message, ToolResult, Usage, UserPart
from weftline.plan import RunPlan
from weftline.providers.base import ModelRequest, ProviderError
from weftline.runtime.agent_code.seats import Seats
from weftline.tools.arguments import InvalidArguments
from weftline.tools.asking import Ask
from weftline.tools.base import Tool, ToolContext, ToolOutput


class PendingCall(Struct, frozen=True):
    """A call that the model asked for, before any decision about it."""

    turn: int
    index: int
    id: str
    name: str
    raw_args: str
    """As the model wrote them."""
    args: bytes
    """As the tool would get them: a JSON object; empty if they do not fit."""
    problem: str
    """Why they do not fit, or "" if they do."""
    tool: Tool | None
    """None if there is no tool of this name."""
    counts: Mapping[str, int] = {}
    """How often each tool has been called in this run: executed, answered, unknown or invalid, but not refused."""
    under_way: Callable[[], Mapping[str, int]] = dict[str, int]
    """How many calls of its turn, by tool, have passed the gates and have no result yet."""
    prepared: bytes = b"{}"
    """The arguments as they came out of the pipeline, before any gate."""
    result_of: Callable[[str], ToolResult | None] = lambda _: None
    """The result of an earlier call of this run, by the call's id."""
    is_blind: Callable[[], bool] = lambda: False
    """Whether the model that asked for it is known to have no vision."""


class Gated(Struct, frozen=True):
    """The decision about a call. `parts` are what the model reads instead of a result, if it is not to begin."""

    verdict: Verdict
    args: bytes
    parts: tuple[UserPart, ...] = ()
    is_error: bool = False
    yields: bool = False
    """A spent budget takes precedence over this."""
    over: Over | None = None
    """Set if the call exceeds a budget that the agent's code keeps."""
    steer: str = ""
    """What the model reads after the results of the turn."""
    ask: Ask | None = None
    """What a person is asked before the call begins, instead of its tool's own question."""
    bounds: Bounds | None = None
    """For an answer that is part of something larger."""
    allowed_by: str = ""
    """Why the question of its tool need not be asked."""
    hint: str = ""
    """What people read about the call, instead of the text from its tool."""


class PendingAwait(Struct, frozen=True):
    """An open question to a person that the agent's code may answer first."""

    id: str
    kind: AwaitKind
    prompt: str
    options: tuple[str, ...]
    call: PendingCall
    parts: tuple[AskBody, ...] = ()
    """Set if there are several questions."""


class CodeAnswer(Struct, frozen=True):
    """An answer by code in place of a person. `args` are those of an approval that changes them, checked by the
    tool.
    """

    outcome: Literal["approved", "denied", "answered"]
    by: str
    args: bytes | None = None
    value: object = None
    reason: str = ""


class PendingTurn(Struct, frozen=True):
    """The calls of a turn, none of which has begun, as a policy engine sees them."""

    turn: int
    calls: tuple[PendingCall, ...]
    tools: tuple[Tool, ...]
    """All tools that the run may use."""
    calls_left: int | None
    failures_left: int | None
    labels: Mapping[str, str]
    unavailable: tuple[str, ...]
    """Tools that were called in the previous turn and did not exist."""
    hint: Hint | None = None
    """The hint of the latest call that failed with one."""


class Judged(Struct, frozen=True):
    """The decision of a policy engine on a turn. None means no restriction."""

    allowed: tuple[str, ...] | None = None
    calls_left: int | None = None
    failures_left: int | None = None
    disable_tools: bool = False
    labels: Mapping[str, str] = {}
    metadata: Mapping[str, Any] = {}


class ChildLimits(Struct, frozen=True):
    """The rest of a run's limits, for the runs that execute its calls."""

    max_depth: int
    max_children: int
    max_cost_nusd: int | None
    """What the run itself may still spend."""
    time_left_us: int | None = None
    """What is left of its time budget."""


class ChildEnd(Struct, frozen=True):
    """The end of the run that executed a call. `text` is its answer, or as much as there is of one."""

    run_id: str
    status: Literal["succeeded", "failed", "cancelled"]
    text: str = ""
    error: str = ""
    code: str = ""
    usage: Usage = Usage()
    turns: int = 0
    elapsed_us: int = 0
    final: FinalResult | None = None
    """The result of the terminal tool that ended it, instead of a text."""


class PastCall(Struct, frozen=True, gc=False):
    """A call of the run that has its result, with its final arguments."""

    head: CallClosed
    args: bytes
    parts: tuple[UserPart, ...]
    failure: Failure | None
    telemetry: Telemetry | None
    bounds: Bounds | None
    server_data: tuple[ServerData, ...]
    child: ChildLink | None


class Inside(Protocol):
    """A run as its agent's code sees it while the run is driven."""

    @property
    def state(self) -> MutableMapping[str, Any]: ...
    @property
    def turn(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def time_left_s(self) -> float | None: ...
    @property
    def calls(self) -> Sequence[PastCall]: ...
    @property
    def now(self) -> State:
        """What is known about the run at this moment."""
        ...

    @property
    def messages(self) -> Sequence[Message]:
        """What has been said so far, with the history of its thread."""
        ...

    @property
    def past(self) -> int:
        """How many of these messages are from before the run."""
        ...

    @property
    def aborted(self) -> asyncio.Event:
        """Set when the run is cancelled."""
        ...

    def ask(self, head: SeatForced | RunStopped) -> bool:
        """Appends what code wants of the run. Returns False if the run does not accept it."""
        ...

    async def watched(self, *, timeout_s: float) -> None:
        """Returns when the watchers have seen everything that happened, or after this time."""
        ...


class CodeFailed(ProviderError):
    """The agent's own code failed, so that the model is not called, or its answer is rejected. `code` is the error
    code.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__("unknown", message, retryable=False, code=code)


class RunCode(Protocol):
    @property
    def context(self) -> object:
        """The context that the agent's code gets about the run."""
        ...

    def enter(self, inside: Inside) -> None:
        """Called when the run is in memory and can be inspected."""
        ...

    @property
    def seats(self) -> Seats:
        """The seats that its runs may have."""
        ...

    @property
    def has_gates(self) -> bool:
        """True if calls go through `ask_gates` before they are announced."""
        ...

    @property
    def sequential(self) -> bool:
        """True if calls are executed one after the other, whatever their tools allow."""
        ...

    async def render(
        self,
        system: str | None,
        *,
        memory: MutableMapping[str, Any],
        messages: Sequence[Message],
        rebuild: bool = False,
    ) -> str | None:
        """The run's instructions, if code contributes to them. Called once per run, with the instructions of its plan.

        `memory` is the state of the run's tools; changes are stored. `messages` are what the run starts from. With
        `rebuild`, the agent's own instructions have changed since, and the run's are built from the new ones.
        """
        ...

    def prepare_context(self, context: ToolContext) -> None:
        """Adds what the agent's tools get in addition to what the runtime provides."""
        ...

    async def shape(self, request: ModelRequest, *, turn: int, attempt: int, memory: Mapping[str, Any]) -> ModelRequest:
        """The request to send, built from the one that the log asks for. Nothing of it is recorded.

        Raises `CodeFailed` if the agent's code prevents the model call.
        """
        ...

    def pop_notes(self) -> tuple[tuple[str, list[bytes]], ...]:
        """Returns, once, the notes that the agent's code wants recorded, by kind: observations that are appended with
        the outcome of the running command.
        """
        ...

    def keeps(self, messages: Sequence[Message], *, memory: Mapping[str, Any]) -> Collection[str]:
        """The ids of the calls whose results no summary may replace."""
        ...

    def received(self, message: Assistant) -> Assistant:
        """The model's message, with the tools' own names."""
        ...

    async def renewed(self, turn: int, provider: str) -> None:
        """The provider has renewed its credentials for this model call. No part of the answer has been passed on
        yet.
        """
        ...

    def streamed(self, kind: str, text: str, *, turn: int) -> None:
        """A piece of the answer has arrived: `text` or `thinking`."""
        ...

    async def answered(self, turn: int, message: Assistant | None, error: ProviderError | None) -> None:
        """A model call has ended, with an answer or with an error. Raises `CodeFailed` to reject it."""
        ...

    async def prepare(self, tool: Tool, args: str) -> bytes:
        """The final arguments of a call. Raises `InvalidArguments`."""
        ...

    def describe_invalid(self, tool: Tool, error: InvalidArguments) -> str:
        """Returns the text for the model about arguments that do not fit."""
        ...

    async def ask_gates(self, call: PendingCall, context: ToolContext) -> Gated: ...

    async def judge(self, turn: PendingTurn) -> Judged:
        """The decision of the agent's policy engine. Any exception blocks the calls of the turn."""
        ...

    async def answer_await(self, asked: PendingAwait) -> CodeAnswer | None:
        """The agent's code's answer to a question for people; None leaves it to them."""
        ...

    async def execute(
        self, call: PendingCall, context: ToolContext, invoke: Callable[[], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        """Executes a call through `invoke`, and returns what the model is to read."""
        ...

    async def plan_child(self, call: PendingCall, context: ToolContext, *, limits: ChildLimits) -> RunPlan:
        """The plan of the run that executes a call. Raises `ToolFailed` if there can be none."""
        ...

    async def finish_child(self, call: PendingCall, context: ToolContext, end: ChildEnd) -> ToolOutput:
        """Returns the text for the model about the outcome of a child run."""
        ...

    async def check_output(self, text: str) -> str:
        """Returns the text for the model if it has to answer again, or "" if the answer is accepted."""
        ...

    def about_to_drive(self, turn: int, *, calls: int, unclosed: int) -> None:
        """Called before the run is driven, with the calls of this turn, some of which may have no result yet."""
        ...

    @property
    def watches(self) -> bool:
        """True if `on_facts` calls code of the agent, which may take its time. If not, it returns at once."""
        ...

    @property
    def may_be_overtaken(self) -> bool:
        """True if a run whose time is up continues although `on_facts` has not returned."""
        ...

    async def on_facts(self, facts: Sequence[Fact], *, messages: Sequence[Message]) -> None:
        """These facts were appended, in this order. No command starts before this returns, but further facts may be
        appended. `messages` includes the facts, and grows with later ones.
        """
        ...

    def ended(self, fact: RunEnded, body: bytes, memory: Mapping[str, Any]) -> None:
        """The run has ended, and this is durable. Returns at once: nothing waits for what it starts."""
        ...

    def leave(self) -> None:
        """The run leaves this process's memory. May be called twice. Returns at once."""
        ...
