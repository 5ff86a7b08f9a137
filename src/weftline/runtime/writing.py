"""What the entries of a decision say: their bodies, made of what the kernel decided and what the run knows."""

from __future__ import annotations

from msgspec import UNSET, Raw, UnsetType
from msgspec.json import decode
from msgspec.structs import replace

from weftline import prompts
from weftline.failure import Bounds, ChildLink, Failure, ServerData, Telemetry, kind_by
from weftline.kernel import bodies
from weftline.kernel.context import CompactionFailed, CompactionStarted, ContextMeasured
from weftline.kernel.control import CallUnclaimed
from weftline.kernel.entries import (
    STRICTNESS,
    AttemptFailed,
    AttemptStarted,
    AwaitOpened,
    CallClosed,
    CallOpened,
    CallStarted,
    FinalForced,
    How,
    LoopDetected,
    MessagesTaken,
    ModelRef,
    OutputRejected,
    ResultsOverBudget,
    RunEnded,
)
from weftline.kernel.seats import SeatAskedOn, SeatClosing, SeatTaken
from weftline.kernel.state import Call, New, State
from weftline.messages import Text, UserPart, joined_text
from weftline.plan import DEFINED_BY_PLAN
from weftline.runtime.budgets.reserving import budget_body
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.model_calls import compacting
from weftline.runtime.model_calls.models import cost_nusd, model_ref, offered_digest
from weftline.runtime.model_calls.spending import spent
from weftline.runtime.people.awaits import answer_text, await_body
from weftline.runtime.tool_calls.shaping import shaped_result
from weftline.runtime.tool_calls.toolbox import EMPTY, Toolbox
from weftline.store.rows import ThreadEnd
from weftline.text.canonical import canonical_value
from weftline.tools.asking import display_hint
from weftline.tools.base import ToolOutput
from weftline.tools.results import output_bytes

TRUNCATED = "Model output was truncated (stop_reason=max_tokens)."
_DECIDED_BY_GATES = frozenset[How]({"blocked", "answered", "unknown", "invalid"})
"""Ways to close a call for which the gates may have left a text."""
ARGS_COPY_BYTES = 64 * 1024
"""Arguments up to this size are repeated in the result's entry, so that it can be read alone."""


def write_down(state: State, work: WorkingSet, new: New) -> Draft:
    """An entry that the kernel decided on, completed with the content that the kernel does not know."""
    head = new.head
    # By type where it is usual: a pattern that does not match costs as much as a call.
    if type(head) is AttemptStarted:
        conversation, toolbox = work.conversation, work.toolbox or EMPTY
        offered = ""
        if not state.totals.attempts:
            system = work.plan.system if conversation.system is None else conversation.system
            offered = offered_digest(system, toolbox)
        model = model_ref(work, head.choice)
        body = _tools_to_log(work, toolbox)
        return Draft(replace(head, model=model, estimate=conversation.estimate(toolbox), offered=offered), body)
    if type(head) is CallOpened:
        return Draft(head, bodies.encode(offer_body(work, head)))
    if type(head) is CallStarted:
        return Draft(_with_current_effect(state, work, head))
    if type(head) is RunEnded:
        # An attempt that is still open here is closed in the same append, with an estimate.
        estimated = state.totals.estimated or state.attempt.open or state.compaction.open
        return Draft(replace(head, estimated=True) if estimated else head, _ended(state, work, head, new.text))
    match head:
        case CallClosed():
            return _closed(state, work, head, new.text)
        case AwaitOpened(kind="budget"):
            return Draft(head, bodies.encode(budget_body(state)))
        case AwaitOpened():
            return Draft(head, bodies.encode(await_body(state.batch.calls[head.index], head, work)))
        case AttemptFailed():
            return _cut_short(state, work, head)
        case ContextMeasured() | CompactionStarted() | CompactionFailed():
            return compacting.write_down(state, work, head)
        case SeatTaken(call=str(call)) if call and head.why != "handoff":
            return Draft(head, bodies.encode(bodies.SpokenBody(_said_by_call(state, work, call))))
        case LoopDetected() | FinalForced() | ResultsOverBudget() | SeatClosing() | SeatAskedOn():
            return Draft(head, bodies.encode(bodies.TextBody(new.text)) if new.text else b"")
        case MessagesTaken():
            return Draft(head, bodies.encode(bodies.TakenBody(work.conversation.queued_texts(head.ids))))
        case CallUnclaimed():
            return Draft(head, bodies.encode(offer_body(work, head)))
        case OutputRejected():
            answer = work.conversation.turn.body
            problem = answer.problem if answer is not None else ""
            return Draft(head, bodies.encode(bodies.TextBody(prompts.turns.answer_again(problem))))
        case _:
            return Draft(head)


def _tools_to_log(work: WorkingSet, toolbox: Toolbox) -> bytes:
    """Returns the tools of a run for its log, once, unless its plan defines them."""
    if work.logged_toolbox is toolbox:
        return b""
    work.logged_toolbox = toolbox
    plan = work.plan
    if not toolbox.specs or (plan.code is None and all(isinstance(ref, DEFINED_BY_PLAN) for ref in plan.tools)):
        return b""
    return bodies.encode(
        bodies.OfferedBody(
            tuple(bodies.OfferedTool(one.name, one.parameters, one.description) for one in toolbox.specs)
        )
    )


