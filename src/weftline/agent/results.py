"""The result of a run, and the exceptions for runs that did not succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal

from msgspec import Struct

from weftline.errors import WeftlineError, short_traceback
from weftline.events.classes import RETRYABLE
from weftline.failure import Bounds, ChildLink, Failure, ProviderFailure, ServerData, Telemetry
from weftline.kernel.notes import RunNote
from weftline.messages import Assistant, Message, Usage
from weftline.providers.base import ProviderError
from weftline.text.suggestions import missing_attribute

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    OutputT = TypeVar("OutputT", default=str)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")


class CallRecord(Struct, frozen=True, kw_only=True):
    """A closed call of a run."""

    id: str
    name: str
    args: dict[str, Any]
    ok: bool
    result: str
    how: str
    turn: int
    parent_call: str | None = None
    """The id of the call whose code made this call; None if the model made it."""
    failure: Failure | None = None
    """For a failed call: its kind, the suggested recovery, a hint and the causes."""
    telemetry: Telemetry = Telemetry(0)
    """How long it took and what it used."""
    bounds: Bounds | None = None
    """Which part of the whole its result covers."""
    server_data: tuple[ServerData, ...] = ()
    """All additional data of the call, whoever it is for."""
    child: ChildLink | None = None
    """The run that executed it, if it is a subagent's."""
    result_omitted: bool = False
    """Whether the result was left out for a hook because it is too large; see `RunContext.result_of`."""
    result_omitted_reason: str | None = None
    """`workflow_budget` if it was left out."""
    result_bytes: int = 0
    """The size of the whole result."""


class RunResult(Struct, Generic[OutputT], frozen=True, kw_only=True):
    """The outcome of a run. `cost_usd` is None if the price of some model call is not known.

    `usage` and `cost_usd` include its child runs, at any depth; `own_usage` is that of its own model calls.

    `messages` is the conversation, history first, without instructions; `new_messages` are this run's.
    """

    run_id: str
    status: Literal["succeeded", "failed", "cancelled"]
    text: str
    value: OutputT | None = None
    messages: tuple[Message, ...] = ()
    new_messages: tuple[Message, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    """In the order in which the model made them. Calls that a call's code made come before that call."""
    usage: Usage = Usage()
    own_usage: Usage = Usage()
    cost_usd: float | None = None
    turns: int = 0
    attempts: int = 0
    elapsed_ms: int = 0
    """From creation to end, in wall-clock time."""
    error: str = ""
    code: str = ""
    reason: str = ""
    agent: str | None = None
    """The name of the run's agent, if it has one."""
    final: Assistant | None = None
    """The message that the run ended with; None if a terminal tool ended it, or there was none."""
    final_call: CallRecord | None = None
    """For a child run that a terminal tool ended: that call, whose result is the child's."""
    notes: tuple[RunNote, ...] = ()
    """What hooks and providers noted about the last turn."""
    provider_failure: ProviderFailure | None = None
    """For a run that a failed model call ended: what the provider reported."""

    def __repr__(self) -> str:
        """One line, without the conversation, which can be megabytes."""
        return f"<RunResult {self._facts}>"

    def __str__(self) -> str:
        text = self.text if self.status == "succeeded" else self.error
        return f"{text}\n\n[{self._facts}]" if text else f"[{self._facts}]"

    @property
    def _facts(self) -> str:
        of = {"turn": self.turns, "call": len(self.calls), "token": self.usage.input + self.usage.output}
        counts = [f"{count:,} {name}{'s' * (count != 1)}" for name, count in of.items() if count]
        cost = [] if self.cost_usd is None else [f"${self.cost_usd:.4f}"]
        code = f" ({self.code})" if self.code else ""
        return ", ".join([f"{self.run_id} {self.status}{code}", *counts, *cost, f"{self.elapsed_ms / 1000:.1f} s"])

    if not TYPE_CHECKING:  # a type checker would assume that every name exists

        def __getattr__(self, name):
            with short_traceback:
                raise missing_attribute("result", self, name)

    @property
    def output(self) -> OutputT:
        """The answer, as the agent's output type. Raises what `raise_for_status` does."""
        self.raise_for_status()
        return self.value  # type: ignore[return-value]

    def raise_for_status(self) -> None:
        """Raises `RunCancelled` or `RunFailed` unless the run succeeded."""
        if self.status == "cancelled":
            raise RunCancelled(self)
        if self.status == "failed":
            raise failure(self)


class RunError(WeftlineError):
    """A run did not succeed. `result` is its partial result."""

    def __init__(self, message: str, result: RunResult[Any], *, code: str) -> None:
        Exception.__init__(self, message)
        self.message = message
        self.code = code
        self.hint = None
        self.details: dict[str, Any] = {}
        self.result = result

    @property
    def status(self) -> int:
        return 500

    @property
    def retryable(self) -> bool:
        return self.code in RETRYABLE


class RunFailed(RunError):
    """The run failed. `code` says why: an error class of the provider, or a limit of the run."""


class ProviderFailed(RunFailed):
    """The model's provider refused or failed.

    In the process where it happened, the provider's error is the `__cause__`.
    """

    @property
    def provider(self) -> str | None:
        """The name of the provider, if it is known."""
        return self.__cause__.provider if isinstance(self.__cause__, ProviderError) else None

    @property
    def provider_code(self) -> str | None:
        """The provider's own code for the failure, if it sent one."""
        return self.__cause__.code if isinstance(self.__cause__, ProviderError) else None


class ContextExceeded(ProviderFailed):
    """The conversation no longer fits the model."""


class OutputTruncated(RunFailed):
    """The model ran out of output tokens in the middle of its answer."""


class AgentFailed(RunFailed):
    """The agent's own code failed.

    Its deps, tools or instructions could not be created, or a hook with `fail_closed` failed. In the process where it
    happened, the error itself is the `__cause__`.
    """


class InvalidOutput(RunFailed):
    """The answer does not fit the agent's output type, and asking again did not help."""


class RunCancelled(RunError):
    """The run was cancelled. `result` is what it had done until then."""

    def __init__(self, result: RunResult[Any]) -> None:
        super().__init__("The run was cancelled.", result, code="cancelled")


_CLASSES: dict[str, type[RunFailed]] = {
    "context_window": ContextExceeded,
    "truncation": OutputTruncated,
    "invalid_output": InvalidOutput,
    "agent_error": AgentFailed,
    **dict.fromkeys(
        ("rate_limit", "overloaded", "server", "invalid_request", "auth", "timeout", "upstream_deadline", "unknown"),
        ProviderFailed,
    ),
}


def failure(result: RunResult[Any]) -> RunFailed:
    """Returns the error for a failed run."""
    kind = _CLASSES.get(result.code, RunFailed)
    return kind(result.error or "The run failed.", result, code=result.code or "failed")
