"""The points of a run at which an agent's own code is called, in one table.

    @agent.on(ToolGate)
    async def only_here(gate: ToolGate, context: RunContext[str]) -> None:
        if gate.tool == "shell" and ".." in gate.args["command"]:
            gate.block(f"Stay inside {context.deps}.")

There are three kinds. A *gate* decides something, and its decision is in the log. A *shaper* edits one request or one
result; of a request nothing is recorded. A *watcher* only looks. What a point lets a hook change is in `settable`;
anything else raises `AttributeError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias

from weftline import prompts
from weftline.failure import Bounds, Failure, ServerData
from weftline.kernel.bodies import AskBody
from weftline.kernel.control import ANSWERS
from weftline.kernel.entries import AwaitKind
from weftline.messages import Assistant, Message, ToolCall, ToolResult, Usage, UserPart
from weftline.providers.base import ProviderError, ToolChoice
from weftline.tools.asking import Ask, checked_approvers, describe_invalid
from weftline.tools.coercion import Coercion

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=Any)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")

Kind: TypeAlias = Literal["gate", "shaper", "watcher"]

POINTS: dict[str, type[Point]] = {}
"""Every point by its name: those of a run in the order in which they occur, then those of what a run uses."""

OTHER_NAMES: dict[str, str] = {
    "after_system_message": "system_rendered",
    "after_tool_call_failure": "tool_after_failure",
    "after_tool_call_success": "tool_after_success",
    "agent_abort": "run_cancelled",
    "agent_done": "run_ended",
    "before_store_tool_result": "tool_transform",
    "budget_exceeded": "output_budget_exceeded",
    "context_transform": "context_built",
    "filter_messages": "rows_loaded",
    "oauth_refresh": "oauth_refreshed",
    "output": "output_ready",
    "prefilter_llm_history": "context_built",
    "run_end": "run_ended",
    "run_messages": "messages_taken",
    "run_start": "run_started",
    "steer_inject": "message_injected",
    "stream_end": "stream_ended",
    "stream_text": "text_streamed",
    "stream_thinking": "thinking_streamed",
    "system_before": "system_rendered",
    "system_transform": "system_rendered",
    "tool_results_after": "results_stored",
    "turn_after": "after_model",
    "turn_before": "before_model",
    "usage": "usage_counted",
    "validation_coerce": "arguments_coerced",
    "validation_reject": "arguments_rejected",
}
"""Other frameworks' names for these points."""


class Point:
    """The argument of a hook."""

    name: ClassVar[str]
    kind: ClassVar[Kind] = "watcher"
    settable: ClassVar[frozenset[str]] = frozenset()
    _made: ClassVar[bool] = False

    def __init_subclass__(cls, name: str = "", kind: Kind = "watcher", settable: tuple[str, ...] = ()) -> None:
        super().__init_subclass__()
        if name:
            cls.name, cls.kind, cls.settable = name, kind, frozenset(settable)
            POINTS[name] = cls

    def __post_init__(self) -> None:
        object.__setattr__(self, "_made", True)

    def __setattr__(self, name: str, value: object) -> None:
        if self._made and name not in self.settable:
            can = ", ".join(sorted(self.settable))
            what = f"what can be set is {can}" if can else "it only reports what happened"
            raise AttributeError(f"a hook cannot set {name!r} of {self.name}: {what}")
        object.__setattr__(self, name, value)


# A run and its turns


@dataclass(eq=False)
class RunStarted(Point, name="run_started"):
    """The run is about to call its model for the first time, ever or in this process."""

    resumed: bool
    """Whether an earlier process began it."""


@dataclass(eq=False)
class MessagesTaken(Point, name="messages_taken"):
    """The next turn reads new messages: first the prompt, later messages sent to the running run.

    A run that continues its thread without a prompt has no new message.
    """

    count: int


@dataclass(eq=False)
class MessageInjected(Point, name="message_injected"):
    """A message to the running run that is now read: steering or a follow-up."""

    text: str


