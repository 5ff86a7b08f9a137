"""Commands and files in a container, through the `docker` command line.

Killing `docker exec` does not end what it started, so every command first records its process id, by which it is ended
inside the container. The container itself is the boundary; its scripts keep file operations inside the working
directory as far as a shell can.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence

from weftline.tools.contexts.base import (
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_OUTPUT_BYTES,
    TIMED_OUT,
    TIMEOUT_S,
    Capabilities,
    Command,
    ContextDestroyed,
    ContextUnavailable,
    Entry,
    ExecResult,
    FileBytes,
    FileError,
    FileErrorKind,
    FileKind,
    Handle,
    Listing,
    walk,
)
from weftline.tools.contexts.running import Execution, Program

ERROR_KINDS: dict[int, FileErrorKind] = {
    40: "missing",
    41: "outside",
    42: "directory",
    43: "not_directory",
    44: "special",
    45: "denied",
}

RUN = """
mkdir -p "$1"; note=$1/$2; echo $$ > "$note"; shift 2
"$@"
code=$?; rm -f -- "$note"; exit $code
"""
"""Runs a command after recording the id of its process group, by which `END` ends it."""

END = """
pid=$(cat "$1/$2") && kill -KILL "-$pid"
rm -f -- "$1/$2"
"""

_INSIDE = """
root=$(readlink -f -- "$1"; echo x); root=${root%?x}
real=$(readlink -f -- "$2"; echo x); real=${real%?x}
[ -n "$real" ] || exit 40
case "$real/" in "$root"/*) ;; *) exit 41;; esac
rel=${real#"$root"}; rel=${rel#/}
"""

READ = f"""{_INSIDE}
[ -e "$real" ] || exit 40
[ -d "$real" ] && exit 42
[ -f "$real" ] || exit 44
[ -r "$real" ] || exit 45
printf '%s\\0' "$rel"
head -c "$3" -- "$real"
"""

WRITE = f"""
asked=$2; there=$2
while [ ! -e "$there" ] && [ ! -L "$there" ]; do
  up=$(dirname -- "$there"; echo x); up=${{up%?x}}
  [ "$up" = "$there" ] && break
  there=$up
done
rest=${{asked#"$there"}}
case "$rest/" in */../*) exit 41;; esac
set -- "$1" "$there"
{_INSIDE}
if [ -n "$rest" ]; then
  [ -d "$real" ] || exit 43
else
  [ -d "$real" ] && exit 42
  [ -f "$real" ] || exit 44
fi
to=$real$rest
up=$(dirname -- "$to"; echo x); up=${{up%?x}}
mkdir -p -- "$up" || exit 45
new=$up/.$$.weftline
cat > "$new" || exit 45
[ -e "$to" ] && chmod --reference="$to" -- "$new" 2>/dev/null
mv -f -- "$new" "$to" || exit 45
printf '%s' "${{to#"$root"/}}"
"""

LIST = f"""{_INSIDE}
[ -e "$real" ] || exit 40
[ -d "$real" ] || exit 43
cd -- "$real" || exit 45
printf '%s\\0' "$rel"
for name in * .*; do
  case "$name" in .|..) continue;; esac
  if [ -L "$name" ]; then kind=link
  elif [ -d "$name" ]; then kind=directory
  elif [ -f "$name" ]; then kind=file
  elif [ -e "$name" ]; then kind=other
  else continue
  fi
  printf '%s %s\\0' "$kind" "$name"
done
"""


IMAGE = "debian:stable-slim"
WORKDIR = "/workspace"
STOP_GRACE_S = 5
START_TIMEOUT_S = 600.0
"""The first start of an image may download it."""
_SLOWER_S = 30.0
"""How long `docker` itself may take besides the command; if it takes longer, the machine is in trouble."""

NOTES = "/tmp/.weftline"
_KINDS: dict[str, FileKind] = {"file": "file", "directory": "directory", "link": "link", "other": "other"}


class DockerContext:
    """A container per handle, removed by `destroy`.

    Args:
        image: Needs a POSIX shell with `readlink -f`, `head -c` and `kill`, as even busybox has.
        memory_mb: Limit on memory.
        cpus: Limit on processors, such as 1.5.
        network: False cuts the container off.
        mount: A directory of this machine that is the container's working directory.
        options: More options for `docker run`.
    """

    type = "docker"

    def __init__(
        self,
        image: str = IMAGE,
        *,
        memory_mb: int | None = None,
        cpus: float | None = None,
        network: bool = True,
        gpu: bool = False,
        mount: str | os.PathLike[str] | None = None,
        workdir: str = WORKDIR,
        env: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        options: Sequence[str] = (),
    ) -> None:
        self.capabilities = Capabilities(shell=True, filesystem=True, network=network, gpu=gpu)
        self._image = image
        self._workdir = workdir
        self._env = dict(env or {})
        self._timeout_s = timeout_s
        self._max_output_bytes = max_output_bytes
        self._options = [*([] if network else ["--network", "none"]), *(["--gpus", "all"] if gpu else [])]
        self._options += ["--memory", f"{memory_mb}m"] if memory_mb is not None else []
        self._options += ["--cpus", str(cpus)] if cpus is not None else []
        self._options += ["--volume", f"{os.path.realpath(mount)}:{workdir}"] if mount is not None else []
        self._options += options
        self._alive: dict[str, set[Execution]] = {}

    async def spawn(self, *, cwd: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None) -> Handle:
        name = f"weftline-{secrets.token_hex(6)}"
        folder = self._workdir if cwd is None else posixpath.normpath(posixpath.join(self._workdir, os.fspath(cwd)))
        variables = _variables({**self._env, **(env or {})})
        argv = [
            "run",
            "--detach",
            "--init",
            "--label",
            "weftline",
            "--name",
            name,
            "--workdir",
            folder,
            *variables,
            *self._options,
        ]
        result = await self._docker([*argv, self._image, "sleep", "infinity"], timeout_s=START_TIMEOUT_S)
        if result.exit_code:
            stderr = result.stderr.decode(errors="replace").strip()[-500:]
            raise ContextUnavailable(f"docker could not start a container of {self._image}: {stderr}")
        self._alive[name] = set()
        return Handle(name, self.type, folder)

    async def exec(
        self,
        handle: Handle,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        note = secrets.token_hex(6)
        folder = os.path.join(handle.cwd, cwd) if cwd else handle.cwd
        options = ["--interactive", "--workdir", folder, *_variables(env or {})]
        whole = ["exec", *options, handle.id, "sh", "-c", RUN, "sh", NOTES, note, *argv]
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            result = await self._docker(whole, timeout_s=limit_s, stdin=stdin, handle=handle)
        except asyncio.CancelledError:
            await asyncio.shield(self._end(handle, note))
            raise
        if result.exit_code == TIMED_OUT and result.timed_out:
            await self._end(handle, note)
        return result

    async def read_file(self, handle: Handle, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> FileBytes:
        output = await self._script(handle, READ, path, str(max_bytes + 1))
        real, _, data = output.partition(b"\0")
        return FileBytes(os.fsdecode(real), data[:max_bytes], len(data) <= max_bytes)

    async def write_file(self, handle: Handle, path: str, data: bytes) -> str:
        return os.fsdecode(await self._script(handle, WRITE, path, stdin=data))

    async def list_files(
        self,
        handle: Handle,
        path: str = ".",
        *,
        recursive: bool = False,
        skip: Collection[str] = (),
        max_entries: int = MAX_ENTRIES,
    ) -> Listing:
        return await walk(self, handle, path, recursive=recursive, skip=skip, max_entries=max_entries)

    async def list_directory(self, handle: Handle, path: str) -> Listing:
        where, *rest = os.fsdecode(await self._script(handle, LIST, path)).split("\0")
        named = [line.partition(" ") for line in rest if line]
        return Listing(where or ".", tuple(Entry(os.path.join(where, name), _KINDS[kind]) for kind, _, name in named))

    async def destroy(self, handle: Handle) -> None:
        under_way = self._alive.pop(handle.id, None)
        if under_way is None:
            return
        for execution in under_way:
            execution.stop()
        await self._docker(["stop", "--time", str(STOP_GRACE_S), handle.id], timeout_s=STOP_GRACE_S + _SLOWER_S)
        await self._docker(["rm", "--force", "--volumes", handle.id], timeout_s=_SLOWER_S)

    async def _end(self, handle: Handle, note: str) -> None:
        await self._docker(["exec", handle.id, "sh", "-c", END, "sh", NOTES, note], timeout_s=_SLOWER_S)

    async def _script(self, handle: Handle, script: str, path: str, *more: str, stdin: bytes = b"") -> bytes:
        if "\0" in path:
            raise FileError("missing", path)
        full = os.path.join(handle.cwd, path)
        argv = ["exec", "--interactive", "--workdir", handle.cwd, handle.id, "sh", "-c", script, "sh", handle.cwd, full]
        result = await self._docker(
            [*argv, *more], timeout_s=_SLOWER_S, stdin=stdin, handle=handle, max_output_bytes=2 * MAX_FILE_BYTES
        )
        if result.exit_code:
            stderr = result.stderr.decode(errors="replace").strip()
            raise FileError(ERROR_KINDS.get(result.exit_code, "failed"), path, stderr)
        return result.stdout

    async def _docker(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        handle: Handle | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        if handle is not None and handle.id not in self._alive:
            raise ContextDestroyed(f"the container {handle.id} was destroyed")
        program = shutil.which("docker")
        if program is None:
            raise ContextUnavailable("DockerContext needs Docker: install it, with the program `docker` on the PATH")
        kept = self._max_output_bytes if max_output_bytes is None else max_output_bytes
        program = Program(
            argv=[program, *argv],
            cwd="/",
            env=_own_environment(),
            timeout_s=timeout_s,
            stdin=stdin,
            max_output_bytes=kept,
        )
        execution = Execution(program)
        under_way = self._alive.get(handle.id, set[Execution]()) if handle is not None else set[Execution]()
        under_way.add(execution)
        try:
            result = await execution.result()
        finally:
            under_way.discard(execution)
        if handle is not None and handle.id not in self._alive:
            raise ContextDestroyed(f"the container {handle.id} was destroyed")
        return result


def _variables(env: Mapping[str, str]) -> list[str]:
    return [part for name, value in env.items() for part in ("--env", f"{name}={value}")]


def _own_environment() -> dict[str, str]:
    """The environment of the program `docker` itself; none of it reaches the container."""
    wanted = ("PATH", "HOME", "XDG_RUNTIME_DIR")
    return {
        name: value
        for name, value in os.environ.items()
        if name in wanted or name.startswith(("DOCKER_", "CONTAINER_"))
    }
