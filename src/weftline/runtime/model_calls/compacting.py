"""Executes one compaction: asks a model for a summary, and reports the outcome.

The summary is a fact, like a turn; nothing of it is streamed. Whatever goes wrong is reported as a failed compaction,
and the run continues without it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from weftline import prompts
from weftline.errors import WeftlineError
from weftline.kernel import bodies
from weftline.kernel.bodies import SummaryBody
from weftline.kernel.budgeting import summary_slot
from weftline.kernel.compaction import is_too_large
from weftline.kernel.context import (
    Cause,
    CompactionFailed,
    CompactionStarted,
    ContextCompacted,
    ContextMeasured,
    ContextRestored,
)
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import KIND, HistoryPinned, MessagesEdited, RunCreated, decode_fact
from weftline.kernel.state import Compact, State
from weftline.messages import Assistant, Message, User
from weftline.plan import decode_content
from weftline.providers.assemble import Assembler
from weftline.providers.base import ModelRequest, ProviderError
from weftline.providers.catalog import ResolvedModel
from weftline.providers.throttle import close_stream, open_stream
from weftline.runtime import ids
from weftline.runtime.deploys import unsupported
from weftline.runtime.live import Draft, LiveRun, WorkingSet
from weftline.runtime.model_calls.cutting import (
    Cut,
    Span,
    input_bytes,
    message_bytes,
    new_cut,
    transcript,
    with_summary,
)
from weftline.runtime.model_calls.model_call import MAX_RETRY_AFTER_S, classified, out_of_time, retry_wait_s
from weftline.runtime.model_calls.models import cost_of, model_id
from weftline.runtime.model_calls.spending import BYTES_PER_TOKEN, NOTHING, ModelUsage, spent
from weftline.runtime.services import Outcome, Services, Sink
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.store.base import LogStore
from weftline.store.rows import Item, RunFilter, RunRow
from weftline.trace_context import fields
from weftline.work.outcomes import is_being_cancelled, is_interruption

logger = logging.getLogger(__name__)

_KINDS = tuple([KIND[kind] for kind in (RunCreated, HistoryPinned, MessagesEdited, ContextCompacted, ContextRestored)])
_BEGUN = 2
"""A run that has begun has at least two of these facts: its creation and its pinned history."""
_LOOK_BACK = 8
"""How many runs that never began, for example because they were cancelled in the queue, may lie between two that
did.
"""


class Inherited(Struct, frozen=True):
    """A summary of the thread's messages before `upto`."""

    upto: int
    body: SummaryBody
    left: int
    """How large requests with it were when it was written, in tokens."""


async def inherited_by(run: LiveRun, store: LogStore) -> Inherited | None:
    """The summary that the thread's previous run left to this one."""
    if run.thread is None or run.state.limits.compaction is None:
        return None
    for row in await store.runs(RunFilter(thread=run.thread, before=run.key, limit=_LOOK_BACK)):
        if unsupported(row):
            return None
        facts = await store.facts(row.key, kinds=_KINDS)
        if len(facts) < _BEGUN:
            continue
        try:
            return _latest(row, facts)
        except UNREADABLE:
            logger.exception("run %s: what it left to its thread cannot be read", ids.run_id(row.key, row.salt))
            return None
    return None


def _latest(row: RunRow, facts: list[Item]) -> Inherited | None:
    pinned = 0
    keeps_all = adds_at_once = False
    found: Inherited | None = None
    for fact in facts:
        match decode_fact.decode(fact.head):
            case RunCreated():
                keeps_all = decode_content(bodies.decode_created(fact.body).plan).thread_keeps_all
            case HistoryPinned(upto=upto, through=through):
                pinned, adds_at_once = upto, keeps_all and through is not None
            case MessagesEdited(removed=removed):
                pinned -= removed
            case ContextCompacted() as head if head.upto <= pinned or row.status == "succeeded" or adds_at_once:
                # Otherwise, what an unsuccessful run did is not part of its thread.
                body = bodies.decode_summary(fact.body)
                whole = adds_at_once or (keeps_all and row.status == "succeeded")  # then its positions are the thread's
                upto = head.upto if whole else min(head.upto, pinned)
                kept = tuple([at for at in body.kept if at < upto])
                left = head.left or head.after
                found = Inherited(upto, SummaryBody(body.text, kept, body.model), left) if len(kept) < upto else None
            case ContextRestored():
                found = None
            case _:
                pass
    return found


