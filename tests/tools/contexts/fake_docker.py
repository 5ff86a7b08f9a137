"""A `docker` without containers, in two kinds: both know the command lines, and run what they are told on this machine.

With `FakeDocker` a daemon runs it, as with the real one: what was started does not end with the program that asked for
it. `write_direct_docker` runs it itself, which is faster, and good enough for what ends by itself.
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
DIRECT = """#!/bin/sh
verb=$1; shift
while case "$1" in --*) true;; *) false;; esac; do
  case "$1" in
    --detach|--init|--interactive|--force|--volumes) shift;;
    --workdir) folder=$2; shift 2;;
    --env) export "$2"; given="$given export '$2';"; shift 2;;
    *) shift 2;;
  esac
done
case "$verb" in
  run) mkdir "$folder"; echo "$folder" > "$0.folder"; echo "$given" > "$0.env";;
  exec) . "$0.env"; cd "$folder"; shift; exec "$@";;
  rm) rm -rf "$(cat "$0.folder")";;
esac
"""


def write_program(folder: Path, text: str) -> Path:
    """The directory with the program `docker`."""
    home = folder / "bin"
    home.mkdir()
    (home / "docker").write_text(text)
    (home / "docker").chmod(0o755)
    return home


def write_direct_docker(folder: Path) -> Path:
    return write_program(folder, DIRECT)


class FakeDocker:
    """`commands` are all command lines so far."""

    def __init__(self, folder: Path) -> None:
        self.commands: list[list[str]] = []
        self._running: dict[str, list[subprocess.Popen[bytes]]] = {}
        address = str(folder / "docker.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(address)
        self._socket.listen(64)
        self.bin = write_program(folder, CLIENT.format(python=sys.executable, address=address))
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
        rest = argv[1:]
        while rest and rest[0].startswith("--"):
            flag = rest.pop(0)
            if flag not in ("--detach", "--init", "--interactive", "--force", "--volumes"):
                options[flag] = rest.pop(0)
        match argv[0]:
            case "run":
                self._folder = options["--workdir"]
                os.makedirs(self._folder)
                self._running[options["--name"]] = []
                return 0
            case "exec":
                name, *command = rest
                process = subprocess.Popen(
                    command,
                    cwd=options.get("--workdir", "/"),
                    stdin=fds[0],
                    stdout=fds[1],
                    stderr=fds[2],
                    start_new_session=True,
                )
                self._running[name].append(process)
                code = process.wait()
                return code if code >= 0 else 128 - code
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
