"""Streams the arguments of calls into the log as a model writes them, for runs that ask for this."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.kernel import bodies
from weftline.kernel.notes import ARGS_DELTA, ArgsDelta
from weftline.providers.base import CallArgs, CallStart, Chunk
from weftline.runtime.services import Sink
from weftline.text.surrogates import whole


class ArgumentDeltas:
    """The argument deltas of one attempt."""

    def __init__(self, sink: Sink, *, turn: int, attempt: int) -> None:
        self._sink = sink
        self._turn = turn
        self._attempt = attempt
        self._calls: dict[str | int, tuple[str, str]] = {}

    def take(self, chunks: Sequence[Chunk]) -> None:
        """Appends the content of one read: one piece for each call."""
        pieces: dict[str | int, list[str]] = {}
        for chunk in chunks:
            if isinstance(chunk, CallStart):
                self._calls[chunk.key] = chunk.id or "", chunk.name
            elif isinstance(chunk, CallArgs):
                pieces.setdefault(chunk.key, []).append(chunk.json)
        deltas = [
            bodies.encode(ArgsDelta(*self._calls[key], whole("".join(texts)), self._turn, self._attempt))
            for key, texts in pieces.items()
            if key in self._calls and any(texts)
        ]
        if deltas:
            self._sink.emit(ARGS_DELTA, b"\n".join(deltas), len(deltas))
