"""Answers to awaits: found, checked, also by the four-eyes rule, and appended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set
from typing import Any, TypeAlias

from msgspec import UNSET

from weftline.errors import Forbidden
from weftline.kernel.accept import open_await
from weftline.kernel.bodies import decode_answer, decode_control, decode_queued
from weftline.kernel.control import OF_RUN
from weftline.kernel.entries import KIND, AwaitClosed, AwaitOpened, AwaitOutcome, MessageQueued, RunResumed, decode_fact
from weftline.kernel.state import Question
from weftline.runtime import ids
from weftline.runtime.live import Draft, LiveRun
from weftline.runtime.people.answering import (
    NAMELESS,
    AwaitAnswer,
    closing,
    earlier_outcome,
    edited,
    needs_tools,
    require_askable,
)
from weftline.runtime.reads.relatives import asked_by
from weftline.store.base import LogReader, LogStore

PersonOf: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Returns the person behind a name; None if that is no longer known."""

_CODE = "hook:"
_LOOK_BACK = 1000
_LOOK_BACK_BYTES = 32 * 1024 * 1024


async def as_named(name: str) -> str | None:
    """Treats every name as a person, for callers whose users cannot give themselves a second name."""
    return name


def needs_second_person(run: LiveRun, question: Question, answer: AwaitAnswer) -> bool:
    """Returns True if somebody other than the requester of the run must answer.

    The result of a call in doubt counts as an approval, because it could be made up.
    """
    decides = answer.outcome == "approved" or (question.kind == "doubt" and answer.outcome == "answered")
    return run.state.limits.four_eyes and decides


async def require_second_person(
    run: LiveRun, by: str, person_of: PersonOf, *, store: LogReader, load: Callable[[int], Awaitable[LiveRun]]
) -> None:
    """Raises `Forbidden` if `by` has requested the run, or has sent instructions to it or to a run above it.

    The rule applies to people with names: without names, two could be the same person.
    """
    requested_by = run.work.plan.requested_by
    if not requested_by:
        raise Forbidden("It is not known who requested the run, so nobody may approve its calls.", code="four_eyes")
    if by == NAMELESS:
        raise Forbidden("Say who approves this: it must not be the person who requested it.", code="four_eyes")
    steerers = await _steered_by(store, run.key)
    parent = run.state.parent
    while parent is not None:
        above = await load(ids.parent_key(parent))
        steerers += await _steered_by(store, above.key)
        parent = above.state.parent
    requester = await person_of(requested_by)
    steered_by = {await person_of(name) for name in steerers}
    if requester is None or None in steered_by:
        raise Forbidden("It is no longer known who requested the run, so nobody may approve it.", code="four_eyes")
    person = await person_of(by)
    if person is None or person == requester:
        raise Forbidden("The person who requested the run cannot approve its calls.", code="four_eyes")
    if person in steered_by:
        raise Forbidden("Someone who steered the run cannot approve its calls.", code="four_eyes")


def require_unchanged(run: LiveRun, question: Question, args: bytes) -> None:
    """Raises `Forbidden` for an approval with changed arguments: only the approver would have wanted that call."""
    requested = run.work.conversation.turn.args[question.index : question.index + 1]
    if run.state.limits.four_eyes and question.kind != "plan" and [args] != list(requested):
        raise Forbidden("You cannot change the arguments and approve them; deny the call instead.", code="four_eyes")


async def _steered_by(store: LogReader, run: int) -> list[str]:
    """Who has sent a run instructions since one of its calls was last approved: in a message, in an answer, or by
    editing a plan.
    """
    kinds = KIND[RunResumed], KIND[AwaitClosed], KIND[MessageQueued]
    facts = await store.newest_facts(run, kinds=kinds, limit=_LOOK_BACK, max_bytes=_LOOK_BACK_BYTES)
    opened = [decode_fact.decode(head) for head in await store.heads(run, kinds=(KIND[AwaitOpened],))]
    plans = {head.id for head in opened if isinstance(head, AwaitOpened) and head.kind == "plan"}
    found: list[str] = []
    for fact in reversed(facts):
        head = decode_fact.decode(fact.head)
        if isinstance(head, AwaitClosed) and head.index != OF_RUN:
            if _has_content(head, fact.body, plans):
                found.append(head.by)
            if head.outcome == "approved":
                break
        if isinstance(head, RunResumed) and fact.body and decode_control(fact.body).messages:
            found.append(head.requested_by)
        if isinstance(head, MessageQueued) and (by := decode_queued(fact.body).by):
            found.append(by)
    return found


