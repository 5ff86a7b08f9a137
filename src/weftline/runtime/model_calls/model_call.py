"""Executes one attempt of a model turn: streams it into the log and reports it as completed or failed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from weftline import prompts
from weftline.errors import WeftlineError
from weftline.kernel import bodies
from weftline.kernel.bodies import note_body
from weftline.kernel.budgeting import attempt_slot
from weftline.kernel.calls import signature
from weftline.kernel.entries import AttemptFailed, TurnCompleted
from weftline.kernel.notes import PROVIDER_CALL
from weftline.kernel.state import CallModel, State
from weftline.messages import Assistant, AssistantPart, Message, ProviderCall, Text, ToolCall, ToolResults, User
from weftline.providers.assemble import Assembler
from weftline.providers.base import Chunk, ModelRequest, Provider, ProviderError, TextDelta, ThinkingDelta
from weftline.providers.catalog import ResolvedModel
from weftline.providers.offers import late_metadata
from weftline.providers.renewals import watch_renewals
from weftline.providers.throttle import close_stream, open_stream
from weftline.reminders import Reminder, due
from weftline.runtime.agent_code.code import CodeFailed, RunCode
from weftline.runtime.agent_code.inside import ProviderNotes
from weftline.runtime.agent_code.seats import Seats, name_of
from weftline.runtime.conversation import Conversation
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.model_calls.deltas import ArgumentDeltas, Deltas
from weftline.runtime.model_calls.models import attempt_limit, cost_nusd, cost_of, model_id, resolve
from weftline.runtime.model_calls.spending import NOTHING, spent
from weftline.runtime.public_errors import kept_causes
from weftline.runtime.services import Outcome, Services, Sink
from weftline.runtime.tool_calls.preparing import prepare_calls
from weftline.runtime.tool_calls.toolbox import EMPTY, Toolbox
from weftline.text.canonical import NotCanonical, canonical
from weftline.text.display import without_fence
from weftline.text.json_size import excess
from weftline.tools.base import Paging
from weftline.tools.checking import issues_of
from weftline.trace_context import fields
from weftline.work.outcomes import attempt, is_being_cancelled, is_interruption


def with_reminders(request: ModelRequest, work: WorkingSet, *, turn: int) -> ModelRequest:
    """The request with its reminders; unchanged if there are none."""
    conversation, toolbox = work.conversation, work.toolbox or EMPTY
    given, memory = work.plan.reminders, conversation.shared.values
    if (given or memory) and (own := due(given, memory, turn=turn)):
        request = _with_run_reminders(request, own)
    if not toolbox.reminds and not conversation.turn.hints and not conversation.turn.bounds:
        return request
    texts = _after_results(conversation, toolbox)
    if not texts:
        return request
    return _with_message(request, _joined(texts), at=len(request.messages))


def _with_run_reminders(request: ModelRequest, reminders: Sequence[Reminder]) -> ModelRequest:
    """Adds the run's own reminders, at the head of the instructions or beside the last user message."""
    first = [one.text for one in reminders if one.attachment == "run_start"]
    if first:
        text = _joined(first)
        request = replace(request, system=f"{text}\n\n{request.system}" if request.system else text)
    with_user = [one.text for one in reminders if one.attachment == "user_turn"]
    return _with_message(request, _joined(with_user), at=_place(request.messages)) if with_user else request


def _place(messages: Sequence[Message]) -> int:
    """Where a reminder is inserted: before the last user message, or after the last results if these are newer."""
    for at in range(len(messages) - 1, -1, -1):
        if isinstance(messages[at], ToolResults):
            return at + 1
        if isinstance(messages[at], User):
            return at
    return len(messages)


def _joined(texts: Sequence[str]) -> str:
    return "\n".join([prompts.failure.reminder(text) for text in texts])


