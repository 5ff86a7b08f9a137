"""What every test may ask for, how deeply Hypothesis looks, and what to do without the recordings."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forked import Nursery, fork_from
from passwords import hash_quickly
from weftline.sandbox import deno, monty
from weftline.testing.recordings import recordings_dir
from weftline.work.outcomes import ignore_signal

pytest_plugins = ("parallel",)

MEMORY = "/dev/shm"
"""A file system without a disk, on Linux."""
ENOUGH_BYTES = 2 << 30

QUIET = -1
"""The verbosity of `-q`, which our options begin with."""

_AUTHORITY = Path(__file__).parent / "fixtures" / "authority.pem"
"""All that is trusted: no test talks to the world, and with its 150 authorities every TLS context would take 25 ms."""
_LEFT_OUT = pytest.StashKey[int]()
_NURSERY = pytest.StashKey[Nursery]()
_TABLES = pytest.StashKey[int]()

# What is imported and collected stays to the end: looking through it for garbage again and again is for nothing.
gc.disable()

# Nothing here may depend on how busy the machine is: no deadline, and no health check that watches the clock.
settings.register_profile(
    "small",
    max_examples=12,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # The same examples each time: a change is judged by what it changed. The deep profile looks for the rest.
    derandomize=True,
    database=None,
)
settings.register_profile("deep", settings.get_profile("small"), max_examples=1000, derandomize=False, print_blob=True)
settings.load_profile("small")


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout, for tests that look at the project's own files."""
    return Path(__file__).resolve().parent.parent


# Not fixtures for every test: each of those would take a tenth of a millisecond of each of ten thousand tests.
def pytest_sessionstart(session: pytest.Session) -> None:
    hash_quickly()
    if settings.get_current_profile_name() != "deep":
        fork_from(session.config.stash.get(_NURSERY, None) or Nursery())
        # Most tests run one piece of code in a sandbox: two more processes would start only to be killed.
        setattr(deno, "WARM", 0)  # noqa: B010
        setattr(monty, "WARM", 0)  # noqa: B010


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A command that runs in this process sets logging up for the whole of it; afterwards it is as it was."""
    root = logging.getLogger()
    libraries = ("mcp.client", "mcp.server.streamable_http_manager")
    loggers = (root, logging.getLogger("weftline"), *map(logging.getLogger, libraries))
    handlers, levels = root.handlers[:], [logger.level for logger in loggers]
    try:
        return (yield)
    finally:
        root.handlers[:] = handlers
        for logger, level in zip(loggers, levels, strict=True):
            if logger.level != level:  # setting it makes every logger forget what it knows
                logger.setLevel(level)


@pytest.hookimpl(trylast=True)  # when the profile is known
def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Shells start what runs in the background like that, and the processes of our tests would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.verbose < QUIET:
        config.option.verbose += 1  # a `-q` on top of ours would take away the line that says how many passed
    if settings.get_current_profile_name() != "deep":
        _write_to_memory()
        os.environ["SSL_CERT_FILE"] = str(_AUTHORITY)
        if config.option.forks > 1 and sys.platform == "linux" and not config.option.collectonly:
            config.stash[_NURSERY] = Nursery().start()  # it reads its modules while we collect
    if os.environ.get("WEFTLINE_RECORDINGS") and not recordings_dir().is_dir():
        raise pytest.UsageError(f"WEFTLINE_RECORDINGS is {recordings_dir()}, which is not a directory")


def _write_to_memory() -> None:
    """Stores are synced by the thousand. What that is good for is tested on a simulated disk; here it costs time."""
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = MEMORY


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without recordings, the tests that replay them are left out, in one line at the end instead of a skip each."""
    if recordings_dir().is_dir():
        return
    left_out = [item for item in items if item.get_closest_marker("recording")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("recording")]
        config.stash[_LEFT_OUT] = len(left_out)


def pytest_collection(session: pytest.Session) -> None:
    if session.config.option.forks > 1 and not session.config.option.collectonly:
        pid = os.fork()
        if not pid:
            try:
                _read_character_tables()
            finally:
                os._exit(0)
        session.config.stash[_TABLES] = pid


@settings(max_examples=1)
@given(st.text())
def _read_character_tables(_: str) -> None:
    """In a fresh checkout Hypothesis spends two seconds on tables of all characters, which it then keeps in files. One
    process makes them while we collect, instead of every worker for itself."""


def pytest_collection_finish(session: pytest.Session) -> None:
    if pid := session.config.stash.get(_TABLES, None):
        os.waitpid(pid, 0)
        _read_character_tables()
    gc.freeze()
    gc.set_threshold(5_000)  # tests are short, and most of what they leave goes without being looked for
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every xdist worker collects all the tests, so each of them has the whole count."""
    stash: pytest.Stash = node.config.stash
    counted: dict[str, Any] = getattr(node, "workeroutput", {})
    stash[_LEFT_OUT] = max(stash.get(_LEFT_OUT, 0), counted.get("left_out", 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = config.stash.get(_LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(
            f"{left_out} checks against recorded traffic were left out: "
            "set WEFTLINE_RECORDINGS to the recordings' folder to run them (docs/development.md)."
        )


@pytest.fixture
def no_ctrl_c() -> Generator[None]:
    """As in a server, Ctrl+C raises nothing, so a `KeyboardInterrupt` is an exception like others."""
    other = signal.signal(signal.SIGINT, ignore_signal)
    yield
    signal.signal(signal.SIGINT, other)
