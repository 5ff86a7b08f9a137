"""Jobs for the tests of the workers: one for each way of taking too much."""

from __future__ import annotations

import os
import re


def upper(data: bytes) -> bytes:
    return data.upper()


def environment(data: bytes) -> bytes:
    return "\n".join(os.environ).encode()


def fail(data: bytes) -> bytes:
    raise ValueError(data.decode())


def wait_for(pipe: bytes) -> bytes:
    """Returns what somebody writes to the pipe."""
    with open(pipe, "rb") as source:
        return source.read()


def spin(data: bytes) -> bytes:
    while True:
        pass


def spin_in_a_library(data: bytes) -> bytes:
    # Holds the interpreter's lock all the time, as no thread could be made to give it back.
    return b"yes" if re.fullmatch(b"(a+)+", b"a" * 60 + b"!") else b"no"


def hoard(data: bytes) -> bytes:
    held = [bytes(100_000_000)]
    while True:
        held.append(bytes(100_000_000))


def die(data: bytes) -> bytes:
    os._exit(3)
