"""The event stream: a raw ASGI endpoint that uses hardly any memory while it waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, cast

from msgspec import Raw, Struct
from msgspec.structs import replace

from weftline.api.snapshots import projection_of
from weftline.api.views import run_summary
from weftline.errors import WeftlineError
from weftline.events.classes import AnyEvent, CallOpened
from weftline.events.frames import OBSERVED, ProfiledFrames, Show, delta_frames, frame
from weftline.events.project import STORED, project
from weftline.events.wire import encode_event
from weftline.kernel.damage import UNREADABLE
from weftline.runtime.decoding import check_observations, facts_in, require_skippable
from weftline.runtime.engine import QUIET_BEATS, Engine, EntryBatch, Follower
from weftline.server.declared import Header, QueryParameter
from weftline.server.http import DISCONNECT, FLOW, Disconnect, Flow, Headers, Request
from weftline.server.large import LargeResponses
from weftline.store.rows import Item
from weftline.tools.asking import hint_from
from weftline.wire.errors import unreadable_event
from weftline.wire.run_responses import snapshot

logger = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0
"""How long a stream may be silent."""
BEAT_S = KEEP_ALIVE_S / QUIET_BEATS
"""How often `Engine.beat` must be called for that."""
BACKLOG_BYTES = 16 * 1024 * 1024
_PIECE_BYTES = 8 * 1024
"""How much is sent at once to a client that does not keep up."""
_MAX_DIGITS = 18
_BEYOND = 10**_MAX_DIGITS
"""A seq beyond the end of any run."""

View: TypeAlias = Callable[[EntryBatch], bytes]
"""Returns the frames of a batch for a stream. Raises `UnreadableLog`."""
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


LAST_SEQ = QueryParameter("lastSeq", str, "The last event that was seen.")
LAST_EVENT_ID = Header("Last-Event-ID", str, "The same as `lastSeq`, from an `EventSource`; the larger one counts.")


def resume_point(request: Request) -> int:
    """Returns the larger of `?lastSeq` and `Last-Event-ID`; anything but an integer is ignored."""
    return max(_seq(request.query_value("lastSeq")), _seq(request.header(b"last-event-id")))


def is_event_source(request: Request) -> bool:
    """Returns True if this may be an `EventSource` that continues from an event.

    It sends no `Last-Event-ID` before its first event, and later repeats its URL with a newer one. Other clients send
    the same value in both.
    """
    last_id, asked = request.header(b"last-event-id"), _seq(request.query_value("lastSeq"))
    return asked > 0 if last_id is None else _seq(last_id) > asked


def _seq(text: str | None) -> int:
    if text is None or not (text := text.strip()).isascii() or not text.isdigit():
        return 0
    digits = text.lstrip("0") or "0"
    # Python refuses to parse very long numbers, and the store has 64 bits.
    return int(digits) if len(digits) <= _MAX_DIGITS else _BEYOND


class Backlog:
    """The memory for frames that wait for slow readers, over all of them.

    Beyond `max_bytes` frames are discarded, and rebuilt from the log when the reader has read the previous ones.
    """

    def __init__(self, max_bytes: int = BACKLOG_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held = 0

    def hold(self, size: int) -> bool:
        """Reserves memory; returns False if there is too little. Must be followed by `release` if successful."""
        if self.held + size > self.max_bytes:
            return False
        self.held += size
        return True

    def release(self, size: int) -> None:
        self.held -= size


def send_events(
    request: Request,
    engine: Engine,
    key: int,
    follower: Follower,
    backlog: Backlog,
    *,
    view: View,
    headers: Headers = (),
) -> Coroutine[Any, Any, None]:
    """Sends the events of the run's log after the cursor, then new ones, until the run has ended.

    `view` is the app's own, or that of a profile. `headers` are additional ones for the response.
    """
    request.release_input()
    return _Sender(request, request.scope.get(FLOW), engine, key, follower, backlog, view).run(headers)


class _Sender(Struct, eq=False):
    """Sends frames. Nothing is read for a client that has not read the previous ones; see `Backlog`."""

    _request: Request
    _flow: Flow | None
    _engine: Engine
    _key: int
    _follower: Follower
    _backlog: Backlog
    _view: View
    _sent: int = 0
    """How many bytes after the follower's position the client already has; the frames themselves were discarded."""

    async def run(self, headers: Headers) -> None:
        request, follower = self._request, self._follower
        send, flow = request.send, self._flow
        watch = _watch(request, follower)
        try:
            all_headers = [*HEADERS, (b"x-request-id", request.about.id.encode()), *headers]
            await send({"type": "http.response.start", "status": 200, "headers": all_headers})
            over = request.method == "HEAD"
            while not over:
                place = follower.taken
                batches = await follower.next()
                if batches is None:
                    break
                if batches and (missing := batches[0].missing) is not None:
                    # This event describes the current state, so it cannot be rebuilt.
                    if self._sent:
                        raise ConnectionResetError
                    await send(_chunk(await _gap(self._engine, self._key, missing)))
                    place = missing[1]
                data, over = _frames(batches, self._view) if batches else (KEEP_ALIVE, False)
                del batches
                size = len(data)
                if size <= self._sent:
                    self._sent -= size
                    continue
                if not self._sent and size <= _PIECE_BYTES:
                    await send(_chunk(data, more=not over))
                    if over:
                        return
                    unsent = 0
                else:
                    unsent = await self._offer(data)
                del data
                if unsent:
                    self._sent, over = size - unsent, False
                    follower.rewind(place)
                else:
                    self._sent = 0
                if flow is not None and flow.write_paused and not over:
                    if not unsent:
                        follower.rewind(follower.taken)
                    await flow.drain()
            if self._sent:
                raise ConnectionResetError  # the server is stopping: rather reset than end in the middle of a frame
            await send(_chunk(b"", more=False))
        finally:
            follower.close()
            if watch is not None:
                watch.cancel()

    async def _offer(self, data: bytes) -> int:
        """Sends what the client reads; returns how many bytes at the end are left."""
        flow = self._flow
        for at in range(self._sent, len(data), _PIECE_BYTES):
            if flow is not None and flow.write_paused:
                left = len(data) - at
                if not self._backlog.hold(left):
                    return left
                self._follower.rewind(self._follower.taken)
                try:
                    await flow.drain()
                finally:
                    self._backlog.release(left)
                if self._follower.left:
                    return 0
            await self._request.send(_chunk(data[at : at + _PIECE_BYTES]))
        return 0


