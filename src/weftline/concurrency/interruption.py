"""Tells a failure of code that was called from an interruption of its caller."""

from __future__ import annotations

import signal
import threading


def is_being_cancelled() -> bool:
    """Whether the current task was cancelled; if not, a `CancelledError` is a failure of the code it called."""
    from asyncio import current_task  # not at import, for `import weftline`: whoever asks has loaded it

    task = current_task()
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
