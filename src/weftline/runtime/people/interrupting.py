"""Requests from outside to a run: pauses, resumes, messages, and limits that were raised while it asked about them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Literal, TypeAlias
from weakref import WeakValueDictionary

from msgspec import DecodeError

from weftline.errors import Conflict, Forbidden, InvalidRequest, NotFound, WeftlineError
from weftline.kernel import bodies
from weftline.kernel.accept import MAX_QUEUED, accepts
from weftline.kernel.bodies import QueuedBody, decode_queued, encode
from weftline.kernel.context import ContextRestored
from weftline.kernel.entries import (
    KIND,
    AwaitClosed,
    CallClosed,
    CancelRequested,
    Fact,
    MessageQueued,
    RunPaused,
    RunResumed,
    decode_fact,
)
from weftline.messages import Text
from weftline.runtime import ids
from weftline.runtime.budgets.ledger import Ledger
from weftline.runtime.budgets.reserving import raised
from weftline.runtime.fleet.holding import Residents, RunLoader
from weftline.runtime.live import Draft, LiveRun
from weftline.store.base import LogReader
from weftline.store.rows import AwaitFilter

_BODIES: dict[type[Fact], Callable[[bytes], object] | None] = {
    CallClosed: bodies.decode_closed,
    MessageQueued: bodies.decode_queued,
    CancelRequested: None,
    RunPaused: bodies.decode_control,
    RunResumed: bodies.decode_control,
    ContextRestored: None,
}
"""An answer, a message, or a request by people. All other facts result from what a run does."""


def check_request(head: Fact, body: bytes) -> None:
    """Raises `InvalidRequest` for a fact that may not come from outside, and for a body that cannot be decoded."""
    if type(head) not in _BODIES:
        raise InvalidRequest(f"{KIND[type(head)]} is not a request.")
    decode = _BODIES[type(head)]
    try:
        readable = not body if decode is None or not body else bool(decode(body))
    except DecodeError:
        readable = False
    if not readable:
        raise InvalidRequest(f"The body of {KIND[type(head)]} cannot be read.")


def message_id_of(run: LiveRun, place: int = 0) -> str:
    """The id of the next message to a run; `place` is its position among several that arrive together."""
    return f"msg_{run.state.version + 1 + place}"


def control_body(labels: Mapping[str, str] | None, *, messages: int = 0) -> bytes:
    return bodies.encode(bodies.ControlBody(dict(labels or {}), messages)) if labels or messages else b""


async def waits_for_people(
    key: int, *, load: Callable[[int], Awaitable[LiveRun]], settled: Callable[[LiveRun], Awaitable[None]]
) -> bool:
    """Returns True if neither the run nor any run below it can advance before a person has answered. Their awaits are
    durable then.

    A run that cannot continue here does not count, because it is not known what it waits for.
    """
    try:
        run = await load(key)
    except WeftlineError:
        return False
    state = run.state
    if state.ended:
        return False  # its parent continues
    asks = bool(state.questions.open) and state.waits_for_people
    if not (asks or state.control.paused or state.waits_for_children):
        return False
    for child in state.open_children:
        if not await waits_for_people(ids.key_of(child), load=load, settled=settled):
            return False
    await settled(run)
    return True


logger = logging.getLogger(__name__)

_PAGE = 200

Append: TypeAlias = Callable[[LiveRun, AwaitClosed], Awaitable[None]]


async def wake_waiting(
    store: LogReader,
    ledger: Ledger,
    residents: Residents,
    loader: RunLoader,
    *,
    workspace: int,
    append: Append,
    by: str = "",
) -> None:
    """`by` is who raised it, unless the limits themselves record that."""
    # The await of a run in memory may not be in the store yet.
    for run in [run for run in residents.runs.values() if run.workspace == workspace]:
        await _wake(run, ledger, append, by=by)
    after = (0, "")
    while found := await store.awaits(
        AwaitFilter(workspace=workspace, kinds=("budget",), after=after, limit=_PAGE, max_bytes=0)
    ):
        for one in found:
            after = (one.run, one.id)
            try:
                run = await loader.load(one.run)
            except (NotFound, Conflict) as error:
                logger.warning("a run that waits for its budget is skipped: %s", error.message)
                continue
            await _wake(run, ledger, append, by=by)


async def _wake(run: LiveRun, ledger: Ledger, append: Append, *, by: str) -> None:
    state, account = run.state, run.work.account
    refused, asks = state.budget.refused, state.control.held_by
    if refused is None or account is None or not asks or not ledger.is_raised(refused, account.rules):
        return
    head = raised(state, asks, ledger, by=by)
    if state.questions.open[asks].kind == "budget" and accepts(state, head):
        await append(run, head)


Mode: TypeAlias = Literal["steer", "follow_up"]

_LOOK_BACK = 1000
_LOOK_BACK_BYTES = 32 * 1024 * 1024
"""How far back messages are searched for a repeated one: a client that got no response retries soon."""


class Interrupts:
    """`load` raises `Conflict` for a run that has ended; `append` appends facts to a run, continues it, and returns
    when they are durable; `settled` returns when everything that a rejection is based on is durable.
    """

    def __init__(
        self,
        store: LogReader,
        load: Callable[[int], Awaitable[LiveRun]],
        append: Callable[[LiveRun, tuple[Draft, ...]], Awaitable[None]],
        settled: Callable[[LiveRun], Awaitable[None]],
        *,
        require_known_below: Callable[[LiveRun], Awaitable[None]],
    ) -> None:
        """`require_known_below` raises `Conflict` for a run that waits for one that is left to a newer version."""
        self._store = store
        self._load = load
        self._append = append
        self._settled = settled
        self._require_known_below = require_known_below
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def pause(self, key: int, *, reason: str, requested_by: str, labels: Mapping[str, str] | None) -> None:
        """Pauses the run and those below it. Pausing a paused run changes nothing."""
        async with self._in_turn(key):
            run = await self._load(key)
            if run.state.open_children:
                await self._require_known_below(run)
                run = await self._load(key)
            head = RunPaused(reason, requested_by)
            if run.state.control.paused:
                await self._settled(run)
            elif not accepts(run.state, head):
                raise Forbidden("This run does not accept interruptions.", code="interrupts_not_allowed")
            else:
                await self._append(run, (Draft(head, control_body(labels)),))
            for child in run.state.open_children:
                with suppress(Conflict, Forbidden, NotFound):  # it has ended since, or allows no interruptions
                    await self.pause(ids.key_of(child), reason="parent", requested_by=requested_by, labels=None)

    async def resume(
        self, key: int, *, notes: str, requested_by: str, labels: Mapping[str, str] | None, messages: Sequence[str]
    ) -> None:
        """Resumes the run and those below it.

        Those below it come first: if this is interrupted, the run is still paused, and resuming it again resumes them
        all. The run waits for its children, so a child that nobody resumes would block it forever.
        """
        async with self._in_turn(key):
            run = await self._load_paused(key, messages=len(messages))
            await self._require_known_below(run)
            for child in run.state.open_children:
                with suppress(Conflict, NotFound):
                    await self.resume(ids.key_of(child), notes="", requested_by=requested_by, labels=None, messages=())
            run = await self._load_paused(key, messages=len(messages))
            queued = [
                Draft(MessageQueued(message_id_of(run, place), "steer"), encode(QueuedBody((Text(text),))))
                for place, text in enumerate(messages)
            ]
            head = RunResumed(notes, requested_by)
            await self._append(run, (*queued, Draft(head, control_body(labels, messages=len(messages)))))

    async def _load_paused(self, key: int, *, messages: int) -> LiveRun:
        """The run, if it can be resumed with this many messages."""
        run = await self._load(key)
        if not run.state.control.paused:
            await self._settled(run)
            raise Conflict("The run is not paused.", code="not_paused")
        if len(run.state.control.queue) + messages > MAX_QUEUED:
            raise _full()
        return run

    def _in_turn(self, key: int) -> asyncio.Lock:
        """Serializes pauses and resumes of one run: an unfinished one would undo the other in the runs below."""
        return self._turns.setdefault(key, asyncio.Lock())

    async def queue_message(
        self,
        key: int,
        text: str,
        mode: Mode,
        *,
        message_id: str,
        by: str,
        labels: Mapping[str, str] | None,
        idempotency_key: str,
    ) -> str:
        """Queues a message and returns its id. With an `idempotency_key` the same message is queued once."""
        run = await self._load(key)
        sent = QueuedBody((Text(text),), message_id, by, dict(labels or {}))
        if idempotency_key:
            sent.request = _digest(by, idempotency_key)
            looked_at = None
            while run is not looked_at:  # it may have left memory in the meantime, and received the same message since
                if (earlier := await self._earlier(run, sent, mode)) is not None:
                    return earlier
                looked_at, run = run, await self._load(key)
        head = MessageQueued(message_id_of(run), mode)
        if not accepts(run.state, head):
            raise _full()
        await self._append(run, (Draft(head, encode(sent)),))
        return head.id

    async def _earlier(self, run: LiveRun, sent: QueuedBody, mode: Mode) -> str | None:
        """The id of the message that the same request queued earlier.

        Raises `Conflict` (`idempotency_conflict`) if that was a different message.
        """
        while True:
            version = run.state.version
            await self._settled(run)
            found = await self._store.newest_facts(
                run.key, kinds=(KIND[MessageQueued],), limit=_LOOK_BACK, max_bytes=_LOOK_BACK_BYTES
            )
            for fact in reversed(found):
                body = decode_queued(fact.body)
                if body.request != sent.request:
                    continue
                head = decode_fact.decode(fact.head)
                assert isinstance(head, MessageQueued)
                if (body, head.mode) != (sent, mode):
                    raise Conflict("This Idempotency-Key was used for another message.", code="idempotency_conflict")
                return head.id
            if run.state.version == version:  # otherwise the same request may have arrived during the search
                return None


def _digest(by: str, idempotency_key: str) -> str:
    return blake2b(f"{by} {idempotency_key}".encode(errors="replace"), digest_size=12).hexdigest()


def _full() -> Conflict:
    return Conflict("The run no longer accepts messages.")
