"""TypeScript and JavaScript, each piece of code in a deno process of its own.

The process has no permissions, and the code has a realm of its own in it (`deno_boot.mjs`). It serves one piece of code
and is then killed, so nothing that code does to it can affect another.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from weftline.sandbox.base import DEFAULT_MEMORY_LIMIT_BYTES, Code, Host, Language, Outcome, SandboxUnavailable
from weftline.sandbox.conversation import Conversation
from weftline.sandbox.process import Isolation, Pool, Program
from weftline.sandbox.values import encode

WARM = 2
"""How many processes wait for code: each takes about 45 MB, and saves about 50 ms."""

_BOOT = Path(__file__).with_name("deno_boot.mjs")
_FLAGS = (
    *("--no-prompt", "--no-remote", "--no-npm", "--no-config", "--no-lock", "--cached-only", "--no-code-cache"),
    *("--deny-read", "--deny-write", "--deny-net", "--deny-env", "--deny-run", "--deny-sys", "--deny-ffi"),
    *("--deny-import", "--quiet"),
)
_OWN_HEAP_BYTES = 16 << 20
"""What the runtime itself keeps on the heap, besides the code."""


class DenoEngine:
    """`warm` processes (`WARM` by default) wait for code with the usual memory limit; `binary` is a deno other than the
    installed one."""

    def __init__(
        self,
        *,
        warm: int | None = None,
        binary: str | None = None,
        isolation: Isolation = "preferred",
        usual_memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
    ) -> None:
        self._binary = binary
        warm = WARM if warm is None else warm
        self._pool = Pool(self._program, warm=warm, isolation=isolation, usual_bytes=usual_memory_limit_bytes)

    @property
    def languages(self) -> frozenset[Language]:
        return frozenset({"typescript", "javascript"})

    def check(self, code: Code) -> None:
        self._pool.check()

    async def execute(self, code: Code, host: Host) -> Outcome:
        engine = await self._pool.take(code.memory_limit_bytes)
        try:
            return await Conversation(engine, code, host, request=_request).outcome()
        finally:
            # A cancellation must not leave the process behind, nor return before it is gone.
            await asyncio.shield(engine.kill())

    async def close(self) -> None:
        await self._pool.close()

    def _program(self, memory_limit_bytes: int) -> Program:
        binary = self._found()
        room = memory_limit_bytes + _OWN_HEAP_BYTES
        v8 = f"--max-old-space-size={-(-room >> 20)},--max-semi-space-size=4,--disallow-code-generation-from-strings"
        return Program(
            args=(binary, "run", *_FLAGS, f"--v8-flags={v8}", str(_BOOT)),
            readable=(binary, str(_BOOT)),
            # Its caches stay in memory: once it is confined, a write to a file would kill it with the code.
            env={"DENO_DIR": os.devnull, "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"},
            may_grow_bytes=room,
            holds_the_code=True,
        )

    def _found(self) -> str:
        if self._binary is None:
            try:
                from deno import find_deno_bin  # pyright: ignore[reportMissingTypeStubs]

                self._binary = find_deno_bin()
            except (ImportError, FileNotFoundError):
                raise SandboxUnavailable(
                    "TypeScript and JavaScript run on deno, which is not installed: pip install '.[sandbox]' in a"
                    " checkout of Weftline."
                ) from None
        return self._binary


def _request(code: Code, token: str) -> bytes:
    return msgspec.json.encode(
        {
            "token": token,
            "language": code.language,
            "entry": code.entry,
            "modules": {path: {"label": one.label, "source": one.source} for path, one in code.modules.items()},
            "imports": {
                specifier: {name: encode(value).decode() for name, value in exported.items()}
                for specifier, exported in code.imports.items()
            },
            "names": list(code.globals),
            "globals": encode(dict(code.globals)).decode(),
            "reports": code.reports,
            "own_console": code.own_console,
            "fn": code.fn,
            "args": encode(list(code.args)).decode(),
        }
    )
