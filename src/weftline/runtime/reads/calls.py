"""The calls of runs according to their logs: what was begun, how it ended, and what a cancel stopped."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, TypeAlias

from msgspec import DecodeError, Struct
from msgspec.structs import replace

from weftline.errors import entry_damaged
from weftline.kernel import bodies
from weftline.kernel.control import EXECUTED
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import (
    FORMAT,
    KIND,
    AskedCall,
    AwaitClosed,
    AwaitOpened,
    CallClosed,
    CallOpened,
    CallStarted,
    Effect,
    Fact,
    How,
    TurnCompleted,
    decode_fact,
)
from weftline.kernel.state import FOLD, decode_state
from weftline.messages import joined_text
from weftline.runtime import ids
from weftline.runtime.deploys import known_facts
from weftline.store.base import LogReader
from weftline.store.rows import AwaitFilter, Item, RunFilter, RunRow

_PAGE_BYTES = 256 * 1024


async def entries(log: LogReader, key: int) -> AsyncGenerator[Item]:
    """All entries that a run's log has at this moment, in order."""
    after = 0
    while (page := await log.page(key, after=after, max_bytes=_PAGE_BYTES)) is not None and page.last_seq > after:
        after = page.last_seq
        for item in page.items:
            yield item


MAX_DOUBTS = 16
"""As many as a stored state remembers."""


class CallName(Struct, frozen=True):
    id: str
    name: str
    run: str = ""
    """For a call of a run below: the id of that run."""


class CancelReceipt(Struct, frozen=True):
    """Every call of the run, and of those below it, is in exactly one list, unless only newer code can read it."""

    status: str
    stopped: tuple[CallName, ...]
    finished: tuple[CallName, ...]
    in_doubt: tuple[CallName, ...]


RECEIPT_KINDS = (KIND[CallOpened], KIND[CallStarted], KIND[CallClosed])
"""The facts that a receipt is made from."""


class _Lists:
    def __init__(self) -> None:
        self.stopped: list[CallName] = []
        self.finished: list[CallName] = []
        self.in_doubt: list[CallName] = []
        self.children: list[str] = []

    def add(self, heads: Sequence[Fact], *, run: str = "") -> None:
        """Adds the calls of one run."""
        offered: set[tuple[int, int]] = set()
        for head in heads:
            match head:
                case CallOpened(client=str(), blocked=False):
                    offered.add((head.turn, head.index))
                case CallStarted() if head.child:
                    self.children.append(head.child)
                case CallClosed():
                    self._list(head, (head.turn, head.index) in offered).append(CallName(head.id, head.name, run))
                case _:
                    pass

    def _list(self, head: CallClosed, offered: bool) -> list[CallName]:
        if head.how == "in_doubt" or (head.how == "cancelled" and offered):
            return self.in_doubt  # a client that was offered a call may be executing it
        return self.finished if head.how in EXECUTED else self.stopped

    def receipt(self, status: str) -> CancelReceipt:
        return CancelReceipt(status, tuple(self.stopped), tuple(self.finished), tuple(self.in_doubt))


async def stored_receipt(store: LogReader, key: int, status: str) -> CancelReceipt:
    """The receipt of a run of this status, from the logs. Raises `StoreError` (`log_damaged`) if one cannot be read."""
    lists = _Lists()
    lists.add(await known_facts(store, key, kinds=RECEIPT_KINDS))
    for child in lists.children:  # the list grows, as children have children of their own
        lists.add(await known_facts(store, ids.key_of(child), kinds=RECEIPT_KINDS), run=child)
    return lists.receipt(status)


def stored_doubts(row: RunRow) -> tuple[CallName, ...] | None:
    """The calls in doubt that the row's state remembers, the last `MAX_DOUBTS`; None if another fold made it.

    Lists display them without reading whole logs. The receipt, which reads the log, has all of them.
    """
    if not row.state:
        return ()  # a new doubt is stored at once
    if row.fold != FOLD:
        return None
    if b"doubts" not in row.state:
        return ()  # nearly always, and cheaper than decoding: a default value is not stored
    try:
        return tuple([CallName(doubt.id, doubt.tool) for doubt in decode_state(row.state).guards.doubts if doubt.id])
    except DecodeError:
        return None