@dataclass(eq=False)
class SystemRendered(Point, name="system_rendered", kind="shaper", settable=("system",)):
    """The instructions of one request."""

    turn: int
    system: str


@dataclass(eq=False)
class RowsLoaded(Point, name="rows_loaded", kind="shaper", settable=("messages",)):
    """The conversation as the log has it, before anything is left out for this request."""

    turn: int
    messages: Sequence[Message]


@dataclass(eq=False)
class ContextBuilt(Point, name="context_built", kind="shaper", settable=("messages",)):
    """The messages of one request. Calls that lose their result here, or results their call, are left out."""

    turn: int
    messages: Sequence[Message]


@dataclass(eq=False)
class BeforeModel(
    Point,
    name="before_model",
    kind="shaper",
    settable=(
        "reasoning",
        "max_output_tokens",
        "temperature",
        "top_p",
        "stop",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
    ),
):
    """The settings of one request. `tools` has the names of the tools on offer: a hook may leave some out."""

    turn: int
    attempt: int
    model: str
    messages: Sequence[Message]
    system: str | None
    reasoning: int | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    stop: Sequence[str]
    tools: tuple[str, ...]
    tool_choice: ToolChoice = "auto"
    """`auto`, `none`, `required`, or `("tool", NAME)`."""
    parallel_tool_calls: bool | None = None
    """Whether the model may ask for several calls at once; None leaves that to the model."""


@dataclass(eq=False)
class OAuthRefreshed(Point, name="oauth_refreshed"):
    """The provider has renewed its credentials for a model call."""

    turn: int
    provider: str


@dataclass(eq=False)
class TextStreamed(Point, name="text_streamed"):
    """A piece of the answer. Hooks of this point and the next are plain functions: nobody waits for them."""

    turn: int
    text: str


@dataclass(eq=False)
class ThinkingStreamed(Point, name="thinking_streamed"):
    turn: int
    text: str


@dataclass(eq=False)
class StreamEnded(Point, name="stream_ended"):
    """The text of an answer is complete. There is none for an answer without text."""

    turn: int
    text: str


@dataclass(eq=False)
class AfterModel(Point, name="after_model"):
    """A model call has ended: with a message, or with an error."""

    turn: int
    message: Assistant | None
    error: ProviderError | None = None


@dataclass(eq=False)
class UsageCounted(Point, name="usage_counted"):
    """The usage of a model call, even of one that failed."""

    turn: int
    attempt: int
    usage: Usage
    cost_usd: float | None


@dataclass(eq=False)
class CallPoint(Point):
    """Common fields of the points of a call. `tool` is its own name, `display_name` the model's name for it."""

    turn: int
    call_id: str
    tool: str
    display_name: str = field(default="", kw_only=True)


@dataclass(eq=False)
class ToolGate(CallPoint, name="tool_gate", kind="gate", settable=("args", "display_hint")):
    """A call that the model asked for, before it begins.

    `args` are as the tool would get them: coerced, with defaults. `issues` says why they do not fit, if they do not;
    the refusal itself comes after the gates, so that a gate may still answer for such a call, or for an unknown tool.
    """

    args: Mapping[str, Any]
    raw_args: str
    issues: str = ""
    known: bool = True
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often each tool was called in this run so far."""
    display_hint: str = ""
    """What people read about the call in progress, instead of the tool's own hint."""

    _blocked: str | None = None
    _answer: object = None
    _answered: bool = False
    _ask: Ask | None = None

    def block(self, reason: str = prompts.calls.BLOCKED_WITHOUT_REASON) -> None:
        """The tool is not called; the model reads the reason. This beats any answer."""
        object.__setattr__(self, "_blocked", str(reason or prompts.calls.BLOCKED_WITHOUT_REASON))

    def answer(self, result: object) -> None:
        """The tool is not called; the model reads `result`, anything that a tool may return."""
        object.__setattr__(self, "_answer", result)
        object.__setattr__(self, "_answered", True)

    def ask(self, question: str, *, timeout_s: float | None = None, approvers: Iterable[str] | None = None) -> None:
        """A person is asked whether the call may begin, unless a gate blocks or answers it.

        Only `approvers` may decide, under the names that the log uses, such as `user:…` and `key:…`.
        """
        named = checked_approvers(approvers, where="gate.ask")
        object.__setattr__(self, "_ask", Ask(str(question), timeout_s=timeout_s, approvers=named))

    @property
    def asks(self) -> Ask | None:
        """The question to a person, if a gate has asked for approval."""
        return self._ask

    @property
    def decided(self) -> bool:
        return self._blocked is not None or self._answered

    @property
    def blocked(self) -> str | None:
        """The reason, if a gate has blocked the call."""
        return self._blocked

    @property
    def answered(self) -> tuple[object] | None:
        """The answer, if a gate has given one."""
        return (self._answer,) if self._answered else None