def closed_body(
    work: WorkingSet,
    index: int,
    parts: tuple[UserPart, ...],
    *,
    message_id: str = "",
    idempotency_key: str = "",
    state: Raw | UnsetType = UNSET,
    failure: Failure | None = None,
    telemetry: Telemetry | None = None,
    bounds: Bounds | None = None,
    server_data: tuple[ServerData, ...] = (),
    child: ChildLink | None = None,
    sent: str = "",
    is_json: bool = False,
) -> bytes:
    args: Raw | UnsetType = UNSET
    known = work.conversation.turn.args
    if index < len(known) and len(known[index]) <= ARGS_COPY_BYTES:
        args = Raw(known[index])
    return bodies.encode(
        bodies.ClosedBody(
            parts,
            args,
            message_id,
            idempotency_key,
            state,
            failure,
            telemetry,
            bounds,
            server_data,
            child,
            sent,
            is_json,
        )
    )


def with_failure(head: CallClosed, failure: Failure | None) -> CallClosed:
    """The head of a result, with the kind and recovery of a failure, on which the kernel decides."""
    if failure is None or not head.is_error:
        return head
    kind = None if failure.kind == kind_by(head.how, client=head.client is not None) else failure.kind
    hint = None if failure.hint is None else failure.hint.reason
    return replace(head, kind=kind, recovery=failure.recovery, hint=hint)


def named_failure(failure: Failure | None, name: str) -> Failure | None:
    """A failure with the name of the tool in its hint."""
    if failure is None or failure.hint is None or failure.hint.tool:
        return failure
    return replace(failure, hint=replace(failure.hint, tool=name))


def size_of(work: WorkingSet, parts: tuple[UserPart, ...]) -> int:
    """The size of a result, in a run that has a budget for it."""
    return 0 if work.plan.limits.tool_output_budget_bytes is None else output_bytes(parts)


def thread_end(state: State, work: WorkingSet) -> ThreadEnd | None:
    """Returns the change to a thread at the end of a run, in the same transaction as the terminal entry."""
    if state.thread is None or not state.ended:
        return None
    conversation = work.conversation
    read = state.history is not None
    if conversation.kept is not None:
        if state.status != "succeeded":
            conversation.kept.fail(conversation.failure.partial, turn=state.turn)
        return ThreadEnd(state.thread, [], read)  # they are there
    if state.status == "failed" and state.history is None and work.plan.thread_keeps_all:
        return ThreadEnd(state.thread, [bodies.encode(message) for message in work.plan.messages], read)
    if state.status != "succeeded":
        return ThreadEnd(state.thread, [], read)
    after = conversation.added() if work.plan.thread_keeps_all else conversation.exchange()
    messages = (*work.plan.messages, *after)
    return ThreadEnd(state.thread, [bodies.encode(message) for message in messages], read)


def _with_current_effect(state: State, work: WorkingSet, head: CallStarted) -> CallStarted:
    """Records the tool's current effect if a deploy has made it stricter since the call was announced."""
    call = state.batch.calls[head.index]
    tool = None if work.toolbox is None else work.toolbox.get(call.tool)
    if tool is None or STRICTNESS[tool.effect] <= STRICTNESS[call.effect]:
        return head
    return replace(head, effect=tool.effect)


def _closed(state: State, work: WorkingSet, head: CallClosed, text: str) -> Draft:
    """Closes a call in place of its tool. The text comes from the kernel, a person, the gates or the pipeline."""
    if head.index in work.conversation.turn.answers and (
        words := answer_text(state.batch.calls[head.index], head, work)
    ):
        return _answered(work, head, words)
    call = state.batch.calls[head.index]
    if call.awaiting and call.asks is not None and call.asks.kind != "confirm":
        text = prompts.people.NOT_ANSWERED
    failure = work.conversation.turn.asked(head.index).failure if head.how == "invalid" else None
    head = with_failure(head, failure)
    gated = work.conversation.turn.gated.get(head.index) if head.how in _DECIDED_BY_GATES else None
    if gated is None or not gated.parts:
        parts: tuple[UserPart, ...] = (Text(text or work.conversation.turn.asked(head.index).invalid),)
    else:
        parts = gated.parts
        if gated.is_error != head.is_error:
            head = replace(head, is_error=gated.is_error)
    if size := size_of(work, parts):
        head = replace(head, size=size)
    bounds = None if gated is None or head.is_error else gated.bounds
    return Draft(head, closed_body(work, head.index, parts, failure=failure, bounds=bounds))


def _answered(work: WorkingSet, head: CallClosed, words: str) -> Draft:
    """Closes a call whose result is a person's answer."""
    output = ToolOutput.of(words)
    if head.how in ("answered", "returned"):
        output = shaped_result(output, work, turn=head.turn, index=head.index, id=head.id, name=head.name)
    head = replace(head, is_error=output.is_error)
    if size := size_of(work, output.parts):
        head = replace(head, size=size)
    body = closed_body(
        work,
        head.index,
        output.parts,
        failure=output.failure,
        telemetry=output.telemetry,
        bounds=None if output.is_error else output.bounds,
        server_data=output.server_data,
        is_json=output.is_json,
    )
    return Draft(with_failure(head, output.failure), body)


