"""What people are asked by runs and say to them: open questions, answers, pauses and messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from secrets import token_hex
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET
from msgspec.json import encode
from msgspec.structs import replace
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from weftline import labels
from weftline.api.cursors import await_cursor, await_of
from weftline.api.principal import Principal
from weftline.api.views import await_views
from weftline.cases.base import (
    OF_AGENT,
    OF_SESSION,
    Cursor,
    Encoded,
    Host,
    Limit,
    Repeatable,
    Sent,
    locate_run,
    owners,
    unusable,
)
from weftline.errors import Issue, NotFound, invalid
from weftline.kernel.entries import AwaitKind, AwaitOutcome
from weftline.runtime.engine import Engine
from weftline.runtime.people.answering import AwaitAnswer, pattern_of
from weftline.store.records.pages import PAGE_BYTES
from weftline.store.rows import AwaitFilter
from weftline.wire.awaits import AwaitPage, Outcome
from weftline.wire.limits import MAX_ERROR_BYTES, MAX_METADATA_ENTRIES, MAX_METADATA_VALUE_CHARS, MAX_RESULT_BYTES
from weftline.wire.models import Part
from weftline.wire.responses import Ok, Time, Warnings
from weftline.work.heavy import in_turn
from weftline.workspace.context import Workspaces
from weftline.workspace.people import person_of

MAX_MESSAGES = 20
_BUILD_ON_LOOP_BYTES = 64 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Labels: TypeAlias = dict[str, Annotated[str, Field(max_length=MAX_METADATA_VALUE_CHARS)]]


def _pattern(value: object) -> object:
    if type(value) not in (bool, dict):
        raise PydanticCustomError("remember", "must be true, false or a JSON object of arguments")
    return value


class AnswerModel(Part):
    """A person's answer to an await. The credential identifies the person."""

    outcome: Literal["approved", "denied", "answered"]
    args: dict[str, Any] | None = None
    value: Any = None
    reason: str = Field(default="", max_length=MAX_ERROR_BYTES)
    remember: Annotated[bool | dict[str, Any], BeforeValidator(_pattern)] = False
    labels: _Labels = Field(default={}, max_length=MAX_METADATA_ENTRIES)


class PauseModel(Part):
    reason: str = Field(default="", max_length=MAX_ERROR_BYTES)
    labels: _Labels = Field(default={}, max_length=MAX_METADATA_ENTRIES)


class ResumeModel(Part):
    """`messages` are texts that the model reads before its next turn, in this order."""

    notes: str = Field(default="", max_length=MAX_ERROR_BYTES)
    labels: _Labels = Field(default={}, max_length=MAX_METADATA_ENTRIES)
    messages: list[Annotated[str, Field(min_length=1, max_length=MAX_RESULT_BYTES)]] = Field(
        default=[], max_length=MAX_MESSAGES
    )


class MessageToRunModel(Part):
    """A text that the model reads at its next turn (`steer`), or when the run would otherwise end (`follow_up`)."""

    text: str = Field(min_length=1, max_length=MAX_RESULT_BYTES)
    mode: Literal["steer", "follow_up"] = "steer"
    labels: _Labels = Field(default={}, max_length=MAX_METADATA_ENTRIES)


class AnsweredAwait(Ok, frozen=True, rename="camel", kw_only=True):
    id: str
    run_id: str
    outcome: Outcome
    by: str
    """Who gave the answer, as in the log."""
    warnings: Warnings = UNSET


class Acknowledged(Ok, frozen=True, kw_only=True):
    by: str
    """Who requested it, as in the log."""
    warnings: Warnings = UNSET


class QueuedMessage(Ok, frozen=True, kw_only=True):
    id: str
    """Unique in its run."""
    by: str
    """Who sent it, as in the log."""
    warnings: Warnings = UNSET


async def inbox(
    on: Host,
    by: Principal,
    *,
    kind: Annotated[AwaitKind, "Of this kind."] | None = None,
    run_id: Annotated[str, "Of this run and its subagents."] | None = None,
    session_id: OF_SESSION | None = None,
    agent_id: OF_AGENT | None = None,
    name: Annotated[str, "About calls of this tool."] | None = None,
    waiting_since: Annotated[Time, "Only what was already open at this time."] | None = None,
    limit: Limit,
    cursor: Cursor = None,
) -> Encoded[AwaitPage]:
    thread, agents = await owners(on.workspaces, by, session_id=session_id, agent_id=agent_id)
    wanted = AwaitFilter(
        workspace=by.workspace,
        root=None if run_id is None else await _key_or_0(on, by, run_id),
        thread=thread,
        agents=agents,
        kinds=() if kind is None else (kind,),
        tool=name,
        opened_until=None if waiting_since is None else _time_of("waitingSince", waiting_since),
    )
    return await _page(on, wanted, limit=limit, cursor=cursor)


async def of_run(on: Host, by: Principal, run_id: str, *, limit: Limit, cursor: Cursor = None) -> Encoded[AwaitPage]:
    key = await locate_run(on, by, run_id)
    return await _page(on, AwaitFilter(workspace=by.workspace, root=key), limit=limit, cursor=cursor)


