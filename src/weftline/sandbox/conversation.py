"""The protocol between a host and an engine's process while one piece of code runs.

Frames from the process are lines, `<token><kind><JSON>`: the token is new for each piece of code, and the code never
sees it, so it cannot impersonate the runtime. The process receives the code, on one line, and the answers to its calls,
`<token>[call, …]`, so that a late one cannot answer another's call.

    C  [call, function, [args]]     L  [level, [args]]     P  a report
    D  the result                   E  an error            M  [files whose positions are unknown]
    O  [calls without an answer], before the result
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import signal
from collections.abc import Callable
from typing import cast

import msgspec
from msgspec import Struct

from weftline.sandbox.base import (
    LEVELS,
    MAX_FRAME_BYTES,
    MAX_PARTS,
    Code,
    CodeError,
    Failed,
    Failure,
    Host,
    Outcome,
    OutputFull,
    Succeeded,
)
from weftline.sandbox.process import Engine
from weftline.sandbox.values import Parts, Refused, TooManyParts, decode, encode
from weftline.text.characters import whole, whole_json
from weftline.work.outcomes import is_interruption

MAX_OUTPUT_BYTES = 64 << 20
MAX_OUTPUT_PARTS = 2_000_000
_LARGE_BYTES = 65_536
"""Larger frames are decoded in a thread, so that they do not block the loop."""
_FRAME_PARTS = 100
"""The parts of a frame besides a value."""
MAX_CALLS_AT_ONCE = 1000
"""Further calls wait in the pipe, and the code with them."""
CALLS_END_S = 1.0
"""How long calls that are open at the end may take to be cancelled."""
_MAX_STACK_CHARS = 8192
_MAX_MESSAGE_CHARS = 65_536
_MAX_FRAMES = 20
_FRAMES_IN_A_ROW = 8
"""How many frames are read before other tasks run, so that a flood of calls does not slow down others."""
_LOOK_S = 0.02
"""How often a process's memory use is checked, because no event reports it."""
_OUT_OF_MEMORY_SIGNALS = {signal.SIGABRT, signal.SIGTRAP, signal.SIGILL}
"""How V8 and its allocators end the process when memory runs out."""
_NO_BUFFER = "Array buffer allocation failed"

_FRAME = re.compile(
    r"^\s+at (?:async )?(?:(?P<name>[^(]{1,200}) \()?(?P<label>.*?):(?P<line>\d{1,9}):(?P<column>\d{1,9})\)?$"
)


_log = logging.getLogger("weftline.sandbox")


class _ErrorReport(Struct):
    """An error as the process describes it."""

    status: Failure
    name: str
    message: str
    stack: str = ""
    frames: tuple[tuple[str, str, int, int], ...] | None = None
    """Name, file, line and column of each, innermost first, from an engine that does not report text."""
    specifier: str | None = None
    filename: str | None = None
    line: int | None = None
    column: int | None = None


class _Broken(Exception):
    """The process sent something that the runtime in it would never send."""