def as_fact(inherited: Inherited, work: WorkingSet) -> Draft:
    """The fact that takes over a summary. It needed no model call, and costs nothing."""
    conversation, tools = work.conversation, work.toolbox or EMPTY
    visible = with_summary(conversation.messages, inherited.upto, inherited.body)
    size = input_bytes(work.plan, messages=visible, system=conversation.system)
    head = ContextCompacted(
        0,
        inherited.upto,
        before=conversation.estimate(tools),
        after=-(-(size + tools.size) // BYTES_PER_TOKEN),
        size=size,
        cost_nusd=0,
        left=inherited.left,
    )
    return Draft(head, bodies.encode(inherited.body))


_SLACK_S = 5.0
_WINDOW_SHARE = 0.75
"""How much of the context window of the summarizing model its request may fill."""

Written: TypeAlias = ContextMeasured | CompactionStarted | CompactionFailed


def write_down(state: State, work: WorkingSet, head: Written) -> Draft:
    """Completes a fact that the kernel decided on with what only the conversation contains."""
    match head:
        case ContextMeasured():
            tokens = work.conversation.estimate(work.toolbox or EMPTY)
            turns = _turns(work)
            looked_for = head.cause == "context_window" or is_too_large(state, tokens=tokens, turns=turns)
            spare = _spare(state, work, head.cause) if looked_for else 0
            return Draft(replace(head, tokens=tokens, spare=spare, turns=turns))
        case CompactionStarted():
            model = summary_model(state, work)
            estimate = min(state.compaction.tokens, _max_bytes(state, model, head.cause) // BYTES_PER_TOKEN)
            return Draft(replace(head, model="" if model is None else model.catalog_id, estimate=estimate))
        case CompactionFailed():
            model = summary_model(state, work)
            cost = None if model is None or work.catalog is None else cost_of(work.catalog, model, head.usage)
            return Draft(replace(head, cost_nusd=cost), bodies.encode(bodies.FailedBody(head.reason)))


def _turns(work: WorkingSet) -> int:
    """Returns the number of turns after the part of the conversation that the summary replaces."""
    conversation = work.conversation
    upto = 0 if conversation.view.cut is None else conversation.view.cut.upto
    return sum([isinstance(message, Assistant) for message in conversation.messages[upto:]])


def _spare(state: State, work: WorkingSet, cause: Cause) -> int:
    """Returns how many tokens a summary would replace."""
    span = _span(work)
    cut = _new_cut(state, span, cause)
    left = 0 if cut is None else sum([message_bytes(span.messages[at]) for at in span.fresh(cut)])
    return -(-left // BYTES_PER_TOKEN)


async def compact(command: Compact, state: State, work: WorkingSet, services: Services, sink: Sink) -> Outcome | None:
    """Requests the summary; returns the outcome, or None if it is no longer wanted."""
    call = _SummaryCall(command, state, work, services)
    model = summary_model(state, work)
    if model is None:
        return call.failed(ProviderError("invalid_request", "The model for the summary no longer exists."))
    call.model = model
    span = _span(work)
    cut = _new_cut(state, span, state.compaction.cause)
    if cut is None:
        return call.useless("nothing_to_leave_out")
    await sink.permit(all=work.account is not None and work.account.active)  # as for a turn
    call.begin(model)
    limit_s = services.model_timeout_s
    if work.account is not None:
        limit_s = work.account.within(limit_s, services.clock)
    request = _request(state, model, _text(state, work, model, span, cut))
    request.timeout_s = limit_s + _SLACK_S
    stream = open_stream(model.provider, request)
    try:
        with services.deadlines.after(limit_s):
            async for chunks in stream:
                if not sink.wanted():
                    return None
                call.answer.feed(chunks)
        if not call.answer.complete:
            raise ProviderError("server", "The summary was cut off before it was complete.", unanswered=True)
    except BaseException as raised:
        if is_being_cancelled() or is_interruption(raised):
            raise
        return call.failed(_as_provider_error(raised, model, limit_s, answering=bool(call.answer.text)))
    else:
        return call.completed(span, cut)
    finally:
        await close_stream(stream)


class _SummaryCall:
    """One request for a summary, and what to report about it."""

    def __init__(self, command: Compact, state: State, work: WorkingSet, services: Services) -> None:
        self.answer = Assembler("")
        self.model: ResolvedModel | None = None
        self._number = command.number
        self._state = state
        self._work = work
        self._services = services
        self._began_s: float | None = None

    def begin(self, model: ResolvedModel) -> None:
        self.answer = Assembler(model.provider.name)
        self._began_s = asyncio.get_running_loop().time()

    def completed(self, span: Span, cut: Cut) -> Outcome:
        assert self.model is not None
        conversation, tools = self._work.conversation, self._work.toolbox or EMPTY
        text = self.answer.message().text.strip()
        if not text:
            return self.useless("empty")
        if self.answer.finish_reason == "refusal":
            return self.useless("refused")  # a refusal is not a summary
        if self.answer.finish_reason == "max_tokens" and self._state.compaction.cause == "size":
            # A partial summary is better than none only if the run could not continue otherwise.
            return self.useless("truncated")
        body = bodies.SummaryBody(text, cut.kept, self.model.catalog_id)
        visible = with_summary(span.messages, cut.upto, body)
        if sum(map(message_bytes, visible)) >= sum(map(message_bytes, conversation.view.visible)):
            return self.useless("no_gain")
        size = input_bytes(self._work.plan, messages=visible, system=conversation.system)
        used = spent(self.answer, estimate=self._state.compaction.estimate)
        head = ContextCompacted(
            self._number,
            cut.upto,
            before=conversation.estimate(tools),
            after=-(-(size + tools.size) // BYTES_PER_TOKEN),
            size=size,
            usage=used.usage,
            estimated=used.estimated,
            cost_nusd=self._cost(used),
            active_us=self._active_us(),
        )
        return Outcome(Draft(head, bodies.encode(body)))

    def useless(self, why: str) -> Outcome:
        """The answer is not a useful summary. Asking again would give the same."""
        error = ProviderError("unknown", f"The summary cannot be used: {why}.", retryable=False, code=why)
        return self._ended(error, reason="useless", cls=why)

    def failed(self, error: ProviderError) -> Outcome:
        return self._ended(error, reason="error", cls=error.cls)

    def _ended(self, error: ProviderError, *, reason: Literal["error", "useless"], cls: str) -> Outcome:
        work = self._work
        logger.warning(
            "run %s: its older messages could not be summarized: %s: %.300s",
            work.run_id,
            cls,
            error.message,
            extra=fields(run=work.run_id, class_=cls),
        )
        retry_at = None
        retryable = error.retryable and (error.retry_after_s or 0.0) <= MAX_RETRY_AFTER_S
        if retryable:
            wait_s = retry_wait_s(error, failures=self._state.compaction.failures)
            retry_at = self._services.clock.now_us() + int(wait_s * 1_000_000)
        used = spent(self.answer, estimate=self._state.compaction.estimate, unanswered=error.unanswered)
        head = CompactionFailed(
            self._number,
            reason,
            cls,
            retryable=retryable,
            retry_at=retry_at,
            usage=used.usage,
            estimated=used.estimated,
            cost_nusd=self._cost(used),
            active_us=self._active_us(),
        )
        message = error.message or "The summary could not be written."
        body = bodies.FailedBody(message, "", error.code, error.status, error.retry_after_s)
        return Outcome(Draft(head, bodies.encode(body)))

    def _cost(self, used: ModelUsage) -> int | None:
        if used == NOTHING:
            return 0
        catalog = self._work.catalog
        return None if catalog is None or self.model is None else cost_of(catalog, self.model, used.usage)

    def _active_us(self) -> int:
        if self._began_s is None:
            return 0
        return int((asyncio.get_running_loop().time() - self._began_s) * 1_000_000)


def _as_provider_error(
    raised: BaseException, model: ResolvedModel, limit_s: float, *, answering: bool
) -> ProviderError:
    if isinstance(raised, ProviderError):
        return raised
    if isinstance(raised, TimeoutError):
        return out_of_time(limit_s, answering)
    logger.error("the provider %s failed", model.provider.name, exc_info=raised)
    return classified(model.provider, raised)


def _span(work: WorkingSet) -> Span:
    conversation = work.conversation
    code = (work.toolbox or EMPTY).code
    messages: list[Message] = conversation.messages
    keep = () if code is None else code.keeps(messages, memory=conversation.shared.values)
    return Span(messages, conversation.own_input, keep, conversation.view.cut)


def _new_cut(state: State, span: Span, cause: Cause) -> Cut | None:
    rule = state.limits.compaction
    return None if rule is None else new_cut(span, keep_turns=rule.keep_turns, cause=cause)


def summary_model(state: State, work: WorkingSet) -> ResolvedModel | None:
    """The model that writes summaries, if it exists."""
    rule = state.limits.compaction
    named = rule.model if rule is not None and rule.model else model_id(work, state.attempt.choice)
    try:
        return None if work.catalog is None else work.catalog.resolve(named)
    except WeftlineError:
        return None


def _max_bytes(state: State, model: ResolvedModel | None, cause: Cause) -> int:
    """Returns how much the summarizing model is given to read; less than what another model has rejected as too
    long.
    """
    rule = state.limits.compaction
    tokens = state.compaction.tokens
    if cause == "context_window":
        tokens //= 2
    elif rule is not None and rule.at_tokens is not None:
        tokens = min(tokens, rule.at_tokens)
    window = None if model is None else model.entry.context_window_tokens
    if window is not None:
        tokens = min(tokens, int(window * _WINDOW_SHARE))
    return max(tokens, 1) * BYTES_PER_TOKEN


def _text(state: State, work: WorkingSet, model: ResolvedModel, span: Span, cut: Cut) -> str:
    compacted = work.conversation.view.compacted
    return transcript(
        [span.messages[at] for at in span.fresh(cut)],
        summary="" if compacted is None else compacted[1].text,
        max_bytes=_max_bytes(state, model, state.compaction.cause),
    )


def _request(state: State, model: ResolvedModel, text: str) -> ModelRequest:
    held = state.budget.holds.get(summary_slot(state.compaction.number))  # all that is reserved for it
    return ModelRequest(
        model=model.vendor_id,
        messages=[User.of(prompts.compaction.to_summarize(text))],
        system=prompts.compaction.SUMMARIZE,
        cache=False,
        call_index=state.totals.calls_made,
        max_output_tokens=None if held is None else held.output or None,
    )