async def asked_doubts(log: LogReader, row: RunRow) -> tuple[CallName, ...]:
    """The calls in doubt that a person is asked about: they are not closed, so the row's state does not list them.

    Raises `StoreError` (`log_damaged`).
    """
    if row.ended_at is not None or row.status == "queued":
        return ()
    wanted = AwaitFilter(workspace=row.workspace, run=row.key, kinds=("doubt",), limit=MAX_DOUBTS, max_bytes=0)
    asked = {one.id for one in await log.awaits(wanted)}
    if not asked:
        return ()
    names: dict[tuple[int, int], CallName] = {}
    found: list[CallName] = []
    for head in await known_facts(log, row.key, kinds=(KIND[CallOpened], KIND[AwaitOpened])):
        if isinstance(head, CallOpened):
            names[head.turn, head.index] = CallName(head.id, head.name)
        elif isinstance(head, AwaitOpened) and head.id in asked and (head.turn, head.index) in names:
            found.append(names[head.turn, head.index])
    return tuple(found)


CallState: TypeAlias = Literal["awaiting", "opened", "started", "closed", "in_doubt"]
"""A person is asked whether it may begin; announced; begun; closed with its one result; or begun without anybody
knowing whether it happened."""
_PAGE = 200
PAGE_BYTES = 1024 * 1024
"""How much arguments and results of a page may take, unless one call has more."""


class LoggedCall(Struct, frozen=True, kw_only=True):
    """One call. Times are microseconds; `key` is the idempotency key that its tool gets, the same for each attempt."""

    run_id: str
    id: str
    turn: int
    index: int
    name: str
    digest: str
    """Digest of the arguments that run."""
    key: str
    effect: Effect
    state: CallState
    attempts: int = 0
    """How often it was begun."""
    opened_at: int
    started_at: int | None = None
    """When it last began."""
    closed_at: int | None = None
    how: How | None = None
    client: str | None = None
    """How it is offered to the client, if the client executes it."""
    child: str = ""
    """The run that executes it, if there is one."""
    parent: str = ""
    """The id of the call that asked for it; empty if the model did."""
    args: bytes | None = None
    """The final arguments; None unless they were asked for."""
    result: str | None = None
    """What the model reads; None without a result, and unless it was asked for."""
    is_error: bool = False


class Contents(Struct):
    """Which calls of a run are read with their arguments and results: from the `first` to the one before `end`.

    When they take more than `max_bytes`, `end` is lowered, but not below `first`.
    """

    max_bytes: int
    first: int = -1
    end: int = 2**31
    _places: dict[tuple[int, int], int] = {}
    """The position of each call in the list, by turn and index."""

    def take(self, place: tuple[int, int], size: int) -> bool:
        """Returns True if the content of a call is kept."""
        index = self._places.setdefault(place, len(self._places))
        if not self.first <= index < self.end:
            return False
        self.max_bytes -= size
        if self.max_bytes < 0 and index > self.first:
            self.end = index
        return index < self.end


class DoubtPage(Struct, frozen=True):
    calls: list[LoggedCall]
    before: int | None
    """The key below which the list continues; None at its end."""


async def calls_of(log: LogReader, row: RunRow, *, store_id: str, contents: Contents | None = None) -> list[LoggedCall]:
    """The announced calls of a run, in order. Raises `StoreError` (`log_damaged`)."""
    run_id = ids.run_id(row.key, row.salt)
    found: dict[tuple[int, int], LoggedCall] = {}
    asked: tuple[AskedCall, ...] = ()
    async for item in entries(log, row.key):
        if item.head:
            try:
                head = decode_fact.decode(item.head)
                if isinstance(head, TurnCompleted):
                    asked = head.calls
                elif isinstance(head, AwaitOpened) and (head.turn, head.index) not in found:
                    _await(found, head, item, asked, row=row, store_id=store_id, contents=contents)
                _take(found, head, at=item.at, row=row, store_id=store_id)
                if contents is not None and isinstance(head, CallOpened | CallClosed):
                    _read(found, head, item.body, contents)
            except UNREADABLE:
                if row.format <= FORMAT:  # otherwise newer code wrote it
                    raise entry_damaged(run_id, item.seq) from None
    return list(found.values())


