"""What people see at a terminal: text as it comes, tables, colour unless they want none, and what Ctrl-C says."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from commands import weftline
from weftline.cli.suggestions import did_you_mean
from weftline.cli.terminal import clean, on_one_line
from weftline.store import open_store
from weftline.testing import ServerProcess

RED = "\x1b[31m"


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *arguments: str, env: Mapping[str, str | None]) -> None:
        merged = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **env}
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weftline", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={name: value for name, value in merged.items() if value is not None},
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def until(self, words: str) -> str:
        """Reads on until the words are there."""
        while words not in self.text:
            data = self._read()
            assert data, self.text
            self.text += data
        return self.text

    def end(self) -> int:
        """Reads to the end; returns the exit code."""
        while data := self._read():
            self.text += data
        return self._process.wait(timeout=60)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def _read(self) -> str:
        try:
            return os.read(self._master, 65536).decode(errors="replace")
        except OSError:
            return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


def test_a_run_appears_as_it_goes_and_the_first_interrupt_says_what_can_be_done(
    env: dict[str, str | None], server: ServerProcess
) -> None:
    with Terminal("run", "hi", "--model", "scripted:stuck", env=env) as terminal:
        terminal.until("begun")
        terminal.interrupt()
        said = terminal.until("Press Ctrl-C again to leave.")
        found = re.search(r"weftline runs follow (run_\w+) --url (\S+)", said)
        assert found is not None and found[2] == server.url and f"weftline runs cancel {found[1]}" in said
        terminal.interrupt()
        assert terminal.end() == 130 and "Traceback" not in terminal.text
    # Leaving leaves the run to the server.
    assert weftline("runs", "cancel", found[1], env=env).out == "cancelled\n"


def test_a_run_in_this_process_is_cancelled_by_the_second_interrupt(
    env: dict[str, str | None], scripts: str, tmp_path: Path
) -> None:
    asyncio.run(open_store(tmp_path / "store").close())
    db = str(tmp_path / "store")
    arguments = ("run", "hi", "--model", "scripted:stuck", "--scripts", scripts, "--db", db)
    with Terminal(*arguments, env={**env, "WEFTLINE_BASE_URL": None}) as terminal:
        terminal.until("begun")
        terminal.interrupt()
        terminal.until("Press Ctrl-C again to cancel it.")
        terminal.interrupt()
        assert terminal.end() == 130 and "Traceback" not in terminal.text
    (run,) = weftline("runs", "list", "--db", db).out.split()
    assert '"status": "cancelled"' in weftline("runs", "show", run, "--db", db, "--json").out


def test_lists_are_tables_in_colour_and_text_of_models_steers_nothing(env: dict[str, str | None]) -> None:
    with Terminal("run", "2 + 3", "--model", "scripted:hello", env=env) as terminal:
        assert terminal.end() == 0
    assert "Hello[31m there\r\n" in terminal.text and "1 turn" in terminal.text
    with Terminal("runs", "list", env={**env, "NO_COLOR": "1"}) as plain:
        assert plain.end() == 0
    head, first, *_ = plain.text.splitlines()
    assert head.split() == ["RUN", "STATUS", "NAME", "MODEL", "CREATED", "TURNS", "COST"]
    assert first.startswith("run_") and "succeeded" in first and "\x1b[" not in plain.text
    with Terminal("runs", "list", env={**env, "NO_COLOR": None}) as coloured:
        assert coloured.end() == 0
    assert "\x1b[32msucceeded\x1b[0m" in coloured.text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b]0;title\x07\x1b[2J", "]0;title[2J"),
        ("a\rb\x00c\x9b31m", "abc31m"),
        ("user\u202egnp.exe", "usergnp.exe"),
        ("für Ω 🧵", "für Ω 🧵"),
    ],
)
def test_text_from_outside_steers_no_terminal(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_a_line_is_as_long_as_it_may_be() -> None:
    assert (on_one_line("a\n b", 10), on_one_line("abcdef", 4), on_one_line("abc", 0)) == ("a b", "abc…", "…")


def test_the_nearest_words_are_suggested_and_far_ones_are_not() -> None:
    assert did_you_mean("Helo", ["hello", "other"]) == " Did you mean 'hello'?"
    assert did_you_mean("agent-1", ["agent-2", "agent-3"]) == " Did you mean 'agent-3' or 'agent-2'?"
    assert did_you_mean("zzz", ["hello"]) == "" == did_you_mean("x", [])
