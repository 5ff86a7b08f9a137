"""Answers of the model APIs to replay: streams of our own, always, and recordings, where there are any.

A file is named without its ending. `streams/…` lies in `tests/providers/`, everything else among the recordings.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import cast

import msgspec
import pytest

from weftline.testing.recordings import Exchange, load_recording

_OURS = Path(__file__).parent / "providers"


@cache
def exchanges(file: str) -> tuple[Exchange, ...]:
    if not file.startswith("streams/"):
        return tuple(load_recording(f"{file}.yaml"))
    ours = load_recording(_OURS / f"{file}.yaml")
    return tuple(_with_crlf(one) if file.startswith("streams/google/") else one for one in ours)


def exchange(file: str, number: int = 0) -> Exchange:
    return exchanges(file)[number]


def recorded(cases: Iterable[object]) -> list[pytest.ParameterSet]:
    """Cases for `parametrize` that need the recordings: run where those are, counted at the end where they are not."""
    return [pytest.param(*_values(case), marks=pytest.mark.recording) for case in cases]


def _values(case: object) -> tuple[object, ...]:
    return cast("tuple[object, ...]", case) if isinstance(case, tuple) else (case,)


def _with_crlf(exchange: Exchange) -> Exchange:
    """YAML reads every line's end as a line feed."""
    if not exchange.headers["content-type"].startswith("text/event-stream"):
        return exchange
    return msgspec.structs.replace(exchange, body=exchange.body.replace(b"\n", b"\r\n"))