class Conversation:
    """One piece of code and the process that runs it."""

    def __init__(self, engine: Engine, code: Code, host: Host, *, request: Callable[[Code, str], bytes]) -> None:
        self._engine = engine
        self._code = code
        self._host = host
        token = secrets.token_hex(16)
        self._token = token.encode()
        self._request = request(code, token)
        self._moved: set[str] = set()
        self._labels = {module.label for module in code.modules.values()}
        self._calls: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_CALLS_AT_ONCE)
        self._grown = False
        self._bytes = 0
        self._parts = MAX_OUTPUT_PARTS
        self._open: tuple[int, ...] = ()
        self._over = False
        self.clean = False
        """Whether the process itself reported how its code ended."""

    async def outcome(self) -> Outcome:
        self._engine.send(self._request)
        watch = asyncio.create_task(self._watch(), name="the size of an engine")
        try:
            outcome = await self._listen()
            await asyncio.sleep(0)  # lets the calls begin that the code made before it ended, awaited or not
        except _Broken as broken:
            outcome = _terminated(f"The engine broke its protocol: {broken}")
        finally:
            self._over = True
            if not self.clean:
                await asyncio.shield(self._engine.kill())
            await self._cancel_all(watch, *self._calls)
        return outcome

    async def _cancel_all(self, *tasks: asyncio.Task[None]) -> None:
        for task in tasks:
            task.cancel()
        _, stubborn = await asyncio.wait(tasks, timeout=CALLS_END_S)
        if stubborn:
            # They are the caller's functions and may take their time, but the result does not wait for them.
            _log.warning("%d calls from code are still running, although the code has ended", len(stubborn))

    async def _listen(self) -> Outcome:
        frames = 0
        while line := await self._line():
            frames += 1
            if frames % _FRAMES_IN_A_ROW == 0:
                # Here and not where calls are answered: a thousand tasks waiting for the same pipe would all wake at
                # once.
                await self._engine.drained()
                await asyncio.sleep(0)
            if not line.startswith(self._token):
                raise _Broken("a frame without its token.")
            start = len(self._token)
            kind, payload = line[start : start + 1], line[start + 1 :]
            try:
                outcome = await self._taken(kind, payload)
            except OutputFull:
                raise
            except (ValueError, TypeError, RecursionError):
                raise _Broken("a frame that cannot be read.") from None
            if outcome is not None:
                # Terminated code has not ended by itself.
                self.clean = not (isinstance(outcome, Failed) and outcome.status == "terminated")
                return outcome
        return await self._dead()

    async def _line(self) -> bytes:
        try:
            line = await self._engine.line()
        except ValueError:
            raise OutputFull(f"The code handed out a value of more than {MAX_FRAME_BYTES >> 20} MiB.") from None
        self._bytes += len(line)
        if self._bytes > MAX_OUTPUT_BYTES:
            raise OutputFull(f"The code handed out more than {MAX_OUTPUT_BYTES >> 20} MiB in all.")
        return line

    async def _taken(self, kind: bytes, payload: bytes) -> Outcome | None:
        match kind:
            case b"C":
                call, function, args = cast("tuple[int, int, list[object]]", await self._decoded(payload))
                await self._room.acquire()
                task = asyncio.create_task(self._carry_out(int(call), int(function), args), name="a call from code")
                self._calls.add(task)
                task.add_done_callback(self._release_call)
            case b"L":
                level, args = cast("tuple[str, list[object]]", await self._decoded(payload))
                if level in LEVELS and not self._code.own_console:
                    self._host.log(level, args)
            case b"P":
                self._host.report(await self._decoded(payload))
            case b"D":
                return Succeeded(await self._decoded(payload), self._engine.peak_bytes(), self._open)
            case b"O":
                self._open = msgspec.json.decode(payload, type=tuple[int, ...])
            case b"E":
                return self._failed(msgspec.json.decode(whole_json(payload), type=_ErrorReport))
            case b"M":
                self._moved.update(msgspec.json.decode(whole_json(payload), type=list[str]))
            case _:
                raise _Broken("a frame of an unknown kind.")
        return None

    async def _decoded(self, payload: bytes) -> object:
        parts = Parts(MAX_PARTS + _FRAME_PARTS)
        try:
            if len(payload) <= _LARGE_BYTES:
                value = decode(payload, parts)
            else:
                value = await asyncio.to_thread(decode, payload, parts)
        except TooManyParts:
            raise OutputFull(f"The code handed out a value of more than {MAX_PARTS:,} parts.") from None
        self._parts -= MAX_PARTS + _FRAME_PARTS - parts.left
        if self._parts < 0:
            raise OutputFull(f"The code handed out more than {MAX_OUTPUT_PARTS:,} parts in all.")
        return value

    def _release_call(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._room.release()

    async def _carry_out(self, call: int, function: int, args: list[object]) -> None:
        answer: tuple[int, bool, str] | tuple[int, bool, str, str]
        try:
            value = await self._host.call(function, args)
            answer = (call, True, _encoded(value))
        except Refused as refused:
            answer = (call, False, "TypeError", str(refused))
        except BaseException as error:
            if is_interruption(error) or (self._over and isinstance(error, asyncio.CancelledError)):
                raise
            # Even if the function awaited something that was cancelled, the code still waits for the function.
            answer = (call, False, *_described(error))
        if self._over:
            return  # the cancellation took a while, and the process may serve others by now
        large = answer[1] and len(answer[2]) > _LARGE_BYTES
        line = await asyncio.to_thread(msgspec.json.encode, answer) if large else msgspec.json.encode(answer)
        if self._over:
            return
        self._engine.send(self._token + line)

    async def _watch(self) -> None:
        engine = self._engine
        if not engine.own_bytes:
            return
        while engine.alive:
            if (engine.resident_bytes() or 0) - engine.own_bytes > self._code.memory_limit_bytes:
                self._grown = True
                await engine.kill()
                return
            await asyncio.sleep(_LOOK_S)

    async def _dead(self) -> Outcome:
        """The outcome if the process ended before its code did."""
        status = await self._engine.ended()
        if self._grown or -status in _OUT_OF_MEMORY_SIGNALS:
            return self._out_of_memory()
        return _terminated(f"The engine process ended before the code did ({_how(status)}).")

    def _out_of_memory(self) -> Outcome:
        limit = self._code.memory_limit_bytes
        return Failed("memory", CodeError(name="MemoryError", message=f"The code used more than {limit:,} bytes."))

    def _failed(self, report: _ErrorReport) -> Outcome:
        # Code can throw this error itself, so it counts only if the process has no memory left.
        if report.name == "RangeError" and report.message == _NO_BUFFER and self._engine.is_nearly_full():
            return self._out_of_memory()
        frames = self._frames(report)
        filename, line, column = report.filename, report.line, report.column
        if filename is None and frames:
            filename, line, column = frames[0][1]
        if filename in self._moved:
            line = column = None
        heading = f"{report.name}: {report.message}" if report.message else report.name
        error = CodeError(
            name=report.name[:200],
            message=report.message[:_MAX_MESSAGE_CHARS],
            stack="\n".join([heading[:_MAX_MESSAGE_CHARS], *(text for text, _ in frames)]) if frames else None,
            specifier=report.specifier,
            filename=filename,
            line=line,
            column=column,
        )
        return Failed(report.status, error, self._engine.peak_bytes())

    def _frames(self, report: _ErrorReport) -> list[tuple[str, tuple[str, int, int]]]:
        """The frames in the code's own files; others are not displayed."""
        found = report.frames if report.frames is not None else _parsed(report.stack[:_MAX_STACK_CHARS])
        frames: list[tuple[str, tuple[str, int, int]]] = []
        for name, label, line, column in found:
            if label in self._labels:
                place = label if label in self._moved else f"{label}:{line}:{column}"
                frames.append((f"    at {name} ({place})" if name else f"    at {place}", (label, line, column)))
        return frames[:_MAX_FRAMES]


def _encoded(value: object) -> str:
    """An answer from the host, with the same size limit as a value that leaves the sandbox. Raises `Refused`."""
    text = encode(value)
    if len(text) > MAX_FRAME_BYTES:
        raise Refused(f"the answer: more than {MAX_FRAME_BYTES >> 20} MiB cannot be passed into or out of the sandbox")
    return text.decode()


def _described(error: BaseException) -> tuple[str, str]:
    try:
        message = str(error)
    except Exception:  # the caller's own class
        message = ""
    return type(error).__name__, whole(message)[:_MAX_MESSAGE_CHARS]


def _parsed(stack: str) -> list[tuple[str, str, int, int]]:
    matches = filter(None, map(_FRAME.match, stack.split("\n")))
    return [(one["name"] or "", one["label"], int(one["line"]), int(one["column"])) for one in matches]


def _how(status: int) -> str:
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"exit code {status}"


def _terminated(message: str) -> Failed:
    return Failed("terminated", CodeError(name="TerminatedError", message=message))