def _chunk(data: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


class UnreadableLog(Exception):
    """An entry cannot be read. `frames` are those before it and one that reports it; the stream ends with them."""

    def __init__(self, frames: list[bytes], error: WeftlineError, seq: int) -> None:
        super().__init__()
        self.frames = b"".join([*frames, frame(seq, *unreadable_event(error))])


def _frames(batches: Sequence[EntryBatch], view: View) -> tuple[bytes, bool]:
    """Returns the frames of all batches, and whether the stream ends with them."""
    frames: list[bytes] = []
    for batch in batches:
        try:
            frames.append(view(batch))
        except UnreadableLog as log:
            return b"".join([*frames, log.frames]), True
    return b"".join(frames), batches[-1].ended


def view_with(show: Show | None) -> View:
    """Returns the view of all streams without a profile, with the operator's own display hints for calls.

    The frames stay with the batch, as everybody else who follows the run gets the same.
    """
    frames = sse_frames if show is None else partial(sse_frames, show=show)
    return lambda batch: batch.view(frames)


def profiled(frames: ProfiledFrames) -> View:
    """Returns the view of one stream with a profile. Nobody else gets its frames, so they are not kept."""
    return partial(_profiled_frames, profile=frames)


def sse_frames(batch: EntryBatch, *, show: Show | None = None) -> bytes:
    """Returns the frames of a batch, ready to send. Raises `UnreadableLog`; entries of newer code are left out, except
    the last one of a run that has ended.
    """
    frames: list[bytes] = []
    heads, run_id = batch.heads, batch.run_id
    # A commit with a single delta is so frequent that even a function call is noticeable.
    facts = facts_in(batch) if heads is None else iter(heads)
    for item in batch.items:
        try:
            if item.head:
                fact = next(facts)
                event = project(fact, item.body, run_id, item.seq, STORED)
                if event is not None:
                    if show is not None:
                        event = show(event)
                    frames.append(frame(item.seq, *encode_event(event)))
                continue
            if heads is None:
                check_observations(item)
            if item.kind in OBSERVED:
                frames.append(delta_frames(item.seq, item.kind, item.body, after=batch.after, upto=batch.last_seq))
        except UNREADABLE:
            _leave_out(batch, item, frames)
    return b"".join(frames)


def _profiled_frames(batch: EntryBatch, *, profile: ProfiledFrames) -> bytes:
    frames: list[bytes] = []
    facts, after, upto = facts_in(batch), batch.after, batch.last_seq
    for item in batch.items:
        seq, at, body = item.seq, item.at, item.body
        try:
            if item.head:
                frames.append(profile.of_fact(next(facts), body, seq=seq, at=at))
                continue
            if batch.heads is None:
                check_observations(item)
            frames.append(profile.of_observations(seq, item.kind, body, at=at, after=after, upto=upto))
        except UNREADABLE:
            _leave_out(batch, item, frames)
    return b"".join(frames)


def _leave_out(batch: EntryBatch, item: Item, before: list[bytes]) -> None:
    """Leaves out an entry of newer code. Raises `UnreadableLog` if it is another one that cannot be read."""
    try:
        require_skippable(batch, item)
    except WeftlineError as error:
        if not batch.newer:
            logger.error("run %s: entry %d cannot be read", batch.run_id, item.seq)
        raise UnreadableLog(before, error, min(item.last_seq, batch.last_seq)) from None
    logger.warning("run %s: entry %d was written by newer code and is not shown", batch.run_id, item.seq)


async def _gap(engine: Engine, key: int, missing: tuple[int, int]) -> bytes:
    """Returns the event for entries that retention has removed, with the spec; seqs have no gaps otherwise.

    It is sent even if the end of the run cannot be read, which an event after it reports.
    """
    row = await engine.stored.row(key)
    state = snapshot(await run_summary(engine.stored, row)) if row is not None else b"null"
    first, last = missing
    return frame(last, "gap", b'{"firstMissingSeq":%d,"lastMissingSeq":%d,"snapshot":%b}' % (first, last, state))


def _watch(request: Request, follower: Follower) -> asyncio.Future[None] | None:
    """Notifies the follower when the client goes away: through the protocol, else with a task that waits for it."""
    disconnect: Disconnect | None = request.scope.get(DISCONNECT)
    if disconnect is None:
        return asyncio.ensure_future(_gone(request, follower))
    disconnect.then(follower.leave)
    return None


async def _gone(request: Request, follower: Follower) -> None:
    await request.disconnected()
    follower.leave()


def shown_with(templates: Mapping[str, str]) -> Show | None:
    """Returns what changes events to have the operator's hints instead of the tools', by tool; None if there are none.

    A template has arguments in braces. If it fails, the event is unchanged. The log is not changed.
    """

    def show(event: AnyEvent) -> AnyEvent:
        if not isinstance(event, CallOpened) or event.name not in templates:
            return event
        # The events of a stream have arguments as they are stored.
        hint = hint_from(templates[event.name], bytes(cast("Raw", event.args)), tool=event.name)
        return replace(event, display_hint=hint) if hint else event

    return show if templates else None


class Hosts(Protocol):
    """The server, as this module needs it."""

    large: LargeResponses
    show: Show | None
    view: View
    """What streams without a profile send."""

    @property
    def engine(self) -> Engine: ...


async def stream_view(app: Hosts, key: int, run_id: str, types: frozenset[str] | None, *, workspace: str) -> View:
    """Returns the view of a stream with these types; None for the usual ones. It may begin at any entry of the run.

    Raises `RateLimited` if there is no room for what has to be read.
    """
    if types is None:
        return app.view
    async with app.large.room_to_work(workspace, await app.engine.stored.logs.log_size(key)):
        projection = await projection_of(app.engine, key, run_id)
    return profiled(ProfiledFrames(projection, types, show=app.show))
