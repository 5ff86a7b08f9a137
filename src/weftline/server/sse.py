"""The event stream: a raw ASGI endpoint that holds next to nothing while it waits."""

from __future__ import annotations

import asyncio

from weftline.runtime.hub import Subscription
from weftline.server.http import ON_GONE, Request

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


def resume_point(request: Request) -> int:
    """The larger of `?lastSeq` and `Last-Event-ID`; what is no whole number is ignored."""
    return max(_seq(request.query_value("lastSeq")), _seq(request.header(b"last-event-id")))


def _seq(text: str | None) -> int:
    if text is None or not (text := text.strip()).isascii() or not text.isdigit() or len(text) > 18:
        return 0
    return int(text)


async def send_events(request: Request, subscription: Subscription) -> None:
    """Sends what the run's log has after the cursor, then what it gets, until the run has ended."""
    request.let_go()
    watched = False
    watch: asyncio.Future[None] | None = None
    try:
        headers = [*HEADERS, (b"x-request-id", request.id.encode())]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        while not subscription.left:
            data = None if request.method == "HEAD" else subscription.take()
            if data is None:
                await request.send({"type": "http.response.body", "body": b""})
                return
            if data:
                await request.send({"type": "http.response.body", "body": data, "more_body": True})
            else:
                # Only a reader that has to wait may be gone without our noticing.
                if not watched:
                    watched, watch = True, _watch(request, subscription)
                await subscription.wait()
    finally:
        subscription.close()
        if watch is not None:
            watch.cancel()


def _watch(request: Request, subscription: Subscription) -> asyncio.Future[None] | None:
    """Has the subscription told when the client goes away: by the protocol, else by a task that waits for it."""
    on_gone = request.scope.get(ON_GONE)
    if on_gone is None:
        return asyncio.ensure_future(_gone(request, subscription))
    on_gone.append(subscription.leave)
    return None


async def _gone(request: Request, subscription: Subscription) -> None:
    await request.disconnected()
    subscription.leave()
