"""Approvals of a run, according to its log: the exact arguments, who gave them, when, for how long, and their use.

Everything is in the entries, so an exported log contains the same.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct

from weftline.errors import entry_damaged
from weftline.kernel.bodies import AnswerBody, Pattern, decode_answer, decode_await
from weftline.kernel.control import OF_RUN
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import (
    FORMAT,
    AwaitClosed,
    AwaitKind,
    AwaitOpened,
    CallAsked,
    CallGated,
    CallOpened,
    CallStarted,
    Fact,
    Limits,
    RunCreated,
    TurnCompleted,
    decode_fact,
)
from weftline.runtime import ids
from weftline.runtime.reads.calls import entries
from weftline.store.base import LogReader
from weftline.store.rows import Item, RunRow


class GrantUse(Struct, frozen=True):
    """A call that began with a grant. `at` is in microseconds."""

    call_id: str
    at: int


class LoggedGrant(Struct, kw_only=True):
    """One approval of a call. Times are microseconds."""

    run_id: str
    await_id: str
    kind: AwaitKind
    """`confirm`, or `doubt` if a call that a crash interrupted was to be executed again."""
    call_id: str
    """The id of the call that was asked about."""
    name: str
    args: Raw
    """The exact arguments that were approved."""
    digest: str
    shown_args: Raw
    """The arguments that were asked about; they differ if the approver changed something."""
    shown_digest: str
    by: str
    at: int
    expires_at: int
    """If the call has not begun by then, it is asked about again."""
    remember: Pattern | None = None
    """Which later calls of the run it also covers, for as long as the run lasts."""
    labels: dict[str, str] = {}
    used: list[GrantUse] = []
    """The calls that began with it: one, none, or more if it covers others."""

    @property
    def edited(self) -> bool:
        return self.digest != self.shown_digest

    @property
    def remembered(self) -> bool | dict[str, Any]:
        """`remember` in the form in which it was given."""
        if self.remember is None:
            return False
        prefixes = {name: f"{prefix}*" for name, prefix in self.remember.prefixes.items()}
        return {**self.remember.args, **prefixes} or True


async def grants_of(log: LogReader, row: RunRow) -> list[LoggedGrant]:
    """The grants of a run, in order. Raises `StoreError` (`log_damaged`)."""
    run_id = ids.run_id(row.key, row.salt)
    found = _Grants(run_id)
    async for item in entries(log, row.key):
        try:
            found.take(item)
        except UNREADABLE:
            if row.format <= FORMAT:  # otherwise newer code wrote it
                raise entry_damaged(run_id, item.seq) from None
    return found.given


class _Grants:
    """Reads a log from its beginning."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._ttl_us = Limits().grant_ttl_us
        self._asked: dict[str, tuple[AwaitOpened, Raw, str, str]] = {}
        self._by_id: dict[str, LoggedGrant] = {}
        self._held: dict[tuple[int, int], LoggedGrant] = {}
        """Grants of calls that have not begun, by turn and index."""
        self._ids: dict[tuple[int, int], str] = {}
        self.given: list[LoggedGrant] = []

    def take(self, item: Item) -> None:
        if item.head:
            self._fold(decode_fact.decode(item.head), item.body, item.at)

    def _fold(self, head: Fact, body: bytes, at: int) -> None:
        match head:
            case RunCreated():
                self._ttl_us = head.limits.grant_ttl_us
            case TurnCompleted():
                self._held.clear()
                for index, call in enumerate(head.calls):
                    self._allow(head.turn, index, call.allowed_by)
            case CallAsked():
                self._allow(head.turn, head.index, head.call.allowed_by)
            case CallGated():
                self._allow(head.turn, head.index, head.allowed_by)
            case AwaitOpened() if head.kind in ("confirm", "doubt"):
                asked = decode_await(body)
                self._asked[head.id] = head, asked.args, asked.call, asked.name
                self._held.pop((head.turn, head.index), None)  # it has expired, and the call is asked about again
            case AwaitClosed(outcome="approved") if head.index != OF_RUN and head.id in self._asked:
                self._grant(head, decode_answer(body) if body else AnswerBody(), at)
            case CallOpened():
                self._ids[head.turn, head.index] = head.id
                if head.client is not None and not head.blocked:
                    self._use(head.turn, head.index, at)
            case CallStarted():
                self._use(head.turn, head.index, at)
            case _:
                pass

    def _grant(self, head: AwaitClosed, answer: AnswerBody, at: int) -> None:
        opened, args, call_id, name = self._asked.pop(head.id)
        grant = LoggedGrant(
            run_id=self._run_id,
            await_id=head.id,
            kind=opened.kind,
            call_id=call_id,
            name=name,
            args=args if answer.args is UNSET else answer.args,
            digest=head.digest,
            shown_args=args,
            shown_digest=opened.digest,
            by=head.by,
            at=at,
            expires_at=at + self._ttl_us,
            remember=answer.remember,
            labels=answer.labels,
        )
        self.given.append(grant)
        self._by_id[head.id] = grant
        self._held[head.turn, head.index] = grant

    def _allow(self, turn: int, index: int, await_id: str) -> None:
        if await_id in self._by_id:
            self._held[turn, index] = self._by_id[await_id]

    def _use(self, turn: int, index: int, at: int) -> None:
        grant = self._held.pop((turn, index), None)
        if grant is not None:
            grant.used.append(GrantUse(self._ids.get((turn, index), grant.call_id), at))
