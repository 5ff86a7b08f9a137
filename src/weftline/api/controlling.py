"""What people can send to a run: answers, pauses, resumes and messages. Routes and commands both call these."""

from __future__ import annotations

from typing import Protocol

from msgspec import UNSET

from weftline.api.answering import AnsweredRuns, answer_await
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
from weftline.runtime.engine import Steering
from weftline.runtime.reads.reading import StoredRuns
from weftline.wire.responses import Warnings
from weftline.workspace.context import Workspaces


class ControlledRuns(Steering, AnsweredRuns, Protocol):
    """Where people say something to runs: a running engine, or a store without one."""

    @property
    def stored(self) -> StoredRuns: ...


async def answer_run(
    at: Workspaces,
    runs: ControlledRuns,
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


async def pause_run(
    runs: ControlledRuns, key: int, sent: PauseModel, *, by: str, warnings: Warnings = UNSET
) -> Acknowledged:
    await runs.pause(key, reason=sent.reason, requested_by=by, labels=sent.labels)
    return Acknowledged(by=by, warnings=warnings)


async def resume_run(
    runs: ControlledRuns, key: int, sent: ResumeModel, *, by: str, warnings: Warnings = UNSET
) -> Acknowledged:
    await runs.resume(key, notes=sent.notes, requested_by=by, labels=sent.labels, messages=sent.messages)
    return Acknowledged(by=by, warnings=warnings)


async def send_message(
    runs: ControlledRuns,
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