def _with_message(request: ModelRequest, text: str, *, at: int) -> ModelRequest:
    messages = [*request.messages[:at], User.of(text, injected=True), *request.messages[at:]]
    # The provider appends what it encodes to its list, which is the conversation's: a reminder must not stay there.
    return replace(request, messages=messages, native=list(request.native[:at]))


def _after_results(conversation: Conversation, toolbox: Toolbox) -> list[str]:
    """The reminders that follow results, in the order of the calls of the latest turn."""
    texts: list[str] = []
    for index, result in sorted(conversation.turn.results.items()):
        tool = toolbox.get(result.name)
        if tool is not None and not result.is_error and (text := tool.traits.reminder):
            texts.append(prompts.failure.after_result(result.name, text))
        if (hint := conversation.turn.hints.get(index)) is not None:
            texts.append(prompts.failure.after_failure(hint))
        if (bounds := conversation.turn.bounds.get(index)) is not None:
            paging = None if tool is None else tool.traits.bounded
            cursor = paging.cursor if isinstance(paging, Paging) else ""
            texts.append(prompts.failure.after_truncated(result.name, bounds, cursor=cursor))
    return texts


logger = logging.getLogger(__name__)

MODEL_TIMEOUT_S = 600.0
MODEL_RETRIES_TIMEOUT_S = 900.0
"""A server that never answers would otherwise hold a run for the time of each of its attempts."""
_SLACK_S = 5.0
"""Gives the provider more time than our own deadline, which is reported by the side that knows how far the answer
got.
"""
RETRY_FIRST_S, MAX_RETRY_S = 0.5, 60.0
LONG_WAIT_S = 60.0
"""If a provider asks for a longer wait, the run falls back to its next model, if it has one."""
MAX_RETRY_AFTER_S = 3600.0
"""Beyond this the call fails for good, because it may not be retried earlier than the provider allows."""
AGENT_ERROR = "agent_error"
"""The class of a failure in the agent's own code rather than at the provider."""
_MAX_ID_BYTES = 256
"""The longest id of a call that is accepted from a provider."""


