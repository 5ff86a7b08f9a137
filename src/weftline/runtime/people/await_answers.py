"""Answers to awaits: found, checked, and appended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from weftline.kernel.accept import open_await
from weftline.kernel.entries import AwaitOutcome
from weftline.runtime.live import Draft, LiveRun
from weftline.runtime.people import four_eyes
from weftline.runtime.people.answering import (
    AwaitAnswer,
    closing,
    earlier_outcome,
    edited,
    needs_tools,
    require_askable,
)
from weftline.runtime.people.four_eyes import PersonOf
from weftline.runtime.reads.descendants import asked_by
from weftline.store.base import LogStore


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
            four_eyes.require_unchanged(run, question, args)
        await self._append(run, (closing(run, await_id, question, answer, by=by, args=args),))
        return answer.outcome

    async def _require_second_person(
        self, key: int, await_id: str, answer: AwaitAnswer, by: str, person_of: PersonOf
    ) -> None:
        """Raises `Forbidden` if somebody who sent the run instructions tries to approve it."""
        run = await self._load(key)
        question = open_await(run.state, await_id)
        if question is not None and four_eyes.needs_second_person(run, question, answer):
            require_askable(run, question, answer, by=by)
            await self._settled(run)
            await four_eyes.require_second_person(run, by, person_of, store=self._store, load=self._load)

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
