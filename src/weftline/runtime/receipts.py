"""What a cancel stopped, what had finished before it, and what is in doubt."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from weftline.kernel.entries import EXECUTED, CallClosed, decode_fact
from weftline.store.base import EntryRow


class CallName(Struct, frozen=True):
    id: str
    name: str


class CancelReceipt(Struct, frozen=True):
    """Every call of the run is in exactly one list."""

    status: str
    stopped: tuple[CallName, ...]
    finished: tuple[CallName, ...]
    in_doubt: tuple[CallName, ...]


def receipt(status: str, rows: Sequence[EntryRow]) -> CancelReceipt:
    stopped: list[CallName] = []
    finished: list[CallName] = []
    in_doubt: list[CallName] = []
    for row in rows:
        head = decode_fact.decode(row[3])
        if not isinstance(head, CallClosed):
            continue
        if head.how == "in_doubt":
            line = in_doubt
        elif head.how in EXECUTED:
            line = finished
        else:
            line = stopped
        line.append(CallName(head.id, head.name))
    return CancelReceipt(status, tuple(stopped), tuple(finished), tuple(in_doubt))
