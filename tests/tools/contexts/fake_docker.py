"""A `docker` without containers: a program that knows the command lines, and a daemon that runs what it is told.

As with the real one, what was started belongs to the daemon: it does not end with the program that asked for it.
"""

from __future__ import annotations

import array
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

CLIENT = """#!{python} -IS
import array, json, os, socket, sys
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect({address!r})
asked = json.dumps(sys.argv[1:]).encode("utf-8", "surrogateescape")
line.sendmsg([asked], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
sys.exit(int(line.recv(16) or b"1"))
"""


class FakeDocker:
    """`commands` are all command lines so far."""

    def __init__(self, folder: Path) -> None:
        self.commands: list[list[str]] = []
        self.bin = folder / "bin"
        self.bin.mkdir()
        self._running: dict[str, list[subprocess.Popen[bytes]]] = {}
        address = str(folder / "docker.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(address)
        self._socket.listen(64)
        client = self.bin / "docker"
        client.write_text(CLIENT.format(python=sys.executable, address=address))
        client.chmod(0o755)
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for name in list(self._running):
            self._stop(name)

    def _listen(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line:
            data, extra, _, _ = line.recvmsg(1 << 20, socket.CMSG_SPACE(12))
            fds = array.array("i")
            for _, _, sent in extra:
                fds.frombytes(sent[: len(sent) - len(sent) % fds.itemsize])
            argv: list[str] = json.loads(data.decode("utf-8", "surrogateescape"))
            self.commands.append(argv)
            try:
                code = self._run(argv, list(fds))
            finally:
                for fd in fds:
                    os.close(fd)
            try:
                line.send(str(code).encode())
            except OSError:
                pass  # the program was killed

    def _run(self, argv: list[str], fds: list[int]) -> int:
        options: dict[str, str] = {}
        env = {"PATH": os.environ["PATH"]}
        rest = argv[1:]
        while rest and rest[0].startswith("--"):
            flag = rest.pop(0)
            if flag in ("--detach", "--init", "--interactive", "--force", "--volumes"):
                continue
            value = rest.pop(0)
            if flag == "--env":
                name, _, text = value.partition("=")
                env[name] = text
            options[flag] = value
        match argv[0]:
            case "run":
                os.makedirs(options["--workdir"])
                self._running[options["--name"]] = []
                self._folder, self._env = options["--workdir"], env
                return 0
            case "exec":
                name, *command = rest
                process = subprocess.Popen(
                    command,
                    cwd=options.get("--workdir", "/"),
                    env={**self._env, **env},
                    stdin=fds[0],
                    stdout=fds[1],
                    stderr=fds[2],
                    start_new_session=True,
                )
                self._running[name].append(process)
                return process.wait() if process.wait() >= 0 else 128 - process.wait()
            case "stop":
                self._stop(rest[0])
                return 0
            case _:
                shutil.rmtree(self._folder, ignore_errors=True)
                return 0

    def _stop(self, name: str) -> None:
        for process in self._running.pop(name, []):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
