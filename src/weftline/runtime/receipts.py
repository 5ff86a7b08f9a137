"""What a cancel stopped, what had finished before it, and what is in doubt."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from weftline.kernel.entries import EXECUTED, CallClosed, decode_fact


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