def offer_body(work: WorkingSet, head: CallOpened | CallUnclaimed) -> bodies.OpenedBody:
    """Returns the announcement of a call: its final arguments, and what else a client gets."""
    turn = work.conversation.turn
    args = turn.args[head.index] if head.index < len(turn.args) else b"{}"
    if isinstance(head, CallOpened) and head.blocked:
        return bodies.OpenedBody(Raw(args))
    tool = None if work.toolbox is None else work.toolbox.get(head.name)
    peer = None if head.client is None or tool is None else tool.peer
    gated = turn.gated.get(head.index)
    hint = gated.hint if gated is not None and gated.hint else display_hint(tool, head.name, args)
    return bodies.OpenedBody(Raw(args), hint, peer)


def _cut_short(state: State, work: WorkingSet, head: AttemptFailed) -> Draft:
    """Closes an attempt whose outcome will never be reported, with its cost as far as it is known."""
    if work.answering is not None:
        used = spent(work.answering, estimate=state.attempt.estimate, unanswered=True)
        # The latest report of usage may not be the last: a provider that does not stop at once keeps counting.
        estimated = used.estimated or not work.answering.complete
        head = replace(head, usage=used.usage, estimated=estimated)
        if work.conversation.kept is not None:
            work.conversation.kept.cut_off = work.answering.text
        work.answering = None
    head = replace(head, cost_nusd=cost_nusd(work, state.attempt.choice, head.usage))
    return Draft(head, bodies.encode(bodies.FailedBody(head.reason)))


def _ended(state: State, work: WorkingSet, head: RunEnded, text: str) -> bytes:
    ended = _end_of(state, work, head, text)
    if state.parent is not None:  # for the result of its parent's call
        ended.calls = work.conversation.calls.closed + state.batch.unclosed  # which are closed along with it
        if (last := work.conversation.turn.finals.get(head.call)) is not None:
            ended.final = bodies.FinalResult(last.parts, last.telemetry, last.bounds, last.server_data, last.failure)
    if work.plan.labels:
        ended.labels = work.plan.labels
    return bodies.encode(ended)


def _end_of(state: State, work: WorkingSet, head: RunEnded, text: str) -> bodies.EndedBody:
    conversation = work.conversation
    if head.call and state.seats is not None:
        said = _said_by_call(state, work, head.call)
        return bodies.EndedBody(text=said) if head.status == "succeeded" else bodies.EndedBody(error=said or text)
    if head.status == "succeeded":
        # A run that a tool has ended has no answer: text beside the call is not one.
        return bodies.EndedBody(text="" if head.call else conversation.last_text)
    if head.status == "cancelled":
        return bodies.EndedBody()
    failure = conversation.failure
    if head.code == "truncation" and not failure.message:
        return bodies.EndedBody(error=TRUNCATED, partial_text=conversation.last_text)
    if head.code == "invalid_output":
        problem = conversation.turn.body.problem if conversation.turn.body is not None else ""
        # The message to the model ends with a request, which is not meant for readers of the error.
        rejected = failure.rejected.removesuffix(prompts.turns.answer_again(""))
        error = problem or rejected or prompts.turns.ANSWER_INVALID
        return bodies.EndedBody(error=error, partial_text=conversation.last_text)
    if text:
        return bodies.EndedBody(error=text)
    failed = failure.failed
    ending = failed if failed is not None and failed[0].cls == head.code else None
    return bodies.EndedBody(
        error=failure.message or "The model could not be reached or gave no usable answer.",
        partial_text=failure.partial or None,
        provider=None if ending is None else _provider_failure(*ending, head.model),
        causes=() if ending is None else ending[1].causes,
    )


def _provider_failure(attempt: AttemptFailed, body: bodies.FailedBody, model: ModelRef) -> bodies.ProviderFailure:
    """Returns the provider's report on the failure that ends the run."""
    return bodies.ProviderFailure(
        model.provider, "chat", attempt.cls, attempt.retryable, code=body.code, status=body.status
    )


def _said_by_call(state: State, work: WorkingSet, call_id: str) -> str:
    """Returns what a side has said with the call that ended its turn: an argument, or the result."""
    for index, call in enumerate(state.batch.own):
        if call.id == call_id:
            return _said(state, work, index, call)
    return ""


def _said(state: State, work: WorkingSet, index: int, call: Call) -> str:
    code, turn = None if work.toolbox is None else work.toolbox.code, work.conversation.turn
    seat = None if code is None else code.seats.of(state)
    ending = None if seat is None else seat.endings.get(call.name)
    if ending is not None and ending.argument:
        value = decode(turn.args[index]).get(ending.argument, "")
        return value if isinstance(value, str) else canonical_value(value).decode()
    result = turn.results.get(index)
    return "" if result is None else joined_text(result.parts)
