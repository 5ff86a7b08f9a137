"""The engine for runs without one: one per event loop, created on first use and closed with the loop."""

# pyright: reportPrivateUsage=false
# This module and the engine know each other.

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from weftline.agent.engine.engine import Engine

_engines: dict[asyncio.AbstractEventLoop, Engine] = {}


async def in_memory() -> Engine:
    loop = asyncio.get_running_loop()
    engine = _engines.get(loop)
    if engine is None or not engine.is_open:
        for gone in [one for one in _engines if one.is_closed()]:  # closed without closing their async generators
            del _engines[gone]
        engine = _engines[loop] = Engine()
        await engine.__aenter__()
        # Loops close their async generators before they end, which is the only notice in time.
        closing = _closing(engine, loop)
        await anext(closing)
        engine._closing = closing
    return engine


async def _closing(engine: Engine, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        if _engines.get(loop) is engine:
            del _engines[loop]
        await engine.close()
