"""What a run's agent brings along besides its tools: code that is asked, and code that watches.

The runtime knows this protocol only; `weftline.agent` implements it with hooks. A run that a client described over HTTP
has none of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from weftline.failure import Failure, Hint
from weftline.kernel.bodies import AskBody, FinalResult
from weftline.kernel.entries import AwaitKind, CallClosed, Fact, Over, RunEnded, Verdict
from weftline.messages import Assistant, Message, ToolResult, Usage, UserPart
from weftline.outcome import Bounds, ChildLink, ServerData, Telemetry
from weftline.plan import RunPlan
from weftline.providers.base import ModelRequest, ProviderError
from weftline.tools.arguments import InvalidArguments
from weftline.tools.asking import Ask
from weftline.tools.base import Tool, ToolContext, ToolOutput


class PendingCall(Struct, frozen=True):
    """A call that the model asked for, before anything is decided about it."""

    turn: int
    index: int
    id: str
    name: str
    raw_args: str
    """As the model wrote them."""
    args: bytes
    """As the tool would get them: a JSON object; empty if they do not fit."""
    problem: str
    """Why they do not fit; "" if they do."""
    tool: Tool | None
    """None if there is no tool of this name."""
    counts: Mapping[str, int] = {}
    """How often each tool was called in this run so far: carried out, answered, unknown or invalid, not refused."""
    under_way: Mapping[str, int] = {}
    """How many calls of its turn, by tool, have passed the gates and have no result yet."""
    prepared: bytes = b"{}"
    """The arguments as they came out of the pipeline, before any gate."""
    result_of: Callable[[str], ToolResult | None] = lambda _: None
    """The result of an earlier call of this run, by the call's id."""
    is_blind: Callable[[], bool] = lambda: False
    """Whether the model that asked for it is known to have no vision."""


class Gated(Struct, frozen=True):
    """What is to become of a call. `parts` are what the model reads in place of a result, if it is not to begin."""

    verdict: Verdict
    args: bytes
    parts: tuple[UserPart, ...] = ()
    is_error: bool = False
    yields: bool = False
    """A spent budget goes before this."""
    over: Over | None = None
    """The call is beyond a budget that the agent's code keeps."""
    steer: str = ""
    """What the model reads after the results of the turn."""
    ask: Ask | None = None
    """What a person is asked before the call begins, in place of what its tool would ask."""
    bounds: Bounds | None = None
    """Of an answer that is a part of something larger."""
    allowed_by: str = ""
    """Why nobody has to be asked what its tool would ask."""
    hint: str = ""
    """What people read about the call, in place of what its tool says."""


class PendingAwait(Struct, frozen=True):
    """An open question to a person, as the agent's code is asked about it first."""

    id: str
    kind: AwaitKind
    prompt: str
    options: tuple[str, ...]
    call: PendingCall
    parts: tuple[AskBody, ...] = ()
    """If these are several questions."""


class CodeAnswer(Struct, frozen=True):
    """What code says in a person's place. `args` are those of an approval that changes them, checked by the tool."""

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
    """All that the run may use."""
    calls_left: int | None
    failures_left: int | None
    labels: Mapping[str, str]
    unavailable: tuple[str, ...]
    """What was called in the turn before, and was not there."""
    hint: Hint | None = None
    """That of the latest call that failed with one."""


class Judged(Struct, frozen=True):
    """What a policy engine says about a turn. None restricts nothing."""

    allowed: tuple[str, ...] | None = None
    calls_left: int | None = None
    failures_left: int | None = None
    disable_tools: bool = False
    labels: Mapping[str, str] = {}
    metadata: Mapping[str, Any] = {}


class ChildLimits(Struct, frozen=True):
    """What a run leaves to the runs that carry out its calls."""

    max_depth: int
    max_children: int
    max_cost_nusd: int | None
    """What it may still spend itself."""
    time_left_us: int | None = None
    """Of its time budget."""


class ChildEnd(Struct, frozen=True):
    """How the run that carried out a call ended. `text` is its answer, or what there was of one."""

    run_id: str
    status: Literal["succeeded", "failed", "cancelled"]
    text: str = ""
    error: str = ""
    code: str = ""
    usage: Usage = Usage()
    turns: int = 0
    elapsed_us: int = 0
    final: FinalResult | None = None
    """What the terminal tool that it ended with has returned, in place of a text."""


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
    """A run as its agent's code sees it while it is carried out."""

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