async def call_model(
    command: CallModel, state: State, work: WorkingSet, services: Services, sink: Sink
) -> Outcome | None:
    """Calls the model and returns the outcome; None if it is no longer wanted."""
    time_s = asyncio.get_running_loop().time
    call = _ModelCall(command, state, work, services, time_s, time_s(), Assembler(""))
    work.answering = None
    try:
        model = resolve(work, command.choice)
    except WeftlineError as gone:
        # It existed when the run was created: its provider was deleted, or the configuration changed.
        return call.failed(ProviderError("invalid_request", gone.message))
    call.model = model
    limit_s, planned = services.model_timeout_s, False
    if state.limits.policy is not None:
        limit_s, planned = attempt_limit(state.limits.policy, limit_s)
    limit_s = min(limit_s, call.left_s)
    account = work.account if work.account is not None and work.account.active else None
    if account is not None:
        bound_s = account.within(limit_s, services.clock, final=command.final)
        # The next reservation decides whether there is time for another attempt.
        limit_s, planned = bound_s, planned or bound_s < limit_s
    request = _request(command, state, work, model, timeout_s=limit_s + _SLACK_S)
    code = (work.toolbox or EMPTY).code
    if code is not None:
        try:
            if state.seats is not None:
                request = _seated(request, state, work, code.seats)
            memory = work.conversation.shared.values
            request = await code.shape(request, turn=command.turn, attempt=command.attempt, memory=memory)
        except ProviderError as error:
            return call.failed(error)
    request = with_reminders(request, work, turn=command.turn)
    request.note = ProviderNotes(sink, command.turn)
    assembler = call.assembler
    assembler.provider = model.provider.name
    # A crash must change neither the reservation of a call under a budget nor the release of earlier ones.
    await sink.permit(all=account is not None)
    call.started_s = time_s()
    renewals = None if code is None else watch_renewals()
    stream = open_stream(model.provider, request)
    answering = False
    deadline = services.deadlines.after(limit_s)
    try:
        with deadline:
            deltas = Deltas(sink, turn=command.turn, attempt=command.attempt)
            written = (
                ArgumentDeltas(sink, turn=command.turn, attempt=command.attempt) if work.plan.stream_arguments else None
            )
            async for chunks in stream:
                if not sink.wanted():
                    return None  # no longer wanted, and the provider ignores the cancellation
                answering = True
                if code is not None and renewals is not None and renewals.pop_any():
                    await code.renewed(command.turn, model.provider.name)
                deltas.take(chunks, assembler.feed(chunks))
                if written is not None:
                    written.take(chunks)
                if code is not None:
                    _stream_to(code, chunks, turn=command.turn)
                work.answering = assembler
                if sink.full():
                    await sink.durable()
            metadata: dict[str, str] = {}
            if hasattr(model.provider, "response_metadata"):
                metadata = await late_metadata(model.provider, request)
        if not assembler.complete:
            raise ProviderError("server", "The model's answer was cut off before it was complete.", unanswered=True)
        message = assembler.message()
        if assembler.call_count:
            message = _with_own_ids(message, command.turn, work.conversation)
        elif assembler.finish_reason == "malformed_function_call":
            # There is neither a call nor an answer: all that can be done is ask again.
            raise ProviderError("server", "The model wrote a tool call that its own API could not parse.")
    except ProviderError as error:
        if code is not None and renewals is not None and renewals.pop_any():
            await code.renewed(command.turn, model.provider.name)
        return await call.ended_badly(error)
    except BaseException as raised:
        if deadline.expired and isinstance(raised, TimeoutError):
            return await call.ended_badly(out_of_time(limit_s, answering and not planned))
        if is_being_cancelled() or is_interruption(raised):
            raise
        logger.exception("the provider %s failed", model.provider.name)
        return await call.ended_badly(classified(model.provider, raised))
    else:
        return await call.completed(message, metadata)
    finally:
        await close_stream(stream)


