"""Tells a failure of code that was called from an interruption of its caller."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager


def is_being_cancelled() -> bool:
    """Whether the current task was cancelled; if not, a `CancelledError` is a failure of the code it called."""
    from asyncio import current_task  # not at import, for `import weftline`: whoever asks has loaded it

    try:
        task = current_task()
    except RuntimeError:  # there is no loop, and so nothing to cancel
        return False
    return task is not None and task.cancelling() > 0


def is_interruption(error: BaseException) -> bool:
    """Whether an exception of called code is meant for its caller: a cancellation of the task, or of the program.

    What else that code raises is its own failure, including `SystemExit`, a `CancelledError` that nobody requested, and
    `KeyboardInterrupt`, unless Ctrl+C may be what raised it.
    """
    if isinstance(error, Exception | SystemExit):
        return False
    if isinstance(error, KeyboardInterrupt):
        in_main = threading.current_thread() is threading.main_thread()
        return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, GeneratorExit) or is_being_cancelled()


@contextmanager
def as_errors() -> Generator[None]:
    """Lets the code inside raise nothing but an `Exception`, or an interruption of its caller.

    For callers that handle an `Exception`, or leave it to others. In a task, `SystemExit` would end the loop, and a
    `CancelledError` would pass for a cancellation of the task.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or is_interruption(error):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