async def _key_or_0(on: Host, by: Principal, run_id: str) -> int:
    """Returns the key of a run; 0 for one that does not exist."""
    if not labels.is_possible(run_id):
        raise unusable("runId", "is not the id of a run")
    try:
        return await on.engine.locate(run_id, workspace=by.workspace)
    except NotFound:
        return 0


def _time_of(name: str, text: str) -> int:
    """Returns a time of the query, in microseconds."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return (time - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        pass
    raise unusable(name, "must be a time with a time zone, such as 2026-01-31T12:00:00Z")


async def _page(on: Host, wanted: AwaitFilter, *, limit: int, cursor: str | None) -> Encoded[AwaitPage]:
    after = (0, "") if cursor is None else await_of(cursor)
    async with on.pages.place(wanted.workspace):
        found = await on.engine.stored.awaits(replace(wanted, after=after, limit=limit + 1, max_bytes=PAGE_BYTES))
        page = [one for one in found[:limit] if not one.unread]
        more = await_cursor(page[-1].run, page[-1].id) if len(page) < len(found) else None
        views = AwaitPage(await await_views(page, on.engine.stored.session_id), more)
        large = sum([len(one.body) for one in page]) > _BUILD_ON_LOOP_BYTES
        return Encoded(await in_turn(encode, views) if large else encode(views))


async def answer(on: Host, by: Principal, run_id: str, await_id: str, sent: Repeatable[AnswerModel]) -> AnsweredAwait:
    key = await _waiting(on, by, run_id)
    once = sent.key()
    body = await sent.read()
    warnings = sent.warn(body.unknown)
    # The same answer from somebody else is a different one, so that it is clear whose answer counted. An operator
    # who repeats a command repeats the answer.
    request = f"{by.who} {once}" if once else "" if by.operator else token_hex(16)
    given = answer_of(body.fields, request=request, idempotency_key=once)
    outcome = await give_answer(on.workspaces, on.engine, key, await_id, given, by=by.who)
    return AnsweredAwait(id=await_id, run_id=run_id, outcome=outcome, by=by.who, warnings=warnings)


async def _waiting(on: Host, by: Principal, run_id: str) -> int:
    """Returns the run, or one below it of an agent that the credential may use."""
    if by.agents:
        row = await on.engine.stored.find(run_id, workspace=by.workspace)
        below = AwaitFilter(workspace=by.workspace, run=row.key, agents=by.agents, limit=1, max_bytes=0)
        if await on.engine.stored.awaits(below):
            return row.key
    return await locate_run(on, by, run_id)


async def pause(on: Host, by: Principal, run_id: str, sent: Sent[PauseModel]) -> Acknowledged:
    key = await locate_run(on, by, run_id)
    body = await sent.read()
    warnings = sent.warn(body.unknown)
    await on.engine.pause(key, reason=body.fields.reason, requested_by=by.who, labels=body.fields.labels)
    return Acknowledged(by=by.who, warnings=warnings)


async def resume(on: Host, by: Principal, run_id: str, sent: Sent[ResumeModel]) -> Acknowledged:
    key = await locate_run(on, by, run_id)
    body = await sent.read()
    warnings, fields = sent.warn(body.unknown), body.fields
    await on.engine.resume(key, notes=fields.notes, requested_by=by.who, labels=fields.labels, messages=fields.messages)
    return Acknowledged(by=by.who, warnings=warnings)


async def message(on: Host, by: Principal, run_id: str, sent: Repeatable[MessageToRunModel]) -> QueuedMessage:
    key = await locate_run(on, by, run_id)
    once = sent.key()
    body = await sent.read()
    warnings, fields = sent.warn(body.unknown), body.fields
    send = on.engine.steer if fields.mode == "steer" else on.engine.follow_up
    id = await send(key, fields.text, by=by.who, labels=fields.labels, idempotency_key=once)
    return QueuedMessage(id=id, by=by.who, warnings=warnings)


def answer_of(sent: AnswerModel, *, request: str = "", idempotency_key: str = "") -> AwaitAnswer:
    """Returns the answer. `request` distinguishes a repeated request from another one with the same answer."""
    if sent.value is not None and len(encode(sent.value)) > MAX_RESULT_BYTES:
        raise invalid([Issue("value", f"must not be larger than {MAX_RESULT_BYTES:,} bytes")])
    return AwaitAnswer(
        outcome=sent.outcome,
        args=sent.args,
        value=sent.value,
        reason=sent.reason,
        labels=sent.labels,
        remember=pattern_of("", sent.remember),
        request=request,
        idempotency_key=idempotency_key,
    )


async def give_answer(
    at: Workspaces, engine: Engine, key: int, await_id: str, answer: AwaitAnswer, *, by: str
) -> AwaitOutcome:
    """Gives somebody's answer to an await. For the four-eyes rule, a key or an app is the person who made it."""
    return await engine.answer_await(key, await_id, answer, by=by, person_of=partial(person_of, at))