class _ModelCall(Struct, eq=False):
    """One attempt, and what to report about it."""

    _command: CallModel
    _state: State
    """In which the call was decided on."""
    _work: WorkingSet
    _services: Services
    _time_s: Callable[[], float]
    started_s: float
    assembler: Assembler
    model: ResolvedModel | None = None

    @property
    def left_s(self) -> float:
        """The time that this attempt may take, after the earlier ones of its turn at this model."""
        return max(self._services.model_retries_timeout_s - self._state.attempt.spent_us / 1e6, 0.0)

    async def ended_badly(self, error: ProviderError) -> Outcome:
        code = (self._work.toolbox or EMPTY).code
        error.provider = None if self.model is None else self.model.provider.name
        if code is not None:
            with suppress(CodeFailed):  # it has failed already
                await code.answered(self._command.turn, None, error)
        return self.failed(error)

    def failed(self, error: ProviderError) -> Outcome:
        retry_at, wait_s = None, 0.0
        asked_s = error.retry_after_s or 0.0
        patience_s = LONG_WAIT_S if self._command.choice < self._state.fallbacks else MAX_RETRY_AFTER_S
        retryable = error.retryable and asked_s <= patience_s
        active_us = self._active_us()
        if retryable and active_us / 1e6 >= self.left_s:
            retryable = False
            error.message = f"{error.message} {out_of_retries(self._services.model_retries_timeout_s)}"
        if retryable:
            wait_s = retry_wait_s(error, failures=self._state.attempt.failures)
            retry_at = self._services.clock.now_us() + int(wait_s * 1_000_000)
        self._report(error, wait_s, retryable=retryable)
        used = spent(self.assembler, estimate=self._state.attempt.estimate, unanswered=error.unanswered)
        head = AttemptFailed(
            self._command.turn,
            self._command.attempt,
            AGENT_ERROR if isinstance(error, CodeFailed) else error.cls,
            retryable=retryable,
            retry_at=retry_at,
            usage=used.usage,
            estimated=used.estimated,
            cost_nusd=cost_nusd(self._work, self._command.choice, used.usage),
            active_us=active_us,
        )
        message = error.message or "The model call failed."
        causes = kept_causes(error)
        body = bodies.FailedBody(message, self.assembler.text, error.code, error.status, error.retry_after_s, causes)
        return Outcome(Draft(head, bodies.encode(body)))

    def _report(self, error: ProviderError, wait_s: float, *, retryable: bool) -> None:
        command, limits = self._command, self._state.limits
        if retryable and self._state.attempt.failures < limits.max_retries:
            next_step = f"trying again in {wait_s:.1f} s"
        elif command.choice < self._state.fallbacks:
            next_step = "asking the next model"
        else:
            next_step = "not trying again"
        logger.warning(
            "run %s: the model call failed: provider %s, model %s, status %s, %s, turn %d, attempt %d, %s: %.300s",
            self._work.run_id,
            "unknown" if self.model is None else self.model.provider.name,
            self._model_name(),
            error.status or "none",
            error.cls,
            command.turn,
            command.attempt,
            next_step,
            error.message,
            extra=fields(
                run=self._work.run_id,
                provider="unknown" if self.model is None else self.model.provider.name,
                model=self._model_name(),
                status=error.status,
                class_=error.cls,
                code=error.code or None,
                turn=command.turn,
                attempt=command.attempt,
                next=next_step,
            ),
        )

    def _model_name(self) -> str:
        if self.model is not None:
            return self.model.catalog_id
        return model_id(self._work, self._command.choice) or "default"

    async def completed(self, message: Assistant, metadata: dict[str, str]) -> Outcome:
        work, command, assembler = self._work, self._command, self.assembler
        model, catalog = self.model, work.catalog
        assert model is not None
        active_us = self._active_us()
        if active_us > self._services.slow_turn_us:
            logger.info(
                "run %s: slow turn: the model %s took %.1f s for turn %d",
                work.run_id,
                self._model_name(),
                active_us / 1e6,
                command.turn,
                extra=fields(run=work.run_id, model=self._model_name(), seconds=active_us / 1e6, turn=command.turn),
            )
        if work.plan.output_schema is not None:
            message = _unfenced(message)
        toolbox = work.toolbox or EMPTY
        if toolbox.code is not None:
            message = toolbox.code.received(message)
            try:
                await toolbox.code.answered(command.turn, message, None)
            except CodeFailed as error:
                return self.failed(error)
        asked, turn = await prepare_calls(message, work, self._services, turn=command.turn, state=self._state)
        text = message.text
        used = spent(assembler, estimate=self._state.attempt.estimate)
        problem = "" if asked or work.plan.output_schema is None else await describe_invalid_answer(work, text)
        head = TurnCompleted(
            command.turn,
            command.attempt,
            finish=assembler.finish_reason,
            usage=used.usage,
            estimated=used.estimated,
            cost_nusd=None if catalog is None else cost_of(catalog, model, used.usage),
            calls=asked,
            signature=signature([(call.name, call.digest) for call in asked]) if asked else "",
            has_text=bool(text),
            output_invalid=bool(problem),
            active_us=self._active_us(),
            metadata=metadata,
        )
        turn.problem = problem
        if work.conversation.shared.unsaved:
            turn.state = work.conversation.shared.changes()
        draft = Draft(head, bodies.encode(turn), turn)
        if ProviderCall not in map(type, message.parts):
            return Outcome(draft)
        executed = [note_body(part, turn=command.turn) for part in message.parts if type(part) is ProviderCall]
        return Outcome(draft, notes=((PROVIDER_CALL, executed),))

    def _active_us(self) -> int:
        return int((self._time_s() - self.started_s) * 1_000_000)


