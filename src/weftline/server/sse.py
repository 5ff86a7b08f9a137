"""The event stream: a raw ASGI endpoint that holds next to nothing while it waits."""

from __future__ import annotations

import asyncio
import logging

from msgspec import DecodeError

from weftline.kernel.entries import decode_fact
from weftline.runtime.engine import Engine, Follower
from weftline.runtime.hub import EntryBatch
from weftline.server.http import ON_GONE, Request
from weftline.server.views import run_view
from weftline.wire.events import delta_frames, frame, project
from weftline.wire.responses import snapshot

logger = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


def resume_point(request: Request) -> int:
    """The larger of `?lastSeq` and `Last-Event-ID`; what is not a whole number is ignored."""
    return max(_seq(request.query_value("lastSeq")), _seq(request.header(b"last-event-id")))


def _seq(text: str | None) -> int:
    if text is None or not (text := text.strip()).isascii() or not text.isdigit() or len(text) > 18:
        return 0
    return int(text)


async def send_events(request: Request, engine: Engine, key: int, follower: Follower) -> None:
    """Sends what the run's log has after the cursor, then what it gets, until the run has ended."""
    request.let_go()
    watch = _watch(request, follower)
    try:
        headers = [*HEADERS, (b"x-request-id", request.id.encode())]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        if request.method != "HEAD":
            while (batches := await follower.next()) is not None:
                frames = [batch.view(sse_frames) for batch in batches]
                if batches and batches[0].missing is not None:
                    frames.insert(0, await _gap(engine, key, batches[0].missing))
                data = b"".join(frames) if batches else KEEP_ALIVE
                if data:
                    await request.send({"type": "http.response.body", "body": data, "more_body": True})
        await request.send({"type": "http.response.body", "body": b""})
    finally:
        follower.close()
        if watch is not None:
            watch.cancel()


def sse_frames(batch: EntryBatch) -> bytes:
    """The frames of a batch of entries, ready to be sent."""
    frames: list[bytes] = []
    heads = iter(batch.heads) if batch.heads is not None else None
    for item in batch.items:
        if not item.head:
            frames += delta_frames(item.seq, item.kind, item.body, after=batch.after, upto=batch.last_seq)
            continue
        try:
            fact = next(heads) if heads is not None else decode_fact.decode(item.head)
            event = project(fact, item.body, run_id=batch.run_id)
        except DecodeError:
            logger.exception("run %s: entry %d does not read and is not shown", batch.run_id, item.seq)
            continue
        if event is not None:
            frames.append(frame(item.seq, *event))
    return b"".join(frames)


async def _gap(engine: Engine, key: int, missing: tuple[int, int]) -> bytes:
    """The event in place of entries that retention has removed: seqs have no holes otherwise."""
    row = await engine.row(key)
    state = snapshot(await run_view(engine, row)) if row is not None else b"null"
    first, last = missing
    return frame(last, "gap", b'{"firstMissingSeq":%d,"lastMissingSeq":%d,"snapshot":%b}' % (first, last, state))


def _watch(request: Request, follower: Follower) -> asyncio.Future[None] | None:
    """Has the follower told when the client goes away: by the protocol, else by a task that waits for it."""
    on_gone = request.scope.get(ON_GONE)
    if on_gone is None:
        return asyncio.ensure_future(_gone(request, follower))
    on_gone.append(follower.leave)
    return None


async def _gone(request: Request, follower: Follower) -> None:
    await request.disconnected()
    follower.leave()
