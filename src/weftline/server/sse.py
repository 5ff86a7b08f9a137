"""The event stream: a raw ASGI endpoint, one small task per reader besides the request itself."""

from __future__ import annotations

import asyncio

from weftline.runtime.hub import Subscription
from weftline.server.http import Request

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
    gone: asyncio.Future[None] | None = None
    try:
        headers = [*HEADERS, (b"x-request-id", request.id.encode())]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        while gone is None or not gone.done():
            data = None if request.method == "HEAD" else subscription.take()
            if data is None:
                await request.send({"type": "http.response.body", "body": b""})
                return
            if data:
                await request.send({"type": "http.response.body", "body": data, "more_body": True})
            else:
                # Only a reader that has to wait may be gone without our noticing.
                gone = gone or asyncio.ensure_future(_gone(request, subscription))
                await subscription.wait()
    finally:
        subscription.close()
        if gone is not None:
            gone.cancel()


async def _gone(request: Request, subscription: Subscription) -> None:
    await request.disconnected()
    subscription.wake()
