"""A real server process for tests: started, queried, killed, started again on the same store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_READY_S = 180.0
_STOP_S = 120.0
"""Longer than any stop takes on a busy machine, so that only a hang reaches it."""
_PORT_S, _RETRY_S = 60.0, 0.2


class ServerProcess:
    """`weftline serve` in a process of its own, on a free port.

        with ServerProcess(tmp_path, scripts={"hello": {"turns": [{"text": "hi"}]}}) as server:
            key = server.create_key("acme")
            ...  # server.url is the address
            server.kill()      # SIGKILL
            server.start()     # the same store, a new process, the same port

    `tools` is the source of a tools file. The server's log is in `server.log`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        scripts: Mapping[str, Any] | None = None,
        tools: str | None = None,
        config: str | None = None,
        env: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.db = folder / "store"
        self.url = ""
        self.port = 0
        self.log: deque[str] = deque(maxlen=2000)
        self._env = dict(env or {})
        self._arguments = list(arguments)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        for option, name, text in (
            ("--scripts", "scripts.json", None if scripts is None else json.dumps(scripts)),
            ("--tools", "tools.py", tools),
            ("--config", "config.toml", config),
        ):
            if text is not None:
                (folder / name).write_text(text, encoding="utf-8")
                self._arguments += [option, str(folder / name)]

    def start(self, *, env: Mapping[str, str] | None = None) -> Self:
        """Starts the process and returns when it accepts requests; `env` applies to this start only.

        It keeps its port. If another process has got hold of that since the last start, this waits for it.
        """
        until = time.monotonic() + (_PORT_S if self.url else 0.0)
        while (line := self._begin(env)) is not None:
            taken = self.log and "Address already in use" in self.log[-1]
            if not taken or time.monotonic() >= until:
                raise RuntimeError(f"the server did not start: {line!r} {''.join(self.log)}")
            time.sleep(_RETRY_S)
        return self

    def _begin(self, env: Mapping[str, str] | None) -> str | None:
        """Starts the process once. Returns the first line of its output if that does not say that it is ready."""
        self._close_pipes()
        command = [sys.executable, "-m", "weftline", "serve", "--db", str(self.db), "--port", str(self.port)]
        self._process = subprocess.Popen(
            command + self._arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._env, **(env or {})},
        )
        process = self._process
        self._reader = threading.Thread(target=self._read_log, args=(process,), daemon=True)
        self._reader.start()
        timer = threading.Timer(_READY_S, process.kill)
        timer.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        timer.cancel()
        if not line.startswith("ready "):
            self.kill()
            self._close_pipes()
            return line
        self.url = line.split()[1]
        self.port = int(self.url.rsplit(":", 1)[1])
        return None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait(_STOP_S)

    def wait(self, timeout_s: float = _STOP_S) -> int:
        """Waits for the process to end on its own, and for the rest of its log; returns its exit code (negative: the
        signal).
        """
        assert self._process is not None
        code = self._process.wait(timeout=timeout_s)
        if self._reader is not None:
            self._reader.join()
        return code

    def create_key(self, workspace: str = "acme", *arguments: str) -> str:
        """`weftline keys create`; works whether or not the server is running, once it has created its store."""
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "weftline",
                "keys",
                "create",
                "--workspace",
                workspace,
                "--db",
                str(self.db),
                *arguments,
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """SIGKILL if it is still running, and releases everything."""
        self.kill()
        self._close_pipes()

    def _close_pipes(self) -> None:
        """Closes the pipes of a process that has ended."""
        if self._process is None:
            return
        if self._reader is not None:
            self._reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
