"""Calls code of a user: whatever it raises becomes an outcome, unless it is an interruption of its caller."""

from __future__ import annotations

import signal
import threading
from logging import Logger
from types import TracebackType
from typing import Any, Self


def is_being_cancelled() -> bool:
    """Returns True if the current task was cancelled; if not, a `CancelledError` is a failure of the code it called."""
    from asyncio import current_task  # not at import, for `import weftline`: whoever asks has loaded it

    try:
        task = current_task()
    except RuntimeError:  # there is no loop, and so nothing to cancel
        return False
    return task is not None and task.cancelling() > 0


def is_interruption(error: BaseException) -> bool:
    """Returns True if an exception of called code is meant for its caller: a cancellation of the task, or of the
    program.

    What else that code raises is its own failure, including `SystemExit`, a `CancelledError` that nobody requested, and
    `KeyboardInterrupt`, unless Ctrl+C may be what raised it.
    """
    if isinstance(error, Exception | SystemExit):
        return False
    if isinstance(error, KeyboardInterrupt):
        # Most handlers may raise it: Python's own, that of `asyncio.run`, and those of other libraries.
        in_main = threading.current_thread() is threading.main_thread()
        return in_main and signal.getsignal(signal.SIGINT) not in (ignore_signal, signal.SIG_IGN)
    return isinstance(error, GeneratorExit) or is_being_cancelled()


def ignore_signal(number: int, frame: object) -> None:
    """A handler for signals that are read from the wake-up descriptor: without a handler in Python, nothing is written
    there.
    """


class attempt:  # like `suppress`
    """Runs code of a user; what it raises is logged, and afterwards found as `error`.

        with attempt(logger, "the hasher of %s failed", tool):
            return str(hasher(args))
        return None

    An interruption of the caller is raised, and so are errors of the types in `but`, which the caller handles itself.
    If the code was cancelled and raises something else, `or_cancelled` says that this is a cancellation too.
    """

    __slots__ = ("_how", "error")

    def __init__(
        self,
        logger: Logger | None = None,
        *message: object,
        but: tuple[type[Exception], ...] = (),
        or_cancelled: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """`message` is what the logger takes: a text with placeholders, and what to put there."""
        self.error: BaseException | None = None
        self._how = logger, message, but, or_cancelled, extra

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if error is None:
            return False
        logger, message, but, or_cancelled, extra = self._how
        if isinstance(error, but) or is_interruption(error):
            return False
        if or_cancelled:
            raise_if_cancelled(error)
        self.error = error
        if logger is not None:
            text, *values = message
            logger.error(text, *values, exc_info=error, extra=extra)
        return True


class as_errors:  # like `suppress`
    """Lets the code inside raise nothing but an `Exception`, or an interruption of its caller.

    For callers that handle an `Exception`, or leave it to others. In a task, `SystemExit` would end the loop, and a
    `CancelledError` would pass for a cancellation of the task.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None and not isinstance(error, Exception) and not is_interruption(error):
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def raise_if_cancelled(error: BaseException) -> None:
    """Raises a `CancelledError` if the current task was cancelled. Whatever else its code raises after that, such as an
    error while it cleans up, says nothing about what it did before.
    """
    if is_being_cancelled():
        from asyncio import CancelledError

        raise CancelledError from error