@dataclass(eq=False)
class ToolUnknown(CallPoint, name="tool_unknown", kind="shaper", settable=("result", "suppress_error")):
    """The model called a tool that the agent does not have. `result` is what the model reads.

    `tool_error` follows, unless `suppress_error` is set.
    """

    result: str
    suppress_error: bool = False


@dataclass(eq=False)
class ArgumentsRejected(CallPoint, name="arguments_rejected"):
    issues: str


class AwaitDecision(NamedTuple):
    """A decision of a hook in a person's place."""

    outcome: Literal["approved", "denied", "answered"]
    args: Mapping[str, Any] | None = None
    value: object = None
    reason: str = ""


@dataclass(eq=False)
class AwaitGate(Point, name="await_gate", kind="gate"):
    """A question to people, before they are asked. The first hook that answers decides; doing nothing passes.

    `about` is `confirm` (may the call begin?), `question`, `plan`, or `doubt`: a crash cut the call off, and it either
    happened (`answer` with its result), did not (`approve` carries it out again), or nobody knows (`deny`).
    """

    turn: int
    id: str
    about: AwaitKind
    question: str
    call_id: str
    tool: str
    args: Mapping[str, Any]
    options: tuple[str, ...] = ()
    display_name: str = ""
    parts: tuple[AskBody, ...] = ()
    """For several questions: each with its `prompt`, `options` and `multiple`."""
    _decision: AwaitDecision | None = None

    def approve(self, args: Mapping[str, Any] | None = None, *, comment: str = "") -> None:
        """The call may begin, optionally with other arguments, which must fit its tool.

        A plan is approved, optionally changed (`{"plan": …}`); the model reads the comment.
        """
        if args is not None and self.about not in ("confirm", "plan"):
            raise ValueError(f"an await of the kind {self.about!r} has no arguments to change")
        self._decide(AwaitDecision("approved", args, reason=str(comment)))

    def deny(self, reason: str = "") -> None:
        """The call does not begin; the model reads the reason. A question is left unanswered."""
        self._decide(AwaitDecision("denied", reason=str(reason)))

    def answer(self, value: object) -> None:
        """The answer to a question (to several, a list), a comment on a plan, or the result of a call in doubt."""
        if self.parts and (problem := describe_invalid(AskBody("", parts=self.parts), value)):
            raise ValueError(f"the answer {problem}")
        if self.about == "question" and self.options and not isinstance(value, list) and value not in self.options:
            raise ValueError(f"the answer must be one of {', '.join(map(repr, self.options))}, not {value!r}")
        self._decide(AwaitDecision("answered", value=value))

    def _decide(self, decision: AwaitDecision) -> None:
        if decision.outcome not in ANSWERS[self.about]:
            can = " or ".join(sorted(ANSWERS[self.about]))
            raise ValueError(f"an await of the kind {self.about!r} cannot be {decision.outcome}: it is {can}")
        object.__setattr__(self, "_decision", decision)

    @property
    def decision(self) -> AwaitDecision | None:
        return self._decision


@dataclass(eq=False)
class ArgumentsCoerced(CallPoint, name="arguments_coerced"):
    """Arguments of the call were changed to fit the tool."""

    coercions: tuple[Coercion, ...]


