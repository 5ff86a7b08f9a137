"""The content of the entries that the kernel decides on: it knows the facts, this knows the words and the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from weftline.kernel import bodies
from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    CallClosed,
    CallOpened,
    Fact,
    FinalForced,
    LoopDetected,
    OutputRejected,
    RunEnded,
)
from weftline.kernel.state import New
from weftline.messages import Text
from weftline.runtime.live import LiveRun, Prepared
from weftline.runtime.transcript import Transcript

if TYPE_CHECKING:
    from weftline.runtime.driver import Driver

ARGS_COPY_BYTES = 64 * 1024
"""Arguments up to this size stand in the result's entry too, for readers of that entry alone."""

TRUNCATED = "Model output was truncated (stop_reason=max_tokens)"
_FAILED = "The model could not be reached or gave no usable answer."
INVALID_OUTPUT = "The model's answer does not fit the output schema."


def fill(driver: Driver, run: LiveRun, new: New, transcript: Transcript) -> tuple[Fact, bytes]:
    """An entry as it goes into the log, with its body."""
    head = new.head
    match head:
        case CallOpened():
            return head, _opened(run, head)
        case CallClosed():
            text = new.text or _prepared(run, head.index).invalid
            return head, closed_body(run, head.index, (Text(text),))
        case AttemptStarted():
            return replace(head, model=driver.model_ref(run, head.choice), estimate=transcript.estimate), b""
        case AttemptFailed():
            if run.attempt_usage is not None:
                cost = driver.cost_nusd(run, run.state.choice, run.attempt_usage)
                head = replace(head, usage=run.attempt_usage, cost_nusd=cost, estimated=False)
            return head, bodies.encode(bodies.FailedBody(head.reason, run.partial))
        case LoopDetected() | FinalForced():
            return head, bodies.encode(bodies.TextBody(new.text)) if new.text else b""
        case OutputRejected():
            return head, bodies.encode(bodies.TextBody(f"{run.failure or INVALID_OUTPUT} Answer again, and only so."))
        case RunEnded():
            return _ended(run, head, new.text, transcript)
        case _:
            return head, b""


def closed_body(run: LiveRun, index: int, parts: tuple[Text, ...] | tuple[bodies.UserPart, ...]) -> bytes:
    prepared = run.prepared.get(index)
    args: Raw | UnsetType = UNSET
    if prepared is not None and len(prepared.args) <= ARGS_COPY_BYTES:
        args = Raw(prepared.args)
    return bodies.encode(bodies.ClosedBody(parts, args))


def _prepared(run: LiveRun, index: int) -> Prepared:
    """A run that is only being ended may have calls that nobody prepared."""
    return run.prepared.get(index) or Prepared(b"{}")


def _opened(run: LiveRun, head: CallOpened) -> bytes:
    prepared = _prepared(run, head.index)
    echo: Raw | UnsetType = UNSET
    if head.client is not None and not head.blocked and run.toolbox is not None:
        tool = run.toolbox.get(head.name)
        if tool is not None and tool.echo is not None:
            echo = tool.echo
    return bodies.encode(bodies.OpenedBody(Raw(prepared.args), echo))


def _ended(run: LiveRun, head: RunEnded, text: str, transcript: Transcript) -> tuple[Fact, bytes]:
    if head.status == "succeeded":
        return head, bodies.encode(bodies.EndedBody(text=transcript.last_text))
    if head.status == "cancelled":
        return head, b"{}"
    if head.code == "truncation":
        partial = transcript.last_text
        return head, bodies.encode(bodies.EndedBody(error=f"{TRUNCATED}.", partial_text=partial))
    if head.code == "invalid_output":
        error = run.failure or INVALID_OUTPUT
        return head, bodies.encode(bodies.EndedBody(error=error, partial_text=transcript.last_text))
    partial = run.partial if head.code == "upstream_deadline" and run.partial else None
    return head, bodies.encode(bodies.EndedBody(error=text or run.failure or _FAILED, partial_text=partial))
