"""The process that serves Python code: it holds a pool of monty workers, one for each piece of code.

It is a process of its own because monty's client is native code, and a failure would take the server with it. It is
trusted; the code runs in the worker, which can do nothing but what is answered here. Its frames are those of
`conversation.py`. It is started as a script, with the folders of its packages as its argument.
"""

from __future__ import annotations

import json
import sys

if __name__ == "__main__":
    sys.path += json.loads(sys.argv[1])

import ast
import asyncio
import builtins
import os
import signal
import symtable
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pydantic_monty as monty
from msgspec import Struct
from msgspec.json import decode as decode_json
from msgspec.json import encode as encode_json

from weftline.sandbox.base import LEVELS, MAX_FRAME_BYTES, MAX_PARTS
from weftline.sandbox.values import Refused, copied, decode, encode

MAX_LINE_BYTES = 64 << 20
MAX_HOST_CALLS = 1_000_000
_CODE = "<python-input-1>"
"""Monty's name for the second snippet of a session: the code, after the prologue."""

# Checks in the sandbox what would otherwise leave it as text: monty turns a function or a cycle into its repr. Counts
# every occurrence there, too, because a shared value is built again here for each. Built-ins are kept as defaults,
# because the code may rebind their names.
_PROLOGUE = (
    """
def __weftline_look(value, above, room, type=type, list=list, tuple=tuple, dict=dict, str=str, int=int, bytes=bytes,
                    id=id, range=range, len=len, plain=(type(None), bool, float), most=10 ** 4000):
    kind = type(value)
    room[0] -= 1
    room[1] -= 2
    if kind is str or kind is bytes:
        room[1] -= len(value)
    if room[0] < 0:
        return ''
    if room[1] < 0:
        __weftline_full()
        return ': more than 8 MiB'
    if kind is str or kind is bytes or kind in plain:
        return None
    if kind is int:
        return ': an integer of more than 4,000 digits' if value >= most or value <= -most else None
    if kind is not list and kind is not tuple and kind is not dict:
        shown = str(kind)
        if shown in ("<class 'function'>", "<class 'builtin_function_or_method'>", "<class 'type'>"):
            return ': a function'
        return ': a coroutine' if shown == "<class 'coroutine'>" else ': an instance of ' + shown[8:-2]
    if id(value) in above:
        return ': a value that contains itself'
    if len(above) > 200:
        return ': a value nested more than 200 deep'
    above = above + [id(value)]
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return ': a key that is not a string'
            room[1] -= len(key) + 2
            wrong = __weftline_look(value[key], above, room)
            if wrong is not None:
                return '.' + key + wrong
    else:
        for index in range(len(value)):
            wrong = __weftline_look(value[index], above, room)
            if wrong is not None:
                return '[' + str(index) + ']' + wrong
    return None

def __weftline_out(value, path, TypeError=TypeError):
    room = [%d, %d]
    wrong = __weftline_look(value, [], room)
    if room[0] < 0:
        wrong = ': a value of more than {:,} parts'
    if wrong is not None:
        raise TypeError(path + wrong + ' cannot leave the sandbox')
    return value

async def __weftline_run(value, args, name, type=type, str=str, TypeError=TypeError):
    if str(type(value)) in ("<class 'function'>", "<class 'builtin_function_or_method'>", "<class 'type'>"):
        value = value(*args)
    elif args:
        raise TypeError('The export ' + name + ' is not a function and takes no arguments')
    if str(type(value)) == "<class 'coroutine'>":
        value = await value
    return __weftline_out(value, 'result')
""".replace("{:,}", f"{MAX_PARTS:,}")
    % (MAX_PARTS, MAX_FRAME_BYTES)
)
_FUNCTION = """
def {name}(*args, **named):
    return __weftline_call({id}, __weftline_out((*args, named) if named else args, 'arguments'))
"""
_REPORT = """
def report(value):
    __weftline_report(__weftline_out(value, 'report'))
"""
# Monty has these. Those that run a text would import what the code may not, since the text is not checked before it
# runs. And `locals` at the top of a module exposes the caller's values and ours.
_ABSENT = """
def {name}(*args, **named):
    raise NameError("name '{name}' is not defined")
"""
_WITHHELD = ("exec", "eval", "locals")
_OURS = "__weftline"


