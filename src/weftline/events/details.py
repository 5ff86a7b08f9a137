"""Details of a run: what its events leave out. Programs import them from `weftline.details`.

Like an event, each detail is made from one entry of the log, and several may be made from the same entry: `key` is
unique in the run, and the same for every reader. Nothing is stored for them, and a reader who does not ask for them
costs nothing.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import field

from weftline.events.classes import Event
from weftline.messages import Usage

Phase: TypeAlias = Literal[
    "prompted", "planning", "executing_tools", "synthesizing", "succeeded", "failed", "cancelled"
]


class Detail(Event, frozen=True, kw_only=True):
    """`at` is in microseconds since the epoch, UTC. `turn_id` is the one that the run was started with, or its id."""

    key: str = ""
    at: int = 0
    agent: str | None = None
    thread: str | None = None
    turn_id: str = ""


class PhaseChanged(Detail, frozen=True, tag="run_phase_changed"):
    """The run enters a new phase.

    It is `prompted` when it is created, `planning` whenever a model is called, `executing_tools` when a turn has asked
    for calls, and at its end its final status. A forced final turn is `synthesizing`.
    """

    phase: Phase
    turn: int = 0
    attempt: int = 0


class UsageRecorded(Detail, frozen=True, tag="usage"):
    """The usage of one model call, including failed and repeated ones. Together they are the run's own usage.

    `cache_read` and `cache_write` are parts of `input`. `model_class` is which of the run's models was called:
    `default`, `fallback`, or `summary` for one that summarized the conversation. `estimated` means that the provider
    did not report usage.
    """

    model: str
    model_class: Literal["default", "fallback", "summary"] = "default"
    input: int = 0
    output: int = 0
    total: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    turn: int = 0
    attempt: int = 0
    estimated: bool = False
    cost_usd: float | None = None

    @property
    def usage(self) -> Usage:
        return Usage(self.input, self.cache_read, self.reasoning, self.output, self.cache_write)


class AwaitClarification(Detail, frozen=True, tag="await_clarification"):
    """A person is asked for what a failed call lacks."""

    id: str
    question: str
    missing_fields: tuple[str, ...] = ()
    restrict_to_tool: str = ""
    example_input: dict[str, Any] | None = None
    name: str = ""
    call_id: str = ""


class AwaitQuestions(Detail, frozen=True, tag="await_questions"):
    """A person is asked something, and the answer is the result of the call."""

    id: str
    question: str
    options: tuple[str, ...] = ()
    multiple: bool = False
    name: str = ""
    call_id: str = ""
    args: dict[str, Any] = field(default_factory=dict[str, Any])


class AwaitConfirmation(Detail, frozen=True, tag="await_confirmation"):
    """A person is asked whether a call may begin, or whether the run may continue. `kind` is that of `AwaitOpened`."""

    id: str
    kind: str
    question: str
    name: str = ""
    call_id: str = ""
    args: dict[str, Any] = field(default_factory=dict[str, Any])


class AwaitExternalTools(Detail, frozen=True, tag="await_external_tools"):
    """Calls of a turn are to be executed outside. `items` has those that are open.

    Their results are submitted together, or each under its own id.
    """

    id: str
    items: tuple[dict[str, Any], ...] = ()


class Paused(Detail, frozen=True, tag="run_paused"):
    """The run waits: everything else of its turn is done, and the `awaits` have no answer yet.

    These are the ids of awaits, and of client-side calls. A pause that somebody requested is a different event.
    """

    reason: str = "await"
    requested_by: str = "runtime"
    awaits: tuple[str, ...] = ()


class Resumed(Detail, frozen=True, tag="run_resumed"):
    """The last of these answers has arrived, or is no longer needed."""

    notes: str = "await_completed"
    requested_by: str = "runtime"


class ToolAuthorization(Detail, frozen=True, tag="tool_authorization"):
    """Somebody has decided about a call that needed a decision. `summary` is what they were asked."""

    id: str
    name: str
    call_id: str
    approved: bool
    summary: str = ""
    approved_by: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])


class ChildRunLinked(Detail, frozen=True, tag="child_run_linked"):
    """A call is executed by a run of its own, of the agent `child_agent`."""

    name: str
    call_id: str
    child_id: str
    child_agent: str = ""


class ToolCallUpdated(Detail, frozen=True, tag="tool_call_updated"):
    """A call's code, or its child run, has asked for further calls: how many are expected below it so far."""

    call_id: str
    name: str
    expected_children: int


class ToolCallArgsDelta(Detail, frozen=True, tag="tool_call_args_delta"):
    """A piece of a call's arguments as the model writes them, in runs that ask for these (`stream_arguments`).

    `call_id` is the provider's id for the call, and `name` the tool as the model knows it.
    """

    call_id: str
    name: str
    delta: str
    turn: int = 0
    attempt: int = 1


class ToolOutputDelta(Detail, frozen=True, tag="tool_output_delta"):
    """A piece of a tool's output while it runs: what it emits as `output`."""

    name: str
    call_id: str
    stream: str = ""
    delta: str = ""


class PlannerNote(Detail, frozen=True, tag="planner_note"):
    """A note about a turn from a hook or a provider. No model reads it."""

    text: str
    labels: dict[str, str] = field(default_factory=dict[str, str])
    turn: int = 0


class PromptRendered(Detail, frozen=True, tag="prompt_rendered"):
    """A prompt was rendered. `scope` is what this version of it applies to: a `thread`, `labels`, both or neither."""

    prompt_id: str
    version: str
    scope: dict[str, Any] = field(default_factory=dict[str, Any])


AnyDetail: TypeAlias = (
    PhaseChanged
    | UsageRecorded
    | AwaitClarification
    | AwaitQuestions
    | AwaitConfirmation
    | AwaitExternalTools
    | Paused
    | Resumed
    | ToolAuthorization
    | ChildRunLinked
    | ToolCallUpdated
    | ToolCallArgsDelta
    | ToolOutputDelta
    | PlannerNote
    | PromptRendered
)
