"""The parts of a check: a sandbox, a language, and a helper for programs that differ by language."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from weftline.sandbox import CodeError, CodeExecution, CodeResult, Language, Sandbox

TIMEOUT_S = 60.0


class Bench(Struct, frozen=True):
    sandbox: Sandbox
    language: Language

    def start(
        self,
        script: str,
        python: str,
        *,
        fn: str = "default",
        args: Sequence[object] = (),
        imports: Mapping[str, Mapping[str, object]] | None = None,
        modules: Mapping[str, str] | None = None,
        globals: Mapping[str, object] | None = None,
        report: Callable[[object], object] | None = None,
        memory_limit_bytes: int | None = None,
        filename: str | None = None,
    ) -> CodeExecution:
        """Starts `script`, which is TypeScript and JavaScript, or `python`."""
        return self.sandbox.run_code(
            python if self.language == "python" else script,
            language=self.language,
            fn=fn,
            args=args,
            imports=imports,
            modules=modules,
            globals=globals,
            report=report,
            memory_limit_bytes=memory_limit_bytes,
            filename=filename,
        )


Check: TypeAlias = Callable[[Bench], Awaitable[None]]


async def settled(execution: CodeExecution) -> CodeResult:
    async with asyncio.timeout(TIMEOUT_S):
        return await execution


async def value_of(execution: CodeExecution) -> object:
    """The result of code that must succeed."""
    result = await settled(execution)
    assert result.status == "success", result.error
    assert result.error is None
    return result.result


async def error_of(execution: CodeExecution, status: str) -> CodeError:
    """The error of code that must end with `status`."""
    result = await settled(execution)
    assert result.status == status, (result.status, result.result, result.error)
    assert result.error is not None
    return result.error


def is_refused(start: Callable[[], object]) -> bool:
    """Returns True if the call itself raises `ValueError`."""
    try:
        start()
    except ValueError:
        return True
    return False


class Gate:
    """A host function that signals when it is called, and answers when it is released."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.let = asyncio.Event()

    async def __call__(self, *args: object) -> object:
        self.called.set()
        await self.let.wait()
        return list(args)

    async def reached(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self.called.wait()
