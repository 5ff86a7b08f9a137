"""A sandbox: engines by language, a queue in front of them, and `run_code`."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, cast

from weftline.sandbox import request
from weftline.sandbox.base import (
    DEFAULT_MEMORY_LIMIT_BYTES,
    DEFAULT_SAFETY_CAP_S,
    CodeEngine,
    Language,
    SandboxUnavailable,
)
from weftline.sandbox.execution import CodeExecution, Served
from weftline.work.turns import FairSemaphore


class Sandbox:
    """Runs code that nobody has to trust. It belongs to the event loop that first uses it.

        async with Sandbox() as sandbox:
            result = await sandbox.run_code("export default (a: number) => a * 2", args=[21])
            assert result.result == 42

    `max_running` pieces of code run at once (one per core unless said otherwise) and the rest wait their turn; the
    safety cap begins when the code does. `engines` replaces the engines that come with Weftline.
    """

    def __init__(
        self,
        *,
        engines: Sequence[CodeEngine] | None = None,
        max_running: int | None = None,
        safety_cap_s: float = DEFAULT_SAFETY_CAP_S,
        memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
    ) -> None:
        if max_running is not None and not (isinstance(cast("object", max_running), int) and max_running > 0):
            raise ValueError(f"max_running must be a positive integer, not {max_running!r}.")
        if not 0 < safety_cap_s < math.inf:
            raise ValueError(f"safety_cap_s must be a positive number of seconds, not {safety_cap_s!r}.")
        request.check_memory_limit(memory_limit_bytes)
        self._engines: dict[Language, CodeEngine] = {}
        self._given = engines is not None
        for engine in engines or ():
            self._engines.update(dict.fromkeys(engine.languages, engine))
        self._places = FairSemaphore(max_running or max(2, os.cpu_count() or 1))
        self._safety_cap_s = safety_cap_s
        self._memory_limit_bytes = memory_limit_bytes
        self._executions: set[CodeExecution] = set()
        self._closed = False

    def run_code(
        self,
        source: str,
        *,
        language: str = "typescript",
        fn: str = "default",
        args: Sequence[object] = (),
        imports: Mapping[str, Mapping[str, object]] | None = None,
        modules: Mapping[str, str] | None = None,
        globals: Mapping[str, object] | None = None,
        report: Callable[[object], object] | None = None,
        memory_limit_bytes: int | None = None,
        filename: str | None = None,
        owner: str = "",
    ) -> CodeExecution:
        """Starts the code and returns at once; await what it returns for the result.

        The export `fn` is called with `args`, or is the result itself if it is not a function. `imports` are the bare
        specifiers that the code may import, each with its exports (`default` for the default one), `modules` further
        sources by their path, and `globals` are free variables. Functions of yours among them are asynchronous
        functions to the code. `report` receives what the code passes to its `report()`.

        There is no timeout: call `terminate` when you have waited long enough. Raises `ValueError` for arguments that
        are wrong and `SandboxUnavailable` for a language whose engine is not installed.
        """
        if self._closed:
            raise RuntimeError("The sandbox is closed.")
        request.check_texts(owner=owner)
        if report is not None and (not callable(report) or inspect.iscoroutinefunction(report)):
            raise ValueError("report must be a plain function, which is called with each value and not awaited.")
        code, functions = request.read(
            source,
            language=language,
            fn=fn,
            args=args,
            imports={} if imports is None else imports,
            modules={} if modules is None else modules,
            globals={} if globals is None else globals,
            reports=report is not None,
            memory_limit_bytes=self._memory_limit_bytes if memory_limit_bytes is None else memory_limit_bytes,
            filename=filename,
        )
        engine = self._engine(code.language)
        engine.check(code)
        execution = CodeExecution(
            code,
            engine=engine,
            served=Served(functions.all, report),
            places=self._places,
            owner=owner,
            safety_cap_s=self._safety_cap_s,
            settled=self._executions.discard,
        )
        self._executions.add(execution)
        return execution

    def require(self, language: Language) -> None:
        """Raises `SandboxUnavailable` if code in this language cannot run here."""
        source = "default = 1" if language == "python" else "export default 1"
        code, _ = request.read(
            source,
            language=language,
            fn="default",
            args=(),
            imports={},
            modules={},
            globals={},
            reports=False,
            memory_limit_bytes=self._memory_limit_bytes,
            filename=None,
        )
        self._engine(language).check(code)

    async def close(self) -> None:
        """Terminates what is still running and stops the engines. Nothing is left when it returns."""
        self._closed = True
        running = list(self._executions)
        for execution in running:
            execution.terminate("The sandbox was closed.")
        for execution in running:
            await execution.wait()
        for engine in set(self._engines.values()):
            await engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _engine(self, language: Language) -> CodeEngine:
        engine = self._engines.get(language)
        if engine is None:
            if self._given:
                raise SandboxUnavailable(f"This sandbox has no engine for {language}.")
            engine = _usual_engine(language, self._memory_limit_bytes)
            self._engines.update(dict.fromkeys(engine.languages, engine))
        return engine


def _usual_engine(language: Language, memory_limit_bytes: int) -> CodeEngine:
    if language == "python":
        from weftline.sandbox.monty import MontyEngine

        return MontyEngine(usual_memory_limit_bytes=memory_limit_bytes)
    from weftline.sandbox.deno import DenoEngine

    return DenoEngine(usual_memory_limit_bytes=memory_limit_bytes)
