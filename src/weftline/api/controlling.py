"""What people can send to a run: answers, pauses, resumes and messages. Routes and commands both call these."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET

from weftline.api.schemas.awaits import (
    Acknowledged,
    AnsweredAwait,
    AnswerModel,
    MessageToRunModel,
    PauseModel,
    QueuedMessage,
    ResumeModel,
    answer_of,
)
from weftline.kernel.entries import AwaitOutcome
from weftline.runtime.engine import Engine
from weftline.runtime.people.answering import AwaitAnswer
from weftline.wire.responses import Warnings
from weftline.workspace.context import Workspaces
from weftline.workspace.people import person_of


async def answer_await(
    at: Workspaces, runs: Engine, key: int, await_id: str, answer: AwaitAnswer, *, by: str
) -> AwaitOutcome:
    """Gives somebody's answer to an await. For the four-eyes rule, a key or an app is the person who made it."""
    return await runs.answer_await(key, await_id, answer, by=by, person_of=partial(person_of, at))


async def answer_run(
    at: Workspaces,
    runs: Engine,
    key: int,
    sent: AnswerModel,
    *,
    run_id: str,
    await_id: str,
    by: str,
    request: str = "",
    idempotency_key: str = "",
    warnings: Warnings = UNSET,
) -> AnsweredAwait:
    """`request` distinguishes a repeated request from another one with the same answer."""
    answer = answer_of(sent, request=request, idempotency_key=idempotency_key)
    outcome = await answer_await(at, runs, key, await_id, answer, by=by)
    return AnsweredAwait(id=await_id, run_id=run_id, outcome=outcome, by=by, warnings=warnings)


async def pause_run(runs: Engine, key: int, sent: PauseModel, *, by: str, warnings: Warnings = UNSET) -> Acknowledged:
    await runs.pause(key, reason=sent.reason, requested_by=by, labels=sent.labels)
    return Acknowledged(by=by, warnings=warnings)


async def resume_run(runs: Engine, key: int, sent: ResumeModel, *, by: str, warnings: Warnings = UNSET) -> Acknowledged:
    await runs.resume(key, notes=sent.notes, requested_by=by, labels=sent.labels, messages=sent.messages)
    return Acknowledged(by=by, warnings=warnings)


async def send_message(
    runs: Engine,
    key: int,
    sent: MessageToRunModel,
    *,
    by: str,
    idempotency_key: str = "",
    warnings: Warnings = UNSET,
) -> QueuedMessage:
    send = runs.steer if sent.mode == "steer" else runs.follow_up
    id = await send(key, sent.text, by=by, labels=sent.labels, idempotency_key=idempotency_key)
    return QueuedMessage(id=id, by=by, warnings=warnings)
