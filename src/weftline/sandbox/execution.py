"""The handle of a piece of code that was started, and the host that serves it.

queued ──▶ running ──▶ settled
   └─────────────────────▲        terminate(), the safety cap, the sandbox closing
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import marshal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, assert_never, cast

from msgspec import structs

from weftline.sandbox.base import (
    MAX_PARTS,
    Code,
    CodeEngine,
    CodeError,
    CodeLog,
    CodeResult,
    Failed,
    HostFunction,
    Level,
    Outcome,
    OutputFull,
    SandboxUnavailable,
    Succeeded,
)
from weftline.sandbox.values import copied
from weftline.text.characters import whole
from weftline.work.turns import FairSemaphore

MAX_REPORTS = 10_000
MAX_LOGS = 10_000

TERMINATED = "TerminatedError"

_log = logging.getLogger("weftline.sandbox")


class Served:
    """Serves the reports, logs and calls of one piece of code."""

    def __init__(self, functions: Sequence[HostFunction], report: Callable[[object], object] | None) -> None:
        self._functions = functions
        self._report = report
        self.reports: list[object] = []
        self.logs: list[CodeLog] = []
        self._left_out = 0
        self.closed = False

    async def call(self, function: int, args: Sequence[object]) -> object:
        if self.closed or not 0 <= function < len(self._functions):
            raise LookupError("There is no such function.")
        answer = self._functions[function].call(*args)
        if inspect.isawaitable(answer):
            answer = await answer
        return copied(answer, "the answer", max_parts=MAX_PARTS)

    def report(self, value: object) -> None:
        if self.closed or self._report is None:
            return
        if len(self.reports) >= MAX_REPORTS:
            raise OutputFull(f"The code reported more than {MAX_REPORTS:,} values.")
        self.reports.append(value)
        try:
            # Plain data, possibly a lot of it, is copied in C.
            self._report(marshal.loads(marshal.dumps(cast("Any", value))))
        except Exception:
            _log.exception("the report callback failed; the code continues")

    def log(self, level: Level, args: Sequence[object]) -> None:
        if self.closed:
            return
        if len(self.logs) >= MAX_LOGS:
            self._left_out += 1  # a chatty program is not an error
            return
        self.logs.append(CodeLog(level, tuple(args), _now_ms()))

    def all_logs(self) -> tuple[CodeLog, ...]:
        if not self._left_out:
            return tuple(self.logs)
        return (*self.logs, CodeLog("warn", (f"{self._left_out:,} more were left out.",), _now_ms()))


class CodeExecution:
    """Code that was started. Await it, as often as you like, for its result; whatever the code does, this never
    raises.
    """

    def __init__(
        self,
        code: Code,
        *,
        engine: CodeEngine,
        served: Served,
        places: FairSemaphore,
        owner: str,
        safety_cap_s: float,
        settled: Callable[[CodeExecution], None],
    ) -> None:
        self._engine = engine
        self._served = served
        self._places = places
        self._cap_s = safety_cap_s
        self._stopped: str | None = None
        self._started: float | None = None
        self._on_start: list[Callable[[], object]] = []
        self._result: asyncio.Future[CodeResult] = asyncio.get_running_loop().create_future()
        self._settled = settled
        self._work = asyncio.create_task(self._outcome(code, owner), name="code in a sandbox")
        self._work.add_done_callback(self._settle)

    def __await__(self) -> Generator[object, None, CodeResult]:
        # A waiting task may be cancelled, but not the code and the others who wait.
        return asyncio.shield(self._result).__await__()

    @property
    def running(self) -> bool:
        return not self._result.done()

    @property
    def reports(self) -> tuple[object, ...]:
        """The reports of the code so far."""
        return tuple(self._served.reports)

    def when_started(self, call: Callable[[], object]) -> None:
        """Calls `call` when the code starts to run: at once if it has started, never if it is terminated before."""
        if self._started is not None:
            call()
        else:
            self._on_start.append(call)

    def terminate(self, reason: str = "The code was terminated.") -> None:
        """Ends the code. `reason` is the message of the result's error. Does nothing once it has been called or the
        code has ended.
        """
        if self._stopped is None and not self._work.done():
            self._stopped = whole(reason)
            self._work.cancel()

    async def _outcome(self, code: Code, owner: str) -> Outcome:
        await self._places.acquire(owner)
        cap = asyncio.get_running_loop().call_later(
            self._cap_s,
            self.terminate,
            f"The code reached the safety cap of {self._cap_s:g} seconds.",
        )
        self._started = time.perf_counter()
        try:
            for call in self._on_start:
                call()
            return await self._engine.execute(code, self._served)
        except (OutputFull, SandboxUnavailable) as ended:
            return Failed("terminated", CodeError(name=TERMINATED, message=str(ended)))
        finally:
            cap.cancel()
            self._places.release(owner)

    def _settle(self, work: asyncio.Task[Outcome]) -> None:
        self._served.closed = True
        outcome: Outcome
        if work.cancelled():
            reason = self._stopped or "The code was terminated."
            outcome = Failed("terminated", CodeError(name=TERMINATED, message=reason))
        elif (error := work.exception()) is not None:
            self._result.set_exception(error)  # ours, not the code's
            self._settled(self)
            return
        else:
            outcome = work.result()
        self._result.set_result(self._to_result(outcome))
        self._settled(self)

    def _to_result(self, outcome: Outcome) -> CodeResult:
        began, served = self._started, self._served
        outcome_result = CodeResult(
            status="success",
            reports=tuple(served.reports),
            logs=served.all_logs(),
            duration_ms=0.0 if began is None else (time.perf_counter() - began) * 1000,
            memory_used_bytes=outcome.memory_used_bytes,
        )
        match outcome:
            case Succeeded(value=value, open_calls=calls):
                return structs.replace(outcome_result, result=value, open_calls=calls)
            case Failed(status=status, error=error):
                return structs.replace(outcome_result, status=status, error=error)
            case _:
                assert_never(outcome)

    async def wait(self) -> None:
        """Waits until it has settled, whatever the outcome."""
        with suppress(Exception):
            await asyncio.shield(self._result)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
