"""An event loop in its own thread."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

P = ParamSpec("P")
T = TypeVar("T")

_CLEANUP_S = 10.0


class LoopThread:
    """Starts on first use. `stop` cancels the remaining tasks, waits for them and closes the loop.

    A forked child has a copy of this object but not the thread: once started, it can only be used in its own process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._pid: int | None = None

    @property
    def started(self) -> bool:
        return self._loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._is_forked():  # before the lock, which a thread of the parent may have held
            work.close()
            raise RuntimeError("this process was forked from the one that uses this loop: make a new one here")
        with self._lock:
            if self._stopped:
                work.close()
                raise RuntimeError("this loop is closed")
            loop = self._loop or self._start()
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call on the background loop would wait for itself; use the async call there")
        return asyncio.run_coroutine_threadsafe(work, loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` and waits for it.

        If the wait is interrupted (Ctrl-C), the work is cancelled and given a little time to clean up.
        """
        ended = threading.Event()

        async def watched() -> T:
            try:
                return await work
            finally:
                ended.set()

        waiting: list[Future[T]] = []
        with _interrupting(lambda: self._cancel(waiting)) as interrupted:
            try:
                waiting.append(self.submit(watched()))
                if interrupted():
                    self._cancel(waiting)
                return waiting[0].result()
            except BaseException:
                if not waiting:
                    work.close()
                elif waiting[0].cancel():
                    ended.wait(_CLEANUP_S)
                raise
            finally:
                waiting.clear()  # while Ctrl-C is handled, as callbacks of weak references to the task run here

    def _cancel(self, futures: list[Future[T]]) -> None:
        for future in futures:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(future.cancel)

    def stop(self, *, patience_s: float | None = None) -> None:
        """Stops the loop; waits at most `patience_s` for the remaining tasks."""
        if self._is_forked():
            return
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            self._stopped = True
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            if threading.current_thread() is not thread:
                thread.join(patience_s)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_serve, args=(loop,), name=self._name, daemon=True)
        self._thread.start()
        return loop

    def _is_forked(self) -> bool:
        return self._pid is not None and self._pid != os.getpid()


@contextmanager
def _interrupting(cancel: Callable[[], None]) -> Generator[Callable[[], bool]]:
    """Yields a function that returns whether there was a Ctrl-C.

    The first one calls `cancel` and is raised at the end; a second one is raised at once.

    Python raises it wherever the main thread happens to be; in a callback of a weak reference it would be printed and
    lost, and the wait would continue.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # the program has its own handler
        yield lambda: False
        return
    interrupted = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        cancel()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupted:
            raise KeyboardInterrupt from None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    executor = _executor()
    loop.set_default_executor(executor)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        # Not `shutdown_default_executor`, which starts a thread; some Pythons refuse that at the end of the process.
        executor.shutdown()
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _executor() -> ThreadPoolExecutor:
    """Threads for blocking work. When the process ends, Python gives no more of them to anybody: what is closed then
    does its blocking work at once, on the thread of the loop.
    """
    from concurrent.futures import ThreadPoolExecutor  # not needed before there is a loop

    class Executor(ThreadPoolExecutor):
        def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
            if threading.main_thread().is_alive():
                return super().submit(fn, *args, **kwargs)
            done: Future[T] = Future()
            try:
                done.set_result(fn(*args, **kwargs))
            except Exception as error:
                done.set_exception(error)
            return done

    return Executor(thread_name_prefix="asyncio")