async def calls_in_doubt(
    log: LogReader,
    *,
    workspace: int,
    store_id: str,
    before: int | None = None,
    limit: int = _PAGE,
    contents: bool = False,
) -> DoubtPage:
    """The calls of a workspace that may or may not have happened, those of the newest run first.

    They have no index: the rows of the runs are examined, and the logs of those that have some. A page ends with a run,
    so it may have a few more than `limit`.
    """
    asking = await _asking(log, workspace)
    found: list[LoggedCall] = []
    left = PAGE_BYTES if contents else 0
    while True:
        rows = await log.runs(RunFilter(workspace=workspace, before=before, limit=_PAGE))
        for row in rows:
            before = row.key
            if stored_doubts(row) != () or row.key in asking:
                wanted = Contents(left) if contents else None
                calls = await calls_of(log, row, store_id=store_id, contents=wanted)
                left = 0 if wanted is None else max(0, wanted.max_bytes)
                found += [call for call in calls if call.state == "in_doubt"]
            if len(found) >= limit:
                return DoubtPage(found, before)
        if len(rows) < _PAGE:
            return DoubtPage(found, None)


async def _asking(log: LogReader, workspace: int) -> set[int]:
    """The runs that ask a person whether a call has happened."""
    runs: set[int] = set()
    after = (0, "")
    while page := await log.awaits(
        AwaitFilter(workspace=workspace, kinds=("doubt",), after=after, limit=_PAGE, max_bytes=0)
    ):
        runs.update([one.run for one in page])
        after = page[-1].run, page[-1].id
    return runs


def _await(
    found: dict[tuple[int, int], LoggedCall],
    head: AwaitOpened,
    item: Item,
    asked: tuple[AskedCall, ...],
    *,
    row: RunRow,
    store_id: str,
    contents: Contents | None,
) -> None:
    """Adds a call that a person is asked about before it is announced; other questions are about none."""
    body = bodies.decode_await(item.body)
    if not body.call:
        return
    place = head.turn, head.index
    call = next((one for one in asked if one.id == body.call), None)
    unique_id = ids.unique_id(row.key, row.salt)
    found[place] = LoggedCall(
        run_id=ids.run_id(row.key, row.salt),
        id=body.call,
        turn=head.turn,
        index=head.index,
        name=body.name,
        digest=head.digest,
        key=ids.idempotency_key(store_id, unique_id, head.turn, head.index, head.digest),
        effect="once" if call is None else call.effect,
        state="awaiting",
        opened_at=item.at,
        client=None if call is None else call.client,
    )
    if contents is not None and contents.take(place, len(item.body)):
        found[place] = replace(found[place], args=bytes(body.args))


def _take(found: dict[tuple[int, int], LoggedCall], head: Fact, *, at: int, row: RunRow, store_id: str) -> None:
    match head:
        case CallOpened():
            unique_id = ids.unique_id(row.key, row.salt)
            found[head.turn, head.index] = LoggedCall(
                run_id=ids.run_id(row.key, row.salt),
                id=head.id,
                turn=head.turn,
                index=head.index,
                name=head.name,
                digest=head.digest,
                key=ids.idempotency_key(store_id, unique_id, head.turn, head.index, head.digest),
                effect=head.effect,
                state="opened",
                opened_at=at,
                client=head.client,
                parent=head.parent,
            )
        case CallStarted():
            _change(found, head, state="started", attempts=head.attempt, started_at=at, child=head.child)
            if head.effect is not None:
                _change(found, head, effect=head.effect)
        case CallClosed():
            state = "in_doubt" if head.how == "in_doubt" else "closed"
            _change(found, head, state=state, closed_at=at, how=head.how)
        case AwaitOpened(kind="doubt"):
            _change(found, head, state="in_doubt")
        case AwaitClosed(outcome="approved"):
            call = found.get((head.turn, head.index))
            if call is not None and call.state == "in_doubt" and call.closed_at is None:
                _change(found, head, state="opened")  # it did not happen, and is begun again
        case _:
            pass


def _read(
    found: dict[tuple[int, int], LoggedCall], head: CallOpened | CallClosed, body: bytes, contents: Contents
) -> None:
    """Adds the arguments or the result of a call."""
    place = head.turn, head.index
    if place not in found or not contents.take(place, len(body)):
        return
    if isinstance(head, CallOpened):
        found[place] = replace(found[place], args=bytes(bodies.decode_opened(body).args))
    else:
        result = joined_text(bodies.decode_closed(body).parts)
        found[place] = replace(found[place], result=result, is_error=head.is_error)


def _change(
    found: dict[tuple[int, int], LoggedCall],
    head: CallStarted | CallClosed | AwaitOpened | AwaitClosed,
    **changes: object,
) -> None:
    place = head.turn, head.index
    if place in found:
        found[place] = replace(found[place], **changes)
