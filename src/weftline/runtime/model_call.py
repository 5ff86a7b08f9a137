"""Carries out one attempt of a model turn: streams it into the log and closes it as completed or failed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.json import Encoder
from msgspec.structs import replace

from weftline.canonical import NotCanonical, canonical, digest
from weftline.errors import WeftlineError
from weftline.kernel import bodies
from weftline.kernel.accept import accepts
from weftline.kernel.entries import (
    PROVIDER_CALL,
    TEXT_DELTA,
    THINKING_DELTA,
    AskedCall,
    AttemptFailed,
    TurnCompleted,
)
from weftline.kernel.guards import signature
from weftline.kernel.state import CallModel
from weftline.messages import Assistant, AssistantPart, ProviderCall, ToolCall, joined_text
from weftline.providers.assemble import Assembler
from weftline.providers.base import Chunk, ModelRequest, Provider, ProviderError, TextDelta, ThinkingDelta
from weftline.providers.catalog import ResolvedModel
from weftline.providers.offers import late_metadata
from weftline.providers.throttle import close_stream
from weftline.runtime.live import LiveRun, Prepared, is_being_cancelled
from weftline.runtime.toolbox import Toolbox
from weftline.runtime.transcript import Transcript
from weftline.tools.arguments import InvalidArguments
from weftline.tools.client_side import input_invalid_result
from weftline.tools.schema import ArgsValidator
from weftline.wire.events import provider_call

if TYPE_CHECKING:
    from weftline.runtime.driver import Driver

logger = logging.getLogger(__name__)

MODEL_TIMEOUT_S = 120.0
_SLACK_S = 5.0
"""So that the deadline is told by who knows how far the answer had come."""
_RETRY_FIRST_S, _RETRY_MOST_S = 0.5, 60.0
_encode = Encoder().encode
_PROVIDER_ID_BYTES = 128


async def call_model(driver: Driver, run: LiveRun, command: CallModel) -> None:
    run.attempt_usage, run.partial = None, ""
    started = asyncio.get_running_loop().time()
    try:
        model = driver.model(run, command.choice)
    except WeftlineError as gone:
        # It was there when the run was created: its provider was deleted, or the configuration changed.
        _failed(driver, run, command, ProviderError("invalid_request", gone.message), Assembler(""), started)
        return
    transcript, toolbox = driver.transcript(run), driver.toolbox(run)
    request = _request(run, command, model, transcript, toolbox, timeout_s=driver.model_timeout_s + _SLACK_S)
    assembler = Assembler(model.provider.name)
    stream = model.provider.stream(request)
    answering = False
    try:
        async with asyncio.timeout(driver.model_timeout_s):
            tail = b',"turn":%d,"attempt":%d}' % (command.turn, command.attempt)
            async for chunks in stream:
                if not run.state.attempt_open:
                    return  # nobody asks for this any more, and the provider does not listen
                answering = True
                assembler.feed(chunks)
                _append_deltas(driver, run, chunks, tail)
                run.attempt_usage = assembler.usage
                if driver.log.behind(run):
                    await driver.log.durable(run)
            metadata = await late_metadata(model.provider, request)
        if not assembler.complete:
            raise ProviderError("server", "The model's answer was cut off before its end.")
        if assembler.finish_reason == "malformed_function_call" and not assembler.message().calls:
            # Nothing was called and nothing was answered: asking again is all that can be done with such a turn.
            raise ProviderError("server", "The model wrote a tool call that its own API could not read.")
    except ProviderError as error:
        _failed(driver, run, command, error, assembler, started)
    except TimeoutError:
        _failed(driver, run, command, _out_of_time(driver.model_timeout_s, answering), assembler, started)
    except (Exception, asyncio.CancelledError) as raised:
        if is_being_cancelled():
            if driver.stopping and run.attempt_usage:
                _abandoned(driver, run, command, assembler, started)
            raise
        logger.exception("run %s: the provider %s failed", run.id, model.provider.name)
        _failed(driver, run, command, _classified(model.provider, raised), assembler, started)
    else:
        _completed(driver, run, command, assembler, started, metadata)
    finally:
        await close_stream(stream)


def _out_of_time(limit_s: float, answering: bool) -> ProviderError:
    """Silence is worth another try; an answer that was still being written would be as long again."""
    limit = f"{limit_s:g} seconds"
    if answering:
        return ProviderError("upstream_deadline", f"The model was still answering after {limit}.")
    return ProviderError("timeout", f"The model gave no answer within {limit}.")


def _classified(provider: Provider, raised: BaseException) -> ProviderError:
    """What a custom provider's own classifier makes of an error that it did not raise as a `ProviderError`."""
    classify = getattr(provider, "classify_error", None)
    try:
        known = classify(raised) if classify is not None else None
    except Exception:
        logger.exception("the classifier of the provider %s failed", provider.name)
        known = None
    if isinstance(known, ProviderError):
        return known
    return ProviderError("unknown", "The model call failed unexpectedly.", retryable=False)


