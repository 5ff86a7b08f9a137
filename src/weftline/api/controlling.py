"""What people and clients can send to a run: answers, pauses, resumes, messages, and leases on its calls."""

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
from weftline.runtime.engine import Engine, Leased
from weftline.runtime.people.answering import AwaitAnswer
from weftline.wire.leases import ClaimModel, Lease, LeaseModel, Released
from weftline.wire.responses import Warnings, iso
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


async def claim_call(calls: Engine, key: int, sent: ClaimModel, *, by: str, warnings: Warnings = UNSET) -> Lease:
    lease_us, claim_id = sent.leaseMs * 1000, sent.claimId or ""
    leased = await calls.claim(key, sent.toolUseId, lease_us=lease_us, claim_id=claim_id, by=by)
    return _lease(sent.toolUseId, leased, warnings)


async def keep_call(calls: Engine, key: int, sent: LeaseModel, *, warnings: Warnings = UNSET) -> Lease:
    return _lease(sent.toolUseId, await calls.heartbeat(key, sent.toolUseId, sent.token), warnings)


async def release_call(calls: Engine, key: int, sent: LeaseModel, *, warnings: Warnings = UNSET) -> Released:
    await calls.release(key, sent.toolUseId, sent.token)
    return Released(tool_use_id=sent.toolUseId, warnings=warnings)


def _lease(call: str, leased: Leased, warnings: Warnings) -> Lease:
    return Lease(
        tool_use_id=call,
        token=leased.token,
        lease_ms=leased.lease_us // 1000,
        expires_at=iso(leased.until),
        attempt=leased.attempt,
        warnings=warnings,
    )