def retry_wait_s(error: ProviderError, *, failures: int) -> float:
    """Returns how long to wait before the next attempt; never less than the provider asks for."""
    wait_s = min(RETRY_FIRST_S * 2**failures, MAX_RETRY_S) * random.uniform(0.5, 1.0)
    return max(wait_s, error.retry_after_s or 0.0)


def _stream_to(code: RunCode, chunks: Sequence[Chunk], *, turn: int) -> None:
    for chunk in chunks:
        if type(chunk) is TextDelta:
            code.streamed("text", chunk.text, turn=turn)
        elif type(chunk) is ThinkingDelta:
            code.streamed("thinking", chunk.text, turn=turn)


def abandoned(command: CallModel, work: WorkingSet, *, estimate: int, goes_on: bool = False) -> Draft:
    """Records an attempt that is cut off because the server stops: its usage is known now and would be forgotten later.

    With `goes_on`, the provider does not stop, and its latest report of usage may not be the last one.
    """
    used = NOTHING if work.answering is None else spent(work.answering, estimate=estimate)
    goes_on = goes_on and work.answering is not None and not work.answering.complete
    head = AttemptFailed(
        command.turn,
        command.attempt,
        "abandoned",
        reason="abandoned",
        usage=used.usage,
        estimated=used.estimated or goes_on,
        cost_nusd=cost_nusd(work, command.choice, used.usage),
    )
    return Draft(head, bodies.encode(bodies.FailedBody("abandoned")))


def out_of_time(limit_s: float, answering: bool) -> ProviderError:
    """The error for a time-out. Silence is worth another attempt; an answer that was still being written would take
    just as long again.
    """
    limit = f"{limit_s:g} seconds"
    if answering:
        return ProviderError("upstream_deadline", f"The model was still answering after {limit}.", unanswered=True)
    return ProviderError("timeout", f"The model gave no answer within {limit}.", unanswered=True)


def out_of_retries(limit_s: float) -> str:
    return f"It is not asked again: its attempts in this turn took {limit_s:g} seconds together."


def classified(provider: Provider, raised: BaseException) -> ProviderError:
    """Converts an exception that is not a `ProviderError`, by the custom provider's own classifier if it has one."""
    classify = getattr(provider, "classify_error", None)
    found = None
    with attempt(logger, "the classifier of the provider %s failed", provider.name):
        found = classify(raised) if classify is not None else None
    if isinstance(found, ProviderError):
        found.__cause__ = found.__cause__ or raised
        return found
    if isinstance(raised, TimeoutError):
        found = ProviderError("timeout", "The model's provider did not answer in time.", unanswered=True)
        found.__cause__ = raised
        return found
    unknown = ProviderError("unknown", "The model call failed unexpectedly.", retryable=False)
    unknown.__cause__ = raised
    return unknown


def _request(
    command: CallModel, state: State, work: WorkingSet, model: ResolvedModel, *, timeout_s: float
) -> ModelRequest:
    plan, conversation, toolbox = work.plan, work.conversation, work.toolbox or EMPTY
    sampling = plan.sampling
    request = ModelRequest(  # with more than 15 names, all of them would be put into a dictionary first
        model=model.vendor_id,
        messages=conversation.view.for_model(vision=model.entry.vision),
        system=plan.system if conversation.system is None else conversation.system,
        tools=toolbox.specs,
        tools_disabled=command.final,
        reasoning=plan.reasoning,
        output_schema=plan.output_schema,
        cache_key=work.run_id if plan.path else work.session_id or work.run_id,
        max_output_tokens=sampling.max_output_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        stop=sampling.stop,
        call_index=state.totals.calls_made,
        timeout_s=timeout_s,
        native=conversation.view.native(model.catalog_id),
    )
    if state.guards.withheld:
        request.tools = [spec for spec in toolbox.specs if spec.name not in state.guards.withheld]
    if state.budget.holds:
        held = state.budget.holds.get(attempt_slot(command.turn, command.attempt))
        if held is not None and held.output:  # what was reserved for the answer, which may not have more
            request.max_output_tokens = held.output
    if toolbox.code is not None:
        request.run = toolbox.code.context
    return request