class CodeFailed(ProviderError):
    """The agent's own code failed, so that its model is not asked, or its answer not taken. `code` says what failed."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__("unknown", message, retryable=False, code=code)


class RunCode(Protocol):
    @property
    def context(self) -> object:
        """What the agent's code is told about the run."""
        ...

    def enter(self, inside: Inside) -> None:
        """The run is in memory from here on, and can be looked at."""
        ...

    @property
    def gates(self) -> bool:
        """Whether calls are shown to `gate` before they are announced."""
        ...

    @property
    def sequential(self) -> bool:
        """Whether calls are carried out one after the other, whatever their tools allow."""
        ...

    async def render(
        self,
        system: str | None,
        *,
        memory: MutableMapping[str, Any],
        messages: Sequence[Message],
        rebuild: bool = False,
    ) -> str | None:
        """The run's instructions, if code has a part in them; asked once per run, with those of its plan.

        `memory` is what the run's tools remember; changes are stored. `messages` are what the run starts from. It is
        asked to `rebuild` when the agent's own instructions have changed since, and makes the run's from those.
        """
        ...

    def prepare_context(self, context: ToolContext) -> None:
        """Adds what the agent's tools get besides what the runtime knows."""
        ...

    async def shape(self, request: ModelRequest, *, turn: int, attempt: int, memory: Mapping[str, Any]) -> ModelRequest:
        """The request that is sent, made from the one that the log asks for. Nothing of it is recorded.

        Raises `CodeFailed` if the agent's code keeps the model from being asked.
        """
        ...

    def taken_notes(self) -> tuple[tuple[str, list[bytes]], ...]:
        """What the agent's code wants to be on record, by kind: observations that are written down with the outcome
        of the command that is under way. They are given once.
        """
        ...

    def keeps(self, messages: Sequence[Message], *, memory: Mapping[str, Any]) -> Collection[str]:
        """The calls, by id, whose results no summary may take the place of."""
        ...

    def received(self, message: Assistant) -> Assistant:
        """The model's message, with the tools' own names."""
        ...

    async def renewed(self, turn: int, provider: str) -> None:
        """The provider has renewed its credentials for this model call. Nothing of the answer has been told yet."""
        ...

    def streamed(self, kind: str, text: str, *, turn: int) -> None:
        """A piece of the answer has come: `text` or `thinking`."""
        ...

    async def answered(self, turn: int, message: Assistant | None, error: ProviderError | None) -> None:
        """A model call has ended, with an answer or with an error. Raises `CodeFailed` if it is not to be taken."""
        ...

    async def prepare(self, tool: Tool, args: str) -> bytes:
        """The final arguments of a call. Raises `InvalidArguments`."""
        ...

    def misfit(self, tool: Tool, error: InvalidArguments) -> str:
        """What the model reads about arguments that do not fit."""
        ...

    async def gate(self, call: PendingCall, context: ToolContext) -> Gated: ...

    async def judge(self, turn: PendingTurn) -> Judged:
        """What the agent's policy engine says. Whatever it raises blocks the calls of the turn."""
        ...

    async def answer_await(self, asked: PendingAwait) -> CodeAnswer | None:
        """What the agent's code says to a question for people; None if it has nothing to say."""
        ...

    async def execute(
        self, call: PendingCall, context: ToolContext, invoke: Callable[[], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        """Carries out a call by `invoke`, and returns what the model is to read."""
        ...

    async def plan_child(self, call: PendingCall, context: ToolContext, *, limits: ChildLimits) -> RunPlan:
        """What the run is to do that carries out a call. Raises `ToolFailed` if there can be none."""
        ...

    async def finish_child(self, call: PendingCall, context: ToolContext, end: ChildEnd) -> ToolOutput:
        """What the model is to read of what a child run came to."""
        ...

    async def check_output(self, text: str) -> str:
        """What the model reads if it has to answer again; "" if the answer is taken."""
        ...

    def carry_on(self, turn: int, *, calls: int, unclosed: int) -> None:
        """The run is about to be driven, with the calls of this turn, some of which may have no result yet."""
        ...

    async def happened(self, facts: Sequence[Fact], *, messages: Sequence[Message]) -> None:
        """These facts were appended, in this order; the run goes on when this returns. `messages` includes them."""
        ...

    def ended(self, fact: RunEnded, body: bytes, memory: Mapping[str, Any]) -> None:
        """The run has ended, however it did; the fact is durable. Returns at once: nobody waits for what follows."""
        ...

    def leave(self) -> None:
        """The run leaves this process's memory. May be called twice. Returns at once."""
        ...
