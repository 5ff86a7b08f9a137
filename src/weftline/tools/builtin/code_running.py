"""Runs a model's code in a sandbox, and makes its outcome readable for the model. The caller provides the functions."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import cast

from weftline import prompts
from weftline.messages import Text
from weftline.sandbox import CodeError, CodeExecution, CodeLog, CodeResult, Language, Sandbox, SandboxUnavailable
from weftline.text.canonical import digest
from weftline.tools.base import ToolFailed, ToolOutput

FOREVER_S = 10 * 365 * 86_400.0
"""The sandbox's own cap: practically none, as the time of calls that the code waits for must not count."""
MAX_LOG_CHARS = 20_000
_ENTRY = "main.ts"
_SUFFIX: dict[Language, str] = {"typescript": "ts", "javascript": "js"}

# Repeated code must make the same calls, so it gets a fixed time and a fixed sequence of random numbers.
_PRELUDE = """{
  const now = %d, D = Date;
  let state = %d;
  D.now = () => now;
  const fixed = new Proxy(D, {
    construct: (target, args, made) => Reflect.construct(target, args.length ? args : [now], made === fixed ? D : made),
    apply: () => new D(now).toString(),
  });
  D.prototype.constructor = fixed;
  globalThis.Date = fixed;
  const shown = Intl.DateTimeFormat.prototype, { formatToParts } = shown;
  const { get: formatOf } = Object.getOwnPropertyDescriptor(shown, 'format');
  Object.defineProperty(shown, 'format', { configurable: true, get() {
    const format = formatOf.call(this);
    return (date) => format(date === undefined ? now : date);
  } });
  shown.formatToParts = function (date) { return formatToParts.call(this, date === undefined ? now : date); };
  // What they tell depends on when memory is collected.
  for (const name of ['Temporal', 'WeakRef', 'FinalizationRegistry']) delete globalThis[name];
  Math.random = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
"""
_MAIN = "import './%s'; import * as code from './%s'; export default code.default;"


def new_sandbox(memory_limit_bytes: int) -> Sandbox:
    # Code that waits for a call keeps its slot, so there are more slots than cores.
    most = max(8, 4 * (os.cpu_count() or 1))
    return Sandbox(max_running=most, safety_cap_s=FOREVER_S, memory_limit_bytes=memory_limit_bytes)


def start(
    sandbox: Sandbox,
    source: str,
    *,
    language: Language,
    functions: Mapping[str, Callable[..., Awaitable[object]]],
    clock_ms: int,
    seed: str,
    owner: str,
) -> CodeExecution:
    """Starts a module whose default export is the result. Raises `ToolFailed` if there is no sandbox for it."""
    try:
        if language == "python":
            return sandbox.run_code(
                _with_default(source), language=language, globals=functions, filename="code.py", owner=owner
            )
        file, prelude = f"code.{_SUFFIX[language]}", "prelude.js"
        number = int(digest(seed.encode()).removeprefix("c1:")[:7], 16)
        return sandbox.run_code(
            _MAIN % (prelude, file),
            language=language,
            modules={prelude: _PRELUDE % (clock_ms, number), file: source},
            globals=functions,
            filename=_ENTRY,
            owner=owner,
        )
    except SandboxUnavailable as error:
        raise ToolFailed(prompts.code.sandbox_missing(error.message)) from None


def _with_default(source: str) -> str:
    """Adds a result of `None` to a module without one."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        for node in ast.walk(ast.parse(source)):
            named = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
            if named == "default" or (isinstance(node, ast.Name) and node.id == "default"):
                return source
        return f"{source}\ndefault = None"
    return source


def to_tool_output(result: CodeResult, calls: list[str]) -> ToolOutput:
    """Returns what the model reads.

    `calls` lists the calls that the code made, with their outcomes; for code that succeeded, only those that failed
    after it had ended.
    """
    logs = _logs(result.logs)
    if result.error is None:
        text = prompts.code.code_result(_to_text(result.result), logs, calls)
        return ToolOutput((Text(text),), is_json=not (isinstance(result.result, str) or logs or calls))
    return ToolOutput.of(prompts.code.code_failed(result.status, _error(result.error), logs, calls), is_error=True)


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(_text_of(value), ensure_ascii=False)


def _text_of(value: object) -> object:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, dict):
        return {key: _text_of(one) for key, one in cast("dict[str, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_text_of(one) for one in cast("list[object]", value)]
    return value


def _error(error: CodeError) -> str:
    text = f"{error.name}: {error.message}" if error.message else error.name
    if error.line is None or (error.filename or "") == _ENTRY:
        return text
    place = f"line {error.line}" if error.column is None else f"line {error.line}, column {error.column}"
    return f"{text} ({place})"


def _logs(logs: tuple[CodeLog, ...]) -> str:
    lines: list[str] = []
    left = MAX_LOG_CHARS
    for one in logs:
        line = " ".join([_to_text(arg) for arg in one.args])
        line = line if one.level in ("log", "info") else f"[{one.level}] {line}"
        left -= len(line) + 1
        if left < 0:
            lines.append(prompts.code.LOG_CUT)
            break
        lines.append(line)
    return "\n".join(lines)
