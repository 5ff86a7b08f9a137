"""An engine for tests that are about what is around an engine: its code does what the test says."""

from __future__ import annotations

import asyncio

from weftline.sandbox import Code, Host, Language, Outcome, Succeeded


class StandIn:
    """Notes what it is given, and ends each piece of code when it is let."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.left: list[str] = []
        self.let = asyncio.Event()
        self.closed = False

    @property
    def languages(self) -> frozenset[Language]:
        return frozenset({"typescript"})

    def check(self, code: Code) -> None: ...

    async def execute(self, code: Code, host: Host) -> Outcome:
        source = code.modules[code.entry].source
        self.began.append(source)
        try:
            await self.let.wait()
            return Succeeded(source)
        finally:
            self.left.append(source)

    async def close(self) -> None:
        self.closed = True
