"""`--forks N`: tests in N processes that are forked once everything is collected.

With a worker that starts from nothing, each one imports and collects the whole suite again; here that is done once, for
all. The workers take batches of tests, a module or a part of one, until there are none left, and send their reports
back. What takes long is taken first, so that nobody is left alone with it at the end.
"""

from __future__ import annotations

import mmap
import os
import pickle
import random
import selectors
import struct
import traceback
import warnings
from collections.abc import Iterator
from itertools import chain, groupby
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.capture import FDCapture
from msgspec import Struct

LONGEST_BATCH = 72
SLOW = (
    "tests/torture/",
    "tests/store/test_power_loss.py",
    "tests/store/test_faults.py",
    "tests/crash/test_budgets.py",
    "tests/crash/test_demo.py",
    "tests/recorded/",
    "tests/server/test_hung_stops.py",
    "tests/server/test_stopping.py",
    "tests/server/test_storage_trouble.py",
    "tests/server/test_watchdog.py",
    "tests/runtime/test_recovery.py",
    "tests/tools/contexts/",
    "tests/crash/",
    "tests/simulation/",
    "tests/growth/",
    "tests/server/openapi/",
    "tests/test_docs.py",
    "tests/test_architecture.py",
    "tests/server/",
    "tests/client/",
    "tests/sandbox/",
    "tests/agent/peers/",
)
"""Where tests take a tenth of a second or more, or wait for that long, in the order in which they start."""
_HEAD = struct.Struct("!I")
_BATCH = struct.Struct("!I")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run tests in that many forked processes")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run modules and their tests in another order")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """No test may need another before it, or suffer from one: `--shuffle` shows which do."""
    if config.option.shuffle is None:
        return
    order = random.Random(config.option.shuffle)
    modules = [list(tests) for _, tests in groupby(items, key=module_of)]
    order.shuffle(modules)
    for tests in modules:
        order.shuffle(tests)
    items[:] = chain.from_iterable(modules)


def module_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.option
    forks = min(option.forks, len(session.items))
    if forks < 2 or option.collectonly or option.usepdb or session.testsfailed:
        return None
    Workers(session).run(forks)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


def batches(items: list[pytest.Item], *, shuffled: bool = False) -> list[list[int]]:
    """The places of the tests in `items`, slow ones first; a module's tests stay together as far as they may."""

    def slowness(module: str) -> int:
        return next((place for place, prefix in enumerate(SLOW) if module.startswith(prefix)), len(SLOW))

    modules = [
        (module, list(places))
        for module, places in groupby(range(len(items)), key=lambda place: module_of(items[place]))
    ]
    if not shuffled:
        modules.sort(key=lambda one: slowness(one[0]))
    return [
        places[start : start + LONGEST_BATCH] for _, places in modules for start in range(0, len(places), LONGEST_BATCH)
    ]


class Worker(Struct):
    """A worker, seen from the process that forked it."""

    pid: int
    number: int
    reports: int
    """The end of a pipe."""
    unread: bytes = b""
    running: int | None = None
    """The place of the test that it is at."""
    left: list[int] = []
    """The places of the tests that it has taken and not begun."""
    done: bool = False


