"""An engine of one's own: it hands code on to another and counts how it ended."""

from __future__ import annotations

import asyncio
from collections import Counter

from weftline.sandbox import Code, CodeEngine, Failed, Host, Language, Outcome, Sandbox
from weftline.sandbox.deno import DenoEngine
from weftline.testing.sandbox import CHECKS, Bench


class Counted:
    def __init__(self, engine: CodeEngine) -> None:
        self._engine = engine
        self.ended: Counter[str] = Counter()

    @property
    def languages(self) -> frozenset[Language]:
        return self._engine.languages

    def check(self, code: Code) -> None:
        self._engine.check(code)

    async def execute(self, code: Code, host: Host) -> Outcome:
        outcome = await self._engine.execute(code, host)
        self.ended[outcome.status if isinstance(outcome, Failed) else "success"] += 1
        return outcome

    async def close(self) -> None:
        await self._engine.close()


async def main() -> None:
    engine = Counted(DenoEngine(warm=1))
    async with Sandbox(engines=[engine]) as sandbox:
        await sandbox.run_code("export default 1")
        await sandbox.run_code("throw new Error('no');\nexport default 1")
        print(engine.ended)
        assert engine.ended == {"success": 1, "error": 1}
        # Each check is a promise of the documentation; a test of yours runs all of them.
        await CHECKS[0](Bench(sandbox, "typescript"))


if __name__ == "__main__":
    asyncio.run(main())
