"""The calls that a cancel stopped, those that had finished before it, and those that are in doubt."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import DecodeError, Struct

from weftline.kernel.control import EXECUTED
from weftline.kernel.entries import KIND, AwaitOpened, CallClosed, CallOpened, CallStarted, Fact
from weftline.kernel.state import FOLD, decode_state
from weftline.runtime import ids
from weftline.runtime.known_facts import known_facts
from weftline.store.base import LogReader
from weftline.store.rows import AwaitFilter, RunRow

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
