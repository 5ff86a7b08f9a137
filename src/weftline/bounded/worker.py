"""The process that does the work: one order after another from stdin, replies to stdout.

An order that takes more CPU time than allowed ends the process, wherever it is, even inside a library.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import BinaryIO

import msgspec

MEMORY_BYTES = 1 << 30
_NICENESS = 5
"""On a busy machine, the server has priority."""


class Order(msgspec.Struct, array_like=True):
    job: str
    """`module:function`; the function takes and returns bytes."""
    arguments: list[bytes]
    cpu_s: float


class Reply(msgspec.Struct, array_like=True):
    value: bytes = b""
    failure: str | None = None


_decode_order = msgspec.msgpack.Decoder(Order).decode
_encode_reply = msgspec.msgpack.Encoder().encode


def main() -> None:
    _confine()
    orders, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's output must not be mistaken for a reply
    while (data := read_frame(orders)) is not None:
        order = _decode_order(data)
        signal.setitimer(signal.ITIMER_PROF, order.cpu_s)
        reply = _carry_out(order)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(replies, _encode_reply(reply))


def _carry_out(order: Order) -> Reply:
    module, _, function = order.job.partition(":")
    try:
        return Reply(getattr(importlib.import_module(module), function)(*order.arguments))
    except Exception as error:
        return Reply(failure=f"{type(error).__name__}: {error}"[:500])


def _confine() -> None:
    import resource

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.nice(_NICENESS)


def read_frame(source: BinaryIO) -> bytes | None:
    """The next frame; None if the other side is gone."""
    head = source.read(4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head)
    data = source.read(size)
    return data if len(data) == size else None


def write_frame(target: BinaryIO, data: bytes) -> None:
    target.write(len(data).to_bytes(4) + data)
    target.flush()