def _request(
    run: LiveRun,
    command: CallModel,
    model: ResolvedModel,
    transcript: Transcript,
    toolbox: Toolbox,
    *,
    timeout_s: float,
) -> ModelRequest:
    plan = run.plan
    assert plan is not None
    if transcript.native_for != model.catalog_id:
        transcript.native, transcript.native_for = [], model.catalog_id
    return ModelRequest(
        model=model.vendor_id,
        messages=transcript.shown_to(vision=model.entry.vision),
        system=plan.system,
        tools=toolbox.specs,
        tools_disabled=command.final,
        reasoning=plan.reasoning,
        output_schema=plan.output_schema,
        call_index=run.state.calls_made,
        timeout_s=timeout_s,
        native=transcript.native,
    )


def _append_deltas(driver: Driver, run: LiveRun, chunks: Sequence[Chunk], tail: bytes) -> None:
    """Encodes the streamed text of one read; runs of one kind become one append."""
    kind = ""
    encoded: list[bytes] = []
    for chunk in chunks:
        if isinstance(chunk, TextDelta):
            this = TEXT_DELTA
        elif isinstance(chunk, ThinkingDelta):
            this = THINKING_DELTA
        else:
            continue
        if not chunk.text:
            continue
        if this != kind and encoded:
            driver.log.append_deltas(run, kind, encoded)
            encoded = []
        kind = this
        encoded.append(b'{"text":' + _encode(chunk.text) + tail)
    if encoded:
        driver.log.append_deltas(run, kind, encoded)


def _active_us(started: float) -> int:
    return int((asyncio.get_running_loop().time() - started) * 1_000_000)


def _failed(
    driver: Driver, run: LiveRun, command: CallModel, error: ProviderError, assembler: Assembler, started: float
) -> None:
    run.failure, run.partial = error.message or "The model call failed.", assembler.text
    retry_at = None
    if error.retryable:
        wait_s = min(_RETRY_FIRST_S * 2**run.state.failures, _RETRY_MOST_S) * random.uniform(0.5, 1.0)
        retry_at = driver.clock.now_us() + int(max(wait_s, error.retry_after_s or 0.0) * 1_000_000)
    head = AttemptFailed(
        command.turn,
        command.attempt,
        error.cls,
        retryable=error.retryable,
        retry_at=retry_at,
        usage=assembler.usage,
        cost_nusd=driver.cost_nusd(run, command.choice, assembler.usage),
        active_us=_active_us(started),
    )
    run.attempt_usage = None
    if accepts(run.state, head):
        body = bodies.FailedBody(run.failure, run.partial, error.code, error.status, error.retry_after_s)
        driver.log.append(run, [(head, bodies.encode(body))])


def _abandoned(driver: Driver, run: LiveRun, command: CallModel, assembler: Assembler, started: float) -> None:
    """The server stops: what the attempt has cost is known now and would only be estimated later."""
    head = AttemptFailed(
        command.turn,
        command.attempt,
        "abandoned",
        reason="abandoned",
        usage=assembler.usage,
        active_us=_active_us(started),
    )
    if accepts(run.state, head):
        driver.log.append(run, [(head, bodies.encode(bodies.FailedBody("abandoned", assembler.text)))])


