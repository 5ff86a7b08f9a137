"""Answering what runs ask people, free of the models of requests, which take long to load."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from weftline.kernel.entries import AwaitOutcome
from weftline.runtime.engine import Steering
from weftline.runtime.people.answering import Answer
from weftline.runtime.people.four_eyes import PersonOf
from weftline.runtime.reads.reading import StoredRuns
from weftline.workspace.context import Workspaces
from weftline.workspace.people import person_of


class ControlledRuns(Steering, Protocol):
    """Where people say something to runs: a running engine, or a store without one."""

    @property
    def stored(self) -> StoredRuns: ...

    async def answer_await(
        self, key: int, await_id: str, answer: Answer, *, by: str, person_of: PersonOf
    ) -> AwaitOutcome: ...


async def answer_await(
    at: Workspaces, runs: ControlledRuns, key: int, await_id: str, answer: Answer, *, by: str
) -> AwaitOutcome:
    """Gives somebody's answer to an await. For the four-eyes rule, a key or an app is the person who made it."""
    return await runs.answer_await(key, await_id, answer, by=by, person_of=partial(person_of, at))