@dataclass(eq=False)
class ToolBefore(CallPoint, name="tool_before"):
    """The call is about to begin."""

    args: Mapping[str, Any]
    attempt: int
    prior_content: str | None = None
    """What a `write_file` is about to replace, if there is such a file."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    coercions: tuple[Coercion, ...] = ()


@dataclass(eq=False)
class ToolError(CallPoint, name="tool_error", kind="shaper", settable=("result",)):
    """The tool raised or reported an error. `result` is what the model reads."""

    result: tuple[UserPart, ...]
    error: BaseException | None = None
    failure: Failure | None = None
    """Its kind, the tool's suggested next step, its hint and its causes, as far as they are known."""


@dataclass(eq=False)
class ToolAfterSuccess(CallPoint, name="tool_after_success", kind="shaper", settable=("result", "is_error")):
    """The tool succeeded. With `is_error`, its call has failed all the same."""

    result: tuple[UserPart, ...]
    is_error: bool = False
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(eq=False)
class ToolAfterFailure(CallPoint, name="tool_after_failure", kind="shaper", settable=("result", "is_error")):
    """The tool failed. Without `is_error`, its call has succeeded all the same."""

    result: tuple[UserPart, ...]
    failure: Failure | None = None
    is_error: bool = True
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(eq=False)
class ToolTransform(CallPoint, name="tool_transform", kind="shaper", settable=("result", "is_error")):
    """The result of a call, before it is stored. `output_bytes` is its size before any change."""

    result: tuple[UserPart, ...]
    is_error: bool
    output_bytes: int
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(eq=False)
class ToolResultStored(CallPoint, name="tool_result_stored"):
    """A large result was written to a file; the conversation has a stub."""

    output_bytes: int
    stub: str


@dataclass(eq=False)
class ToolAfter(CallPoint, name="tool_after"):
    """The result of a call as the model will read it. `output_bytes` is its size.

    A model without vision reads text instead of each image; the image itself is stored.
    """

    result: tuple[UserPart, ...]
    is_error: bool
    output_bytes: int
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    bounds: Bounds | None = None
    """Of a part of something larger."""
    server_data: tuple[ServerData, ...] = ()
    """Additional data of the call, which no model reads."""


@dataclass(eq=False)
class ToolBudgetExceeded(Point, name="tool_budget_exceeded"):
    """A call was beyond the budget of its tool: the `call_index`th, where `max_calls` are allowed."""

    tool: str
    max_calls: int
    call_index: int
    display_name: str = ""


@dataclass(eq=False)
class ResultsStored(Point, name="results_stored"):
    """Every call of the turn has its result, in the order of the calls."""

    turn: int
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()


@dataclass(eq=False)
class OutputBudgetExceeded(Point, name="output_budget_exceeded"):
    """The results of a turn are larger than `tool_output_budget_bytes`. The model is told; nothing is cut."""

    turn: int
    bytes: int
    budget: int


# Endings


@dataclass(eq=False)
class OutputReady(Point, Generic[OutputT], name="output_ready", kind="gate"):
    """The answer, before the run ends with it."""

    output: OutputT
    text: str
    _rejected: str | None = None

    def reject(self, message: str) -> None:
        """Asks the model again; it reads `message`."""
        object.__setattr__(self, "_rejected", str(message or prompts.turns.ANSWER_REJECTED))

    @property
    def rejected(self) -> str | None:
        return self._rejected


@dataclass(eq=False)
class TurnEnded(Point, name="turn_ended"):
    """A turn and its calls are done."""

    turn: int


@dataclass(eq=False)
class RunCancelled(Point, name="run_cancelled"):
    """The run was cancelled; `run_ended` follows."""

    reason: str


@dataclass(eq=False)
class RunEnded(Point, name="run_ended"):
    """The run has ended, however it did."""

    status: Literal["succeeded", "failed", "cancelled"]
    code: str
    turns: int
    usage: Usage
    cost_usd: float | None