class Request(Struct):
    """Code, as `monty.py` sends it. Functions are listed separately from values, by their ids."""

    token: str
    label: str
    source: str
    fn: str
    args: str
    globals: dict[str, str]
    global_functions: dict[str, int]
    console: dict[str, int] | None
    imports: dict[str, dict[str, str]]
    import_functions: dict[str, dict[str, int]]
    reports: bool
    memory_limit_bytes: int


class Unlinked(Exception):
    def __init__(self, specifier: str, message: str, node: ast.AST | None = None) -> None:
        super().__init__(message)
        self.specifier = specifier
        self.node = node


class Session:
    """One piece of code."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._loop = asyncio.get_running_loop()
        self.token = request.token.encode()
        self._calls = 0
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._printed: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._printed_chars = 0
        self._tree: ast.Module | None = None
        self._out_of_memory_elsewhere: set[str] = set()
        """Out-of-memory messages of the host's functions."""
        self._ended = False

    async def run(self, pool: monty.AsyncMonty) -> None:
        request = self._request
        try:
            self._link()
        except Unlinked as error:
            line, column = getattr(error.node, "lineno", None), getattr(error.node, "col_offset", None)
            place = {"line": line, "column": None if column is None else column + 1, "filename": request.label}
            self._fail("link_error", "ImportError", str(error), specifier=error.specifier, **(place if line else {}))
            return
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line, column = getattr(error, "lineno", None), getattr(error, "offset", None)
            place = {"filename": request.label, "line": line, "column": column} if line else {}
            # CPython's parser gives no message when it runs out of memory.
            message = getattr(error, "msg", None) or str(error) or "the code is too long, or nested too deeply"
            self._fail("link_error", "SyntaxError", message, specifier=request.label, **place)
            return
        try:
            value = await self._fed(pool)
        except (monty.MontySyntaxError, monty.MontyRuntimeError) as error:
            self._raised(error)
        except MemoryError:
            self._full()
        except monty.MontyError as error:
            self._fail("terminated", "TerminatedError", f"The engine process ended before the code did ({error}).")
        else:
            self._flush()
            try:
                given = encode(copied(value, "result", max_parts=MAX_PARTS))
                if self._waiting:
                    self._emit("O", encode_json(list(self._waiting)))
                self._emit("D", given)
            except (Refused, ValueError) as refused:
                self._fail("error", "TypeError", str(refused))
        finally:
            for future in self._waiting.values():
                future.cancel()

    def answer(self, call: int, ok: bool, first: str, second: str = "") -> None:
        future = self._waiting.pop(call, None)
        if future is None or future.done():
            return
        if first == "MemoryError" and not ok:
            self._out_of_memory_elsewhere.add(second)
        if ok:
            future.set_result(decode(first.encode()))
            return
        known = getattr(builtins, first, None)
        raised: Exception = Exception(f"{first}: {second}")
        # Monty only has the built-in exceptions.
        if isinstance(known, type) and issubclass(known, Exception):
            raised = known(second)
        future.set_exception(raised)

    async def _fed(self, pool: monty.AsyncMonty) -> object:
        request = self._request
        modules = {
            name: monty.ExternalModule(
                {key: decode(value.encode()) for key, value in request.imports[name].items()}
                | {key: self._function(id) for key, id in request.import_functions[name].items()}
            )
            for name in request.imports
            if name.isidentifier()
        }
        lookup: dict[str, Any] = {"__weftline_call": self._called, "__weftline_report": self._reported}
        lookup["__weftline_full"] = self._full
        functions = "".join(_FUNCTION.format(name=name, id=id) for name, id in request.global_functions.items())
        values: dict[str, Any] = {name: decode(text.encode()) for name, text in request.globals.items()}
        methods = {level: self._logs(level) for level in LEVELS}
        if request.console is not None:
            methods = {name: self._console_method(id) for name, id in request.console.items()}
        console = type("Console", (), dict(methods))()
        values["console"] = monty.ClassInstance(console, allowed_methods=set(methods))
        limits: monty.ResourceLimits = {
            "max_memory": request.memory_limit_bytes,
            "max_suspensions": MAX_HOST_CALLS,
        }
        async with pool.checkout(limits=limits, external_modules=modules) as session:
            given = request.globals.keys() | request.global_functions.keys()
            absent = "".join(_ABSENT.format(name=name) for name in _WITHHELD if name not in given)
            prologue = _PROLOGUE + absent + functions + (_REPORT if request.reports else "")
            await session.feed_run(prologue, inputs=values, external_lookup=lookup)
            # In one snippet, because monty forgets the pending calls of the code after it.
            run = f"\nawait __weftline_run({request.fn}, __weftline_args, {request.fn!r})"
            return await session.feed_run(
                request.source + run,
                inputs={"__weftline_args": decode(request.args.encode())},
                external_lookup=lookup,
                print_callback=self._print,
            )

    def _link(self) -> None:
        """Checks, before any statement has run, that every import is among `imports` and that the export exists."""
        request = self._request
        tree = self._tree = ast.parse(request.source)
        for node in ast.walk(tree):
            if any(name.startswith(_OURS) for name in _names(node)):
                raise Unlinked(request.label, f"Names that begin with {_OURS} are the runtime's own", node)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and not _is_whole(node.value):
                raise Unlinked(request.label, "Monty does not support unpaired surrogates", node)
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._find(alias.name, node)
            elif isinstance(node, ast.ImportFrom):
                name = "." * node.level + (node.module or "")
                self._find(name, node)
                exported = request.imports[name].keys() | request.import_functions[name].keys()
                for alias in node.names:
                    if alias.name not in exported and alias.name != "*":
                        raise Unlinked(name, f"The module {name!r} does not export {alias.name!r}", node)
        names = symtable.symtable(request.source, "code", "exec").get_symbols()
        bound = {one.get_name() for one in names if one.is_assigned() or one.is_imported() or one.is_namespace()}
        if request.fn not in bound:
            raise Unlinked(request.label, f"The module does not export {request.fn!r}")

    def _find(self, name: str, node: ast.AST) -> None:
        if name not in self._request.imports:
            raise Unlinked(name, f"Cannot import {name!r}: there is no such import", node)

    def _function(self, id: int) -> Callable[..., object]:
        def function(*args: object, **named: object) -> object:
            return self._called(id, (*args, named) if named else args)

        return function

    def _called(self, id: int, args: Any) -> Coroutine[Any, Any, object]:
        """Reports the call at once, in one of monty's threads, because the code may end without ever awaiting it."""
        future: asyncio.Future[object] = self._loop.create_future()
        try:
            given = encode(copied(args, "arguments", max_parts=MAX_PARTS))
        except (Refused, ValueError) as refused:
            future.set_exception(refused)
        else:
            self._calls += 1
            self._waiting[self._calls] = future
            self._emit("C", b"[%d,%d,%b]" % (self._calls, id, given))
        return _answer_of(future)

    def _console_method(self, id: int) -> Callable[..., None]:
        def method(_: object, *args: object) -> None:
            self._calls += 1
            self._emit("C", b"[%d,%d,%b]" % (self._calls, id, encode([_short(one) for one in args])))

        return method

    def _reported(self, value: object) -> None:
        self._emit("P", encode(copied(value, "report", max_parts=MAX_PARTS)))

    def _logs(self, level: str) -> Callable[..., None]:
        def method(_: object, *args: object) -> None:
            self._flush()
            self._log(level, *args)

        return method

    def _log(self, level: str, *args: object) -> None:
        console = self._request.console
        if console is None:
            self._emit("L", encode([level, [_short(one) for one in args]]))
        elif level in console:
            self._console_method(console[level])(None, *args)

    def _print(self, stream: str, text: str) -> None:
        *lines, rest = text.split("\n")
        begun = self._printed[stream]
        for line in lines:
            self._log("log" if stream == "stdout" else "error", "".join([*begun, line]))
            begun.clear()
            self._printed_chars = 0
        if rest:
            begun.append(rest)
            self._printed_chars += len(rest)
        if self._printed_chars > MAX_FRAME_BYTES:
            begun.clear()
            self._full()

    def _flush(self) -> None:
        for stream, begun in self._printed.items():
            if begun:
                self._print(stream, "\n")

    def _raised(self, error: monty.MontySyntaxError | monty.MontyRuntimeError) -> None:
        request, raised, frames = self._request, error.exception(), error.traceback()
        name, message = type(raised).__name__, _message(raised)
        if frames and frames[-1].function_name is None:
            # From the parser: running code always has a frame with a name, if only that of the module.
            place = {"filename": request.label, "line": frames[-1].line, "column": frames[-1].column}
            self._fail("link_error", name, message, specifier=request.label, **place)
            return
        self._flush()
        lines = request.source.count("\n") + 1
        own = [one for one in reversed(frames) if one.filename == _CODE and one.line <= lines][:20]
        places = [(one.function_name or "", request.label, one.line, one.column) for one in own]
        status = "memory" if isinstance(raised, MemoryError) and self._is_engines(message, frames) else "error"
        self._fail(status, name, message, frames=places)

    def _is_engines(self, message: str, frames: list[monty.Frame]) -> bool:
        """Returns True if the engine itself ran out of memory, rather than the code or the host raising such an
        error.
        """
        if message in self._out_of_memory_elsewhere or self._tree is None:
            return False
        lines = [
            *(node.exc or node for node in ast.walk(self._tree) if isinstance(node, ast.Raise)),
            *(node.type or node for node in ast.walk(self._tree) if isinstance(node, ast.ExceptHandler)),
        ]
        # The engine's own error cannot be caught, so it is never raised where code raises or catches.
        places = {(one.lineno, one.col_offset + 1) for one in lines}
        return not frames or (frames[-1].line, frames[-1].column) not in places

    def _full(self) -> None:
        self._fail(
            "terminated", "TerminatedError", f"The code handed out a value of more than {MAX_FRAME_BYTES >> 20} MiB."
        )
        self._ended = True

    def _fail(self, status: str, name: str, message: str, **more: object) -> None:
        report = {"status": status, "name": name, "message": message, **more}
        self._emit("E", encode_json({key: value for key, value in report.items() if value is not None}))

    def _emit(self, kind: str, payload: bytes) -> None:
        if self._ended:
            return
        out = sys.stdout.buffer
        out.write(self.token + kind.encode() + payload + b"\n")
        out.flush()


