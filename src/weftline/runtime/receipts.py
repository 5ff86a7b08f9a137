"""What a cancel stopped, what had finished before it, and what is in doubt."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import DecodeError, Struct

from weftline.errors import LOG_DAMAGED, StoreError
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import EXECUTED, KIND, CallClosed, decode_fact
from weftline.kernel.state import FOLD, decode_state
from weftline.runtime.loading import public_id
from weftline.store.base import LogReader, RunRow

MAX_DOUBTS = 16
"""As many as a stored state remembers."""


class CallName(Struct, frozen=True):
    id: str
    name: str


class CancelReceipt(Struct, frozen=True):
    """Every call of the run is in exactly one list."""

    status: str
    stopped: tuple[CallName, ...]
    finished: tuple[CallName, ...]
    in_doubt: tuple[CallName, ...]


def receipt(status: str, closed: Sequence[bytes]) -> CancelReceipt:
    """`closed` has the heads of the run's `call.closed` entries."""
    stopped: list[CallName] = []
    finished: list[CallName] = []
    in_doubt: list[CallName] = []
    for encoded in closed:
        head = decode_fact.decode(encoded)
        if not isinstance(head, CallClosed):
            continue
        if head.how == "in_doubt":
            calls = in_doubt
        elif head.how in EXECUTED:
            calls = finished
        else:
            calls = stopped
        calls.append(CallName(head.id, head.name))
    return CancelReceipt(status, tuple(stopped), tuple(finished), tuple(in_doubt))


async def stored_receipt(store: LogReader, key: int, status: str) -> CancelReceipt:
    """The receipt of a run of this status, from its log. Raises `StoreError` (`log_damaged`) if it cannot be read."""
    closed = await store.heads(key, kinds=(KIND[CallClosed],))
    try:
        return receipt(status, closed)
    except UNREADABLE:
        name = await public_id(store, key)
        raise StoreError(f"The log of run {name} is damaged: a call cannot be read.", code=LOG_DAMAGED) from None


def stored_doubts(row: RunRow) -> tuple[CallName, ...] | None:
    """The calls in doubt that the row's state remembers, the last `MAX_DOUBTS`; None if another fold made it.

    Lists show them, and must not read whole logs for that. The log has them in any case, in its receipt.
    """
    if not row.state:
        return ()  # a new doubt is stored at once
    if row.fold != FOLD:
        return None
    if b"doubts" not in row.state:
        return ()  # nearly always, and cheaper than decoding: a field without a value is not stored
    try:
        return tuple([CallName(doubt.id, doubt.tool) for doubt in decode_state(row.state).guards.doubts if doubt.id])
    except DecodeError:
        return None