def _seated(request: ModelRequest, state: State, work: WorkingSet, seats: Seats) -> ModelRequest:
    """The request of the seat that speaks: with its prompt and its tools, and the conversation as its side sees it.

    Raises `CodeFailed` if the agent does not have the seat any more.
    """
    seat = seats.of(state)
    if seat is None or state.seats is None:
        raise CodeFailed(f"The agent has no {name_of(state)} any more.", code="agent_unavailable")
    tools = [spec for spec in request.tools if seats.has(seat, spec.name)]
    if state.seats.index:  # the first seat is what the run's plan describes
        request = replace(request, system=seat.system, reasoning=seat.reasoning)
    own = request.messages
    seen = work.conversation.sides.seen_by_speaker(state.limits.seats, own)
    if seen is not own:
        request = replace(request, messages=seen, native=[])
    return replace(request, tools=tools)


def _excess(text: str) -> str:
    """Why JSON that a model wrote is too large to be read here, or "" if it is not."""
    if len(text) <= _NEVER_TOO_MUCH_CHARS:
        return ""
    if len(text) > MAX_JSON_CHARS:
        return f"more than {MAX_JSON_CHARS:,} characters of JSON"
    return excess(text.encode(errors="replace"))


_NEVER_TOO_MUCH_CHARS = 16 * 1024
MAX_JSON_CHARS = 4 * 1024 * 1024
"""For a call's arguments, or an answer that has to fit a schema: several times what a model can write at once."""


async def describe_invalid_answer(work: WorkingSet, text: str) -> str:
    """Returns how the answer violates the run's output schema, or "" if it does not."""
    plan = work.plan
    if plan.output_schema is None:
        return ""
    if too_much := _excess(text):
        return prompts.turns.answer_not_json(f"it has {too_much}")
    try:
        issues = await issues_of(canonical(text), plan.output_schema.schema)
    except NotCanonical as error:
        return prompts.turns.answer_not_json(str(error))
    return (
        prompts.turns.answer_invalid([f"{issue.path or '/'}: {issue.message}" for issue in issues[:5]])
        if issues
        else ""
    )


def _unfenced(message: Assistant) -> Assistant:
    """An answer in JSON without the code fence around it, so that every reader finds plain JSON."""
    texts = [index for index, part in enumerate(message.parts) if isinstance(part, Text)]
    if len(texts) != 1 or message.calls:
        return message
    (index,) = texts
    fenced = message.parts[index]
    assert isinstance(fenced, Text)
    text = without_fence(fenced.text)
    if text == fenced.text:
        return message
    return replace(message, parts=(*message.parts[:index], replace(fenced, text=text), *message.parts[index + 1 :]))


def _with_own_ids(message: Assistant, turn: int, conversation: Conversation) -> Assistant:
    """Gives each call an id that is unique in the run: the provider's own, unless it is repeated or missing.

    In that case the id is made from the call's place, which no other call of the run has. Raises `ProviderError` for a
    call whose arguments are too large to be read here.
    """
    known, taken = conversation.calls.ids, set[str]()
    parts: list[AssistantPart] = []
    index = 0
    for part in message.parts:
        if type(part) is ToolCall:
            if too_much := _excess(part.args):
                raise ProviderError("server", f"The model called a tool with {too_much}.", retryable=False)
            identity = part.id
            too_long = len(identity.encode(errors="replace")) > _MAX_ID_BYTES
            if not identity or too_long or identity in known or identity in taken:
                identity = f"call_{turn}_{index}"
                while identity in known or identity in taken:
                    identity += "_"
                part = replace(part, id=identity)
            taken.add(identity)
            index += 1
        parts.append(part)
    return Assistant(tuple(parts))
