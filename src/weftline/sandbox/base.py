"""The types of the sandbox: code, its outcome, and what an engine must do.

    Code ──▶ CodeEngine.execute(code, host) ──▶ Succeeded | Failed
                        │  ▲
                  calls, reports, logs: Host

An engine executes one piece of code in one language or a few. It knows nothing of handles, queues or deadlines: to stop
it, the caller cancels the call, and the engine leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from weftline.errors import WeftlineError

Language: TypeAlias = Literal["typescript", "javascript", "python"]
LANGUAGES: tuple[Language, ...] = ("typescript", "javascript", "python")

Status: TypeAlias = Literal["success", "error", "memory", "terminated", "link_error"]
Failure: TypeAlias = Literal["error", "memory", "terminated", "link_error"]

Level: TypeAlias = Literal["log", "info", "warn", "error", "debug"]
LEVELS: tuple[Level, ...] = ("log", "info", "warn", "error", "debug")

DEFAULT_FILENAME = "<runCode>"
DEFAULT_MEMORY_LIMIT_BYTES = 128 << 20
DEFAULT_SAFETY_CAP_S = 30.0

MIN_MEMORY_LIMIT_BYTES = 1 << 20

MAX_FRAME_BYTES = 8 << 20
MAX_PARTS = 200_000
"""The largest value that may leave the sandbox, or answer a call, as text and in parts: numbers, texts, lists,
mappings.
"""


class SandboxUnavailable(WeftlineError):
    """An engine is not installed, or the machine lacks something that it was configured to need."""

    default_code = "sandbox_unavailable"


class OutputFull(Exception):
    """The code reported more than is accepted."""


class HostFunction(Struct, frozen=True, eq=False):
    """A function of the caller's that the code may call; `id` identifies it across the boundary."""

    id: int
    call: Callable[..., object]


class Module(Struct, frozen=True):
    """One source file. `label` is its name in stacks and errors."""

    label: str
    source: str


class Code(Struct, frozen=True, kw_only=True):
    """A piece of code and everything that it can see, checked and copied.

    `modules` includes the entry; its keys are paths from the root of the graph, without `./`. Values in `imports` and
    `globals` are plain data, with a `HostFunction` wherever the caller gave a function.
    """

    language: Language
    entry: str
    modules: Mapping[str, Module]
    imports: Mapping[str, Mapping[str, object]]
    globals: Mapping[str, object]
    fn: str
    args: Sequence[object]
    reports: bool
    memory_limit_bytes: int

    @property
    def filename(self) -> str:
        return self.modules[self.entry].label

    @property
    def own_console(self) -> bool:
        """True if the caller provided a console, so that nothing is captured."""
        return "console" in self.globals


class CodeError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error in the code's own terms. `line` and `column` count from 1 in the source as it was given."""

    name: str
    message: str
    stack: str | None = None
    specifier: str | None = None
    filename: str | None = None
    line: int | None = None
    column: int | None = None


class CodeLog(Struct, frozen=True):
    """One call of `console` or `print`; `timestamp` is in milliseconds since the epoch."""

    level: Level
    args: tuple[object, ...]
    timestamp: int


class CodeResult(Struct, frozen=True, kw_only=True):
    """The outcome of a piece of code. `result` is `UNSET` unless it succeeded; a success without a value has `None`."""

    status: Status
    reports: tuple[object, ...]
    logs: tuple[CodeLog, ...]
    duration_ms: float
    result: object | UnsetType = UNSET
    error: CodeError | None = None
    memory_used_bytes: int | None = None
    """The most memory that the code used, if the engine can measure it."""
    open_calls: tuple[int, ...] = ()
    """If the code succeeded: the calls, counted from 1, that were still unanswered when it ended."""


class Succeeded(Struct, frozen=True):
    """The code ended and returned `value`. See `CodeResult` for the other fields."""

    value: object
    memory_used_bytes: int | None = None
    open_calls: tuple[int, ...] = ()


class Failed(Struct, frozen=True):
    """The code did not succeed; `status` and `error` have the reason."""

    status: Failure
    error: CodeError
    memory_used_bytes: int | None = None


Outcome: TypeAlias = Succeeded | Failed


class Host(Protocol):
    """The callbacks of running code. All values are plain data, and copies."""

    def call(self, function: int, args: Sequence[object]) -> Awaitable[object]:
        """Calls a host function. Raises what it raises, and `ValueError` for an answer that cannot cross the
        boundary.
        """
        ...

    def report(self, value: object) -> None:
        """Raises `OutputFull` when the code has reported too much; the engine lets the exception propagate."""
        ...

    def log(self, level: Level, args: Sequence[object]) -> None: ...


class CodeEngine(Protocol):
    """Executes code. Engines in one process are shared: `execute` may be called many times concurrently."""

    @property
    def languages(self) -> frozenset[Language]: ...

    def check(self, code: Code) -> None:
        """Raises `ValueError` for what the engine cannot do, and `SandboxUnavailable` if it cannot run at all."""
        ...

    async def execute(self, code: Code, host: Host) -> Outcome:
        """Runs the code to its end. Whatever the code does is an outcome, never an exception.

        Cancelling this call ends the code at once, and when it returns nothing of the code is left.
        """
        ...

    async def close(self) -> None: ...
