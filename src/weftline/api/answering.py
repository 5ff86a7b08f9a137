"""Answers of people to what runs ask them, for routes, commands and A2A alike."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from weftline.kernel.entries import AwaitOutcome
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import PersonOf
from weftline.workspace.context import Workspaces
from weftline.workspace.people import person_of


class AnsweredRuns(Protocol):
    """Where runs wait for people: a running engine, or a store without one."""

    async def answer_await(
        self, key: int, await_id: str, answer: AwaitAnswer, *, by: str, person_of: PersonOf
    ) -> AwaitOutcome: ...


async def answer_await(
    at: Workspaces, runs: AnsweredRuns, key: int, await_id: str, answer: AwaitAnswer, *, by: str
) -> AwaitOutcome:
    """Gives somebody's answer to an await. For the four-eyes rule, a key or an app is the person who made it."""
    return await runs.answer_await(key, await_id, answer, by=by, person_of=partial(person_of, at))