async def _answer_of(future: asyncio.Future[object]) -> object:
    return await future


def _names(node: ast.AST) -> Iterator[str]:
    """The identifiers in one node."""
    if isinstance(node, ast.Constant):
        return
    for _, field in ast.iter_fields(node):
        for one in cast("list[object]", field) if isinstance(field, list) else [field]:
            if isinstance(one, str):
                yield one


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _message(error: BaseException) -> str:
    return str(error.args[0]) if error.args else ""


def _short(value: object) -> object:
    try:
        return copied(value, "log", max_parts=MAX_PARTS // 10)
    except Refused:
        text = _text(value)
        return text if len(text) <= 200 else text[:200] + "…"


def _text(value: object) -> str:
    if isinstance(value, list | tuple | dict):
        parts = cast("list[object]", value)
        return f"a {type(parts).__name__} of {len(parts)}"  # a complete list may be too long
    try:
        return str(value)
    except ValueError:
        return "an integer that is too long"


def _stop() -> None:
    """Ends the interpreters and waits for them, so that nobody else has to."""
    for listed in Path("/proc/self/task").glob("*/children"):
        for child in map(int, listed.read_text().split()):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    # Monty's threads may abort an interpreter while it shuts down.
    os._exit(0)


async def main() -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, _stop)
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with monty.AsyncMonty(min_processes=1, max_processes=2, max_checkouts_per_worker=1) as pool:
        sys.stdout.buffer.write(b"ready\n")
        sys.stdout.buffer.flush()
        session: Session | None = None
        running: asyncio.Task[None] | None = None
        while line := await reader.readline():
            if line.startswith(b"{"):
                session = Session(decode_json(line, type=Request))
                if running is not None:
                    await running
                running = asyncio.create_task(session.run(pool))
            elif session is not None and line.startswith(session.token):  # the code that asked may have ended
                session.answer(*decode_json(line.removeprefix(session.token)))
        _stop()  # not after the block, which waits for running code at its end


if __name__ == "__main__":
    asyncio.run(main())
