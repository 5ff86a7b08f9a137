"""Follows runs for callers that speak another protocol, with neutral events."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from enum import Enum, auto
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins
from msgspec.json import Decoder

from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import (
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    AwaitPassed,
    CallClosed,
    CallOpened,
    Fact,
    RunEnded,
    RunPaused,
    RunResumed,
    TurnCompleted,
)
from weftline.kernel.notes import TEXT_DELTA
from weftline.runtime.decoding import check_observations, facts_in, require_skippable
from weftline.runtime.engine import EntryBatch, Follower
from weftline.store.rows import Item
from weftline.wire.run_responses import RunView, usage_triple

logger = logging.getLogger(__name__)


class EventKind(Enum):
    NOTHING = auto()
    """Nothing happened for a while."""
    ATTEMPT = auto()
    """The model is called; its earlier output in this turn no longer counts."""
    TEXT = auto()
    TURN = auto()
    """A turn is complete."""
    CLIENT_CALL = auto()
    """A call for the client was opened, or closed."""
    CALL = auto()
    """Another call was closed. If the run also asks people, it may now have nothing else to do."""
    PAUSE = auto()
    """The run was paused or resumed, or it asks people something or got an answer."""
    END = auto()


class Event(NamedTuple):
    """An event of a run.

    It contains only pieces of text; the rest may be large, and is read on demand.
    """

    kind: EventKind
    text: str = ""


_NOTHING = Event(EventKind.NOTHING)


class _Delta(Struct):
    text: str


_decode_delta = Decoder(_Delta).decode


async def run_events(follower: Follower, *first: Event) -> AsyncGenerator[Event]:
    """Yields `first`, then the events of a follower; closes it at the end.

    Ends after the terminal event, or earlier if the follower leaves or the server is stopping.
    """
    try:
        for event in first:
            yield event
        while (batches := await follower.next()) is not None:
            if not batches:
                yield _NOTHING
            for batch in batches:
                for event in _events(batch):
                    yield event
    finally:
        follower.close()


def _events(batch: EntryBatch) -> Iterator[Event]:
    """Yields the events of a batch of entries.

    Raises `StoreError` at one that cannot be read, and `Conflict` at an end that only newer code can read.
    """
    facts = facts_in(batch)
    for item in batch.items:
        try:
            if not item.head:
                if item.kind == TEXT_DELTA:
                    yield from _texts(batch, item)
                continue
            fact = next(facts)
        except UNREADABLE:
            require_skippable(batch, item)
            logger.warning("run %s: entry %d was written by newer code and is not shown", batch.run_id, item.seq)
            continue
        what = _kind_of(fact)
        if what is not None:
            yield Event(what)


def _texts(batch: EntryBatch, item: Item) -> Iterator[Event]:
    if batch.heads is None:
        check_observations(item)
    # Observations of one commit share a row, and the reader may have some of them already.
    for body in item.body.split(b"\n")[max(batch.after + 1 - item.seq, 0) :]:
        yield Event(EventKind.TEXT, _decode_delta(body).text)


def _kind_of(fact: Fact) -> EventKind | None:
    match fact:
        case AttemptStarted():
            return EventKind.ATTEMPT
        case TurnCompleted():
            return EventKind.TURN
        case CallOpened(client=str(), blocked=False) | CallClosed(client=str()):
            return EventKind.CLIENT_CALL
        case CallClosed():
            return EventKind.CALL
        case RunPaused() | RunResumed() | AwaitOpened() | AwaitPassed() | AwaitClosed():
            return EventKind.PAUSE
        case RunEnded():
            return EventKind.END
        case _:
            return None


def usage(run: RunView) -> dict[str, Any] | None:
    """Returns tokens, turns and model of a run that has ended; None if no model was called."""
    if not run.model.provider:
        return None
    triple = usage_triple(run.usage, run.turns, run.model, attempts=run.attempts, estimated=run.estimated)
    used = to_builtins(triple)
    if run.finish_reason is not None:
        used["finishReason"] = run.finish_reason
    return {"mantyx": used, "weftline": used}  # the protocol's name, and ours