class Workers:
    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._config = session.config
        self._batches = batches(session.items, shuffled=session.config.option.shuffle is not None)
        self._stop = mmap.mmap(-1, 1)
        # All of it fits into the pipe, and who reads takes whole numbers: a queue that needs no one to serve it.
        self._queue, queue = os.pipe()
        for number in range(len(self._batches)):
            os.write(queue, _BATCH.pack(number))
        os.close(queue)
        self._selector = selectors.DefaultSelector()

    def run(self, forks: int) -> None:
        workers = [self._fork(number, []) for number in range(forks)]
        try:
            while workers:
                for key, _ in self._selector.select():
                    worker: Worker = key.data
                    data = os.read(worker.reports, 1 << 20)
                    for kind, value in _messages(worker, data):
                        self._hear(worker, kind, value)
                    if not data:
                        workers.remove(worker)
                        if self._bury(worker):
                            workers.append(self._fork(worker.number, worker.left))
                if self._session.shouldfail or self._session.shouldstop:
                    self._stop[0] = 1
        finally:
            self._stop[0] = 1
            for worker in workers:
                os.close(worker.reports)
                os.waitpid(worker.pid, 0)

    def _fork(self, number: int, first: list[int]) -> Worker:
        reports, send = os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.close(reports)
                _Working(self._session, self._stop, send, number).work(first, self._taken())
                code = 0
            except KeyboardInterrupt:
                pass
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(send)
        worker = Worker(pid, number, reports, left=first)
        self._selector.register(reports, selectors.EVENT_READ, worker)
        return worker

    def _taken(self) -> Iterator[list[int]]:
        while number := os.read(self._queue, _BATCH.size):
            yield self._batches[_BATCH.unpack(number)[0]]

    def _hear(self, worker: Worker, kind: str, value: Any) -> None:
        hook = self._config.hook
        match kind:
            case "took":
                worker.left = [*worker.left, *value]
            case "began":
                worker.running = value
                worker.left.remove(value)
            case "report":
                report = hook.pytest_report_from_serializable(config=self._config, data=value)
                hook.pytest_runtest_logreport(report=report)
            case "ended":
                item: pytest.Item = self._session.items[int(value)]
                hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
                worker.running = None
            case "warning":
                text, place = value
                message = warnings.WarningMessage(Warning(text), Warning, *place)
                hook.pytest_warning_recorded.call_historic(
                    kwargs={"warning_message": message, "when": "runtest", "nodeid": "", "location": None}
                )
            case _:
                worker.done = True

    def _bury(self, worker: Worker) -> bool:
        """Returns whether the worker died before its work was done; the test that it was at has failed then."""
        self._selector.unregister(worker.reports)
        os.close(worker.reports)
        _, status = os.waitpid(worker.pid, 0)
        if worker.done:
            return False
        if worker.running is not None:
            item = self._session.items[worker.running]
            sentence = f"the process of this test ended with {os.waitstatus_to_exitcode(status)}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", sentence, "call")
            self._config.hook.pytest_runtest_logreport(report=report)
        return not self._stop[0]


def _messages(worker: Worker, data: bytes) -> Iterator[tuple[str, Any]]:
    worker.unread += data
    while len(worker.unread) >= _HEAD.size:
        end = _HEAD.size + _HEAD.unpack_from(worker.unread)[0]
        if len(worker.unread) < end:
            return
        message = worker.unread[_HEAD.size : end]
        worker.unread = worker.unread[end:]
        yield pickle.loads(message)


def _use_other_files(captured: Any) -> None:
    """The files of what tests print are shared with the process that we come from, at one position. Modules may hold
    on to them as `sys.stderr`, so they stay open and get other contents."""
    for stream in (captured.out, captured.err):
        if isinstance(stream, FDCapture):
            with TemporaryFile() as other:
                os.dup2(other.fileno(), stream.tmpfile.fileno())


class _Working:
    """A worker, seen from itself. It is a plugin: pytest's hooks tell it what to send."""

    def __init__(self, session: pytest.Session, stop: mmap.mmap, send: int, number: int) -> None:
        self._session = session
        self._stop = stop
        self._pipe = send
        config: Any = session.config
        config.workerinput = {"workerid": f"fork{number}"}  # other plugins leave what is done once to the first process
        plugins = session.config.pluginmanager
        writer = session.config.get_terminal_writer()  # for stacks, if the time is up
        plugins.unregister(name="terminalreporter")
        plugins.register(SimpleNamespace(_tw=writer), "terminalreporter")
        plugins.register(self)
        captured: Any = plugins.getplugin("capturemanager")
        _use_other_files(captured._global_capturing)
        random.seed()

    def work(self, first: list[int], batches: Iterator[list[int]]) -> None:
        session = self._session
        try:
            self._run(self._places(first, batches))
        finally:  # also after Ctrl-C: servers that tests share are stopped here
            session.config.hook.pytest_sessionfinish(session=session, exitstatus=0)
        self._send("done", None)

    def _run(self, places: Iterator[int]) -> None:
        session, items = self._session, self._session.items
        place = next(places, None)
        while place is not None and not (self._stop[0] or session.shouldfail or session.shouldstop):
            following = next(places, None)
            self._send("began", place)
            session.config.hook.pytest_runtest_protocol(
                item=items[place], nextitem=None if following is None else items[following]
            )
            self._send("ended", place)
            place = following

    def _places(self, first: list[int], batches: Iterator[list[int]]) -> Iterator[int]:
        yield from first
        for batch in batches:
            self._send("took", batch)
            yield from batch

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        # Two of three reports say that nothing happened before or after a test; some options want those too.
        if report.when == "call" or not report.passed or config.option.durations or config.option.xmlpath:
            self._send("report", config.hook.pytest_report_to_serializable(config=config, report=report))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        self._send("warning", (text, (warning_message.filename, warning_message.lineno)))

    def _send(self, kind: str, value: Any) -> None:
        message = pickle.dumps((kind, value))
        data = memoryview(_HEAD.pack(len(message)) + message)
        while data:
            data = data[os.write(self._pipe, data) :]
