"""Python, on monty: an interpreter without access to an operating system.

Monty is not CPython. It has no inheritance, no generators, no custom context managers and no relative imports; such
code is a `link_error` that names what is missing. The worker process (`monty_worker.py`) is reused for the next piece
of code if the last one ended by itself: each has an interpreter process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import msgspec

from weftline.sandbox.base import (
    DEFAULT_MEMORY_LIMIT_BYTES,
    Code,
    Host,
    HostFunction,
    Language,
    Outcome,
    SandboxUnavailable,
)
from weftline.sandbox.conversation import Conversation
from weftline.sandbox.process import Isolation, Pool, Program
from weftline.sandbox.values import encode, path_to

WARM = 1

_OWN_BYTES = 256 << 20
"""What the worker may use for values in transit; monty limits the code's own memory."""
_NEEDED = ("pydantic_monty", "msgspec", "weftline")
_WORKER = Path(__file__).with_name("monty_worker.py")


class MontyEngine:
    """`warm` processes (`WARM` by default) wait for code."""

    def __init__(
        self,
        *,
        warm: int | None = None,
        isolation: Isolation = "preferred",
        usual_memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
    ) -> None:
        self._usual_bytes = usual_memory_limit_bytes
        warm = WARM if warm is None else warm
        self._pool = Pool(self._program, warm=warm, isolation=isolation, usual_bytes=usual_memory_limit_bytes)

    @property
    def languages(self) -> frozenset[Language]:
        return frozenset({"python"})

    def check(self, code: Code) -> None:
        if len(code.modules) > 1:
            raise ValueError("modules: Python code in monty cannot import modules of source; use `imports`.")
        for specifier, exported in code.imports.items():
            if specifier in sys.stdlib_module_names:
                raise ValueError(
                    f"imports: {specifier!r} is a module of the standard library; give yours another name."
                )
            if "." in specifier:
                raise ValueError(f"imports: {specifier!r} is inside a package, which monty does not have.")
            for name, value in exported.items():
                _check_flat(value, path_to(path_to("imports", specifier), name))
        for name in (*code.globals, *code.imports, *[name for exported in code.imports.values() for name in exported]):
            if name.startswith("__weftline"):
                raise ValueError(f"{name!r}: names that begin with __weftline are the runtime's own.")
        if not isinstance(code.globals.get("console", {}), dict):
            raise ValueError("globals.console: for Python it must be a mapping of functions.")
        for name, value in code.globals.items():
            for key, item in _console(name, value).items():
                _check_flat(item, path_to(path_to("globals", name), key) if key else path_to("globals", name))
        self._pool.check()

    async def execute(self, code: Code, host: Host) -> Outcome:
        # Each piece of code brings its own limit to its interpreter, which must fit into that of the process.
        engine = await self._pool.take(max(code.memory_limit_bytes, self._usual_bytes))
        conversation = Conversation(engine, code, host, request=_request)
        try:
            return await conversation.outcome()
        finally:
            done = self._pool.release(engine) if conversation.clean else engine.kill()
            await asyncio.shield(done)

    async def close(self) -> None:
        await self._pool.close()

    def _program(self, memory_limit_bytes: int) -> Program:
        if find_spec("pydantic_monty") is None:
            raise SandboxUnavailable(
                "Python runs on monty, which is not installed: pip install '.[sandbox]' in a checkout of Weftline."
            )
        homes = sorted({str(Path(spec.origin).parents[1]) for spec in map(find_spec, _NEEDED) if spec and spec.origin})
        return Program(
            args=(sys.executable, "-I", str(_WORKER), json.dumps(homes)),
            readable=(sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)), *homes),
            has_children=True,
            may_grow_bytes=memory_limit_bytes + _OWN_BYTES,
        )


def _console(name: str, value: object) -> Mapping[str, object]:
    # A console is the only object with methods.
    return cast("dict[str, object]", value) if name == "console" and isinstance(value, dict) else {"": value}


def _check_flat(value: object, path: str) -> None:
    """Functions must stand alone: monty has no objects that combine methods with data."""
    items: Mapping[object, object]
    match value:
        case dict():
            items = cast("dict[object, object]", value)
        case list():
            items = dict(enumerate(cast("list[object]", value)))
        case _:
            return
    for key, item in items.items():
        inside = f"{path}[{key}]" if isinstance(key, int) else path_to(path, str(key))
        if isinstance(item, HostFunction):
            raise ValueError(f"{inside}: Python code cannot be handed a function inside a value.")
        _check_flat(item, inside)


def _values(exported: Mapping[str, object]) -> dict[str, str]:
    return {name: encode(value).decode() for name, value in exported.items() if not isinstance(value, HostFunction)}


def _functions(exported: Mapping[str, object]) -> dict[str, int]:
    return {name: value.id for name, value in exported.items() if isinstance(value, HostFunction)}


def _request(code: Code, token: str) -> bytes:
    own = {name: value for name, value in code.globals.items() if name != "console"}
    return msgspec.json.encode(
        {
            "token": token,
            "label": code.filename,
            "source": code.modules[code.entry].source,
            "fn": code.fn,
            "args": encode(list(code.args)).decode(),
            "globals": _values(own),
            "global_functions": _functions(own),
            "console": _functions(_console("console", code.globals["console"])) if code.own_console else None,
            "imports": {specifier: _values(exported) for specifier, exported in code.imports.items()},
            "import_functions": {specifier: _functions(exported) for specifier, exported in code.imports.items()},
            "reports": code.reports,
            "memory_limit_bytes": code.memory_limit_bytes,
        }
    )
