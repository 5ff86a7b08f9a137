"""One server for all commands, and the files that they are given."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from forked import python_in_terminal
from weftline.testing import ServerProcess

SCRIPTS: dict[str, Any] = {
    "hello": {"turns": [{"deltas": ["Hel", "lo\x1b[31m there"]}]},
    "add": {
        "turns": [{"tool_calls": [{"name": "add", "args": {"a": 2, "b": 3}}]}, {"text": "It is {{tool_results.0}}."}]
    },
    "system": {"turns": [{"text": "{{system}}|{{user_messages}}"}]},
    "look": {"turns": [{"text": "{{attachments}}"}]},
    "refused": {"turns": [{"error": {"class": "auth", "message": "bad key", "retryable": False}}]},
    "plan": {
        "turns": [
            {"tool_calls": [{"name": "present_plan", "args": {"plan": "1. Go."}}]},
            {"text": "{{tool_results.0}}"},
        ]
    },
    "ask_twice": {
        "turns": [
            {
                "tool_calls": [
                    {"name": "ask_user", "args": {"question": "Which?", "options": ["red", "blue"]}},
                    {"name": "ask_user", "args": {"question": "Why?"}},
                ]
            },
            {"text": "{{all_tool_results}}"},
        ]
    },
    "pay": {"turns": [{"tool_calls": [{"name": "pay", "args": {"amount": 5}}]}, {"text": "{{tool_results.0}}."}]},
    "stuck": {"turns": [{"deltas": ["begun", "never"], "delay_ms": 600_000}]},
}
TOOLS = '''
import weftline


@weftline.tool(effect="read")
def add(a: int, b: int, context: weftline.ToolContext) -> int:
    """Adds."""
    assert context.run_id.startswith("run_")
    return a + b
'''


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *arguments: str, env: Mapping[str, str | None]) -> None:
        merged = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **env}
        self._process, self._master = python_in_terminal(
            *("-m", "weftline", *arguments),
            env={name: value for name, value in merged.items() if value is not None},
        )
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

    def type(self, words: str) -> None:
        os.write(self._master, words.encode())

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


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), scripts=SCRIPTS) as process:
        yield process


@pytest.fixture(scope="session")
def env(server: ServerProcess) -> dict[str, str | None]:
    """Of somebody who uses that server."""
    return {"WEFTLINE_API_KEY": server.create_key("acme"), "WEFTLINE_BASE_URL": server.url, "WEFTLINE_DB": None}


@pytest.fixture(scope="session")
def scripts(server: ServerProcess) -> str:
    return str(server.folder / "scripts.json")


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("tools") / "sums.py"
    file.write_text(TOOLS)
    return str(file)


def started(env: Mapping[str, str | None], script: str, **spec: Any) -> str:
    """Creates a run on the server and leaves it to it; returns its id."""
    request = urllib.request.Request(
        f"{env['WEFTLINE_BASE_URL']}/api/v1/workspaces/acme/agent-runs",
        data=json.dumps({"modelId": f"scripted:{script}", "prompt": "x", **spec}).encode(),
        headers={"Authorization": f"Bearer {env['WEFTLINE_API_KEY']}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["runId"]


@pytest.fixture
def agent_file(tmp_path: Path) -> str:
    file = tmp_path / "agent.json"
    spec = {"modelId": "scripted:system", "systemPrompt": "Be brief."}
    file.write_text(json.dumps({"name": "Helper", "slug": "helper", "spec": spec}))
    return str(file)