def _has_content(head: AwaitClosed, body: bytes, plans: Set[str]) -> bool:
    """Returns True if an await was closed by a person whose answer tells the model something."""
    if head.by.startswith(_CODE):
        return False
    if head.outcome == "approved" and head.id in plans and body:
        answer = decode_answer(body)
        return answer.value is not UNSET or bool(answer.reason)
    return head.outcome == "answered"


class AwaitAnswers:
    """`append` appends facts to a run, continues it, and returns when they are durable; `settled` returns when
    everything that a rejection is based on is durable.
    """

    def __init__(
        self,
        store: LogStore,
        load: Callable[[int], Awaitable[LiveRun]],
        append: Callable[[LiveRun, tuple[Draft, ...]], Awaitable[None]],
        settled: Callable[[LiveRun], Awaitable[None]],
        *,
        open_tools: Callable[[LiveRun], Awaitable[None]],
    ) -> None:
        self._store = store
        self._load = load
        self._append = append
        self._settled = settled
        self._open_tools = open_tools

    async def answer(
        self, key: int, await_id: str, answer: AwaitAnswer, *, by: str, person_of: PersonOf
    ) -> AwaitOutcome:
        """See `Engine.answer_await`. The run may advance or leave memory at every `await`, so it is loaded again."""
        key, await_id = await asked_by(self._store, key, await_id)
        await self._require_second_person(key, await_id, answer, by, person_of)
        if answer.args is not None:
            run, args = await self._edited(key, await_id, answer, answer.args, by=by)
        else:
            run, args = await self._with_tools(key, await_id), None
        question = open_await(run.state, await_id)
        if question is None:
            ended = run.state.ended or bool(run.state.control.cancel)
            await self._settled(run)  # a rejection, too, must be based on what a crash cannot undo
            return await earlier_outcome(self._store, key, await_id, answer, by=by, ended=ended)
        require_askable(run, question, answer, by=by)
        if args is not None:
            require_unchanged(run, question, args)
        await self._append(run, (closing(run, await_id, question, answer, by=by, args=args),))
        return answer.outcome

    async def _require_second_person(
        self, key: int, await_id: str, answer: AwaitAnswer, by: str, person_of: PersonOf
    ) -> None:
        """Raises `Forbidden` if somebody who sent the run instructions tries to approve it."""
        run = await self._load(key)
        question = open_await(run.state, await_id)
        if question is not None and needs_second_person(run, question, answer):
            require_askable(run, question, answer, by=by)
            await self._settled(run)
            await require_second_person(run, by, person_of, store=self._store, load=self._load)

    async def _edited(
        self, key: int, await_id: str, answer: AwaitAnswer, sent: dict[str, Any], *, by: str
    ) -> tuple[LiveRun, bytes | None]:
        """The arguments that the answer contains, as the tool accepts them; None if the await has been closed in the
        meantime.
        """
        args: bytes | None = None
        run = await self._load(key)
        while args is None and (question := open_await(run.state, await_id)) is not None:
            require_askable(run, question, answer, by=by)
            await self._open_tools(run)
            if open_await(run.state, await_id) is not None:  # it may have advanced in the meantime, or ended
                args = await edited(run, question.index, sent)
            run = await self._load(key)
        return run, args

    async def _with_tools(self, key: int, await_id: str) -> LiveRun:
        """The run, with its tools if the answer needs them."""
        run = await self._load(key)
        while run.work.toolbox is None and (question := open_await(run.state, await_id)):
            if not needs_tools(run, question):
                break
            await self._open_tools(run)
            run = await self._load(key)
        return run
