"""The process that does the work: one request after another from stdin, responses to stdout.

A request that takes more CPU time than allowed ends the process, wherever it is, even inside a library.
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


class Request(msgspec.Struct, array_like=True):
    job: str
    """`module:function`; the function takes and returns bytes."""
    arguments: list[bytes]
    cpu_s: float


class Response(msgspec.Struct, array_like=True):
    value: bytes = b""
    failure: str | None = None


_decode_request = msgspec.msgpack.Decoder(Request).decode
_encode_response = msgspec.msgpack.Encoder().encode


def main() -> None:
    _confine()
    requests, responses = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's output must not be mistaken for a response
    while (data := read_frame(requests)) is not None:
        request = _decode_request(data)
        signal.setitimer(signal.ITIMER_PROF, request.cpu_s)
        response = _carry_out(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(responses, _encode_response(response))


def _carry_out(request: Request) -> Response:
    module, _, function = request.job.partition(":")
    try:
        return Response(getattr(importlib.import_module(module), function)(*request.arguments))
    except Exception as error:
        return Response(failure=f"{type(error).__name__}: {error}"[:500])


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