def _completed(
    driver: Driver, run: LiveRun, command: CallModel, assembler: Assembler, started: float, metadata: dict[str, str]
) -> None:
    transcript, toolbox = driver.transcript(run), driver.toolbox(run)
    message = _with_own_ids(assembler.message(), command.turn, transcript)
    asked = prepare_calls(run, message, toolbox)
    text = message.text
    head = TurnCompleted(
        command.turn,
        command.attempt,
        finish=assembler.finish_reason,
        usage=assembler.usage,
        cost_nusd=driver.cost_nusd(run, command.choice, assembler.usage),
        calls=asked,
        signature=signature((call.name, call.digest) for call in asked) if asked else "",
        has_text=bool(text),
        output_invalid=not asked and _misfit(run, text),
        active_us=_active_us(started),
        metadata=metadata,
    )
    run.attempt_usage = None
    if accepts(run.state, head):
        body = bodies.encode(message)
        executed = [provider_call(part, turn=command.turn) for part in message.parts if isinstance(part, ProviderCall)]
        if executed:
            driver.log.append_deltas(run, PROVIDER_CALL, executed)
        driver.log.append(run, [(head, body)])
        transcript.apply(head, body, message)


def _misfit(run: LiveRun, text: str) -> bool:
    """Whether the answer breaks the run's output schema; says how in `run.failure`."""
    plan = run.plan
    if plan is None or plan.output_schema is None:
        return False
    try:
        issues = ArgsValidator.of(plan.output_schema.schema).validate(canonical(text))
    except NotCanonical as error:
        run.failure = f"The answer is not JSON: {error}."
        return True
    if issues:
        found = "; ".join(f"{issue.path or '/'}: {issue.message}" for issue in issues[:5])
        run.failure = f"The answer does not fit the output schema: {found}."
    return bool(issues)


def _with_own_ids(message: Assistant, turn: int, transcript: Transcript) -> Assistant:
    """Gives each call an id that is unique in the run: the provider's own, unless it repeats or is missing."""
    if not any(isinstance(part, ToolCall) for part in message.parts):
        return message
    taken = set(transcript.call_ids)
    parts: list[AssistantPart] = []
    index = 0
    for part in message.parts:
        if isinstance(part, ToolCall):
            identity = part.id
            if not identity or identity in taken or len(identity) > _PROVIDER_ID_BYTES:
                identity = f"call_{turn}_{index}"
                while identity in taken:
                    identity += "_"
            taken.add(identity)
            index += 1
            part = part if identity == part.id else replace(part, id=identity)
        parts.append(part)
    return Assistant(tuple(parts))


def prepare_calls(run: LiveRun, message: Assistant, toolbox: Toolbox) -> tuple[AskedCall, ...]:
    """Finds each call's tool and final arguments. What it finds out are facts; what follows is for the kernel."""
    run.prepared = {}
    asked: list[AskedCall] = []
    for index, call in enumerate(message.calls):
        tool = toolbox.get(call.name)
        if tool is None:
            args = _shown(call.args)
            run.prepared[index] = Prepared(args)
            asked.append(AskedCall(call.id, call.name, digest(args), verdict="unknown", concurrent=True))
            continue
        try:
            args = tool.prepare(call.args)
        except InvalidArguments as error:
            args = _shown(call.args)
            run.prepared[index] = Prepared(args, joined_text(input_invalid_result(tool, error).parts))
            asked.append(
                AskedCall(call.id, call.name, digest(args), "invalid", tool.effect, tool.client, tool.concurrent)
            )
            continue
        run.prepared[index] = Prepared(args)
        asked.append(AskedCall(call.id, call.name, digest(args), "ok", tool.effect, tool.client, tool.concurrent))
    return tuple(asked)


def _shown(args: str) -> bytes:
    """Arguments that never reach a tool, as far as they can be shown: an object, or nothing."""
    try:
        canon = canonical(args)
    except NotCanonical:
        return b"{}"
    return canon if canon.startswith(b"{") else b"{}"
