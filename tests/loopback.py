"""Small web servers of tests, on free ports of this machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


@asynccontextmanager
async def listening(app: web.Application, **options: Any) -> AsyncGenerator[str]:
    """The address of `app`, without a path. `options` are those of `web.AppRunner`."""
    runner = web.AppRunner(app, **options)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield site.name
    finally:
        await runner.cleanup()
