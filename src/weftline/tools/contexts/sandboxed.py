"""Runs commands in a sandbox on this machine, made by bubblewrap.

It has no network, only the system files that programs need to start, no writable directories but the handle's and an
empty /tmp, and no other processes. The kernel ends everything in a sandbox with its first process, so nothing stays
behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from weftline.tools.contexts.base import (
    MAX_OUTPUT_BYTES,
    TIMEOUT_S,
    Capabilities,
    ContextUnavailable,
    Handle,
)
from weftline.tools.contexts.process import ProcessContext
from weftline.tools.contexts.running import STOP_GRACE_S, Execution, Program

PROGRAM = "bwrap"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = (
    *("/etc/alternatives", "/etc/ca-certificates", "/etc/group", "/etc/ld.so.cache", "/etc/ld.so.conf"),
    *("/etc/ld.so.conf.d", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/pki", "/etc/ssl"),
)
"""The files of /etc that programs and libraries need. The rest may hold secrets that this user can read."""
_PROBE_TIMEOUT_S = 20.0


class SandboxedContext(ProcessContext):
    """`ProcessContext`, with every command in a sandbox.

    Args:
        network: True shares the network of the machine.
        readable: More directories that commands may read, such as that of a language's installation.
    """

    type = "sandboxed"

    def __init__(
        self,
        *,
        network: bool = False,
        readable: Sequence[str | os.PathLike[str]] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        stop_grace_s: float = STOP_GRACE_S,
        hard_links: bool = True,
    ) -> None:
        super().__init__(
            env=env,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
            stop_grace_s=stop_grace_s,
            hard_links=hard_links,
        )
        self.capabilities = Capabilities(shell=True, filesystem=True, network=network)
        self._network = network
        self._readable = [os.path.realpath(one) for one in readable]
        self._works = False

    async def spawn(self, *, cwd: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None) -> Handle:
        if not self._works:
            await _probe()
            self._works = True
        return await super().spawn(cwd=cwd, env=env)

    def wrapped(self, argv: list[str], *, root: str, cwd: str, env: Mapping[str, str]) -> list[str]:
        sandbox = [_program(), "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        if self._network:
            sandbox += ["--share-net", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
            sandbox += ["--ro-bind-try", "/etc/hosts", "/etc/hosts"]
        for path in (*SYSTEM, *SYSTEM_FILES):
            # On many systems /bin is a link into /usr, and must be one inside too.
            sandbox += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind-try", path, path]
        sandbox += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for path in self._readable:
            sandbox += ["--ro-bind-try", path, path]
        return [
            *sandbox,
            "--bind",
            root,
            root,
            "--setenv",
            "HOME",
            root,
            "--setenv",
            "TMPDIR",
            "/tmp",
            "--chdir",
            cwd,
            "--",
            *argv,
        ]

    def starts_in(self, root: str, cwd: str) -> str:
        return root


def _program() -> str:
    found = shutil.which(PROGRAM)
    if found is None:
        raise ContextUnavailable(
            "SandboxedContext needs bubblewrap: install the package `bubblewrap`, which has the program `bwrap`"
        )
    return found


async def _probe() -> None:
    """Raises unless a sandbox can be created here, which containers and some kernels do not allow."""
    argv = [_program(), "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    result = await Execution(Program(argv=argv, cwd="/", env=env, timeout_s=_PROBE_TIMEOUT_S)).result()
    if result.exit_code:
        stderr = result.stderr.decode(errors="replace").strip() or f"exit code {result.exit_code}"
        raise ContextUnavailable(
            f"bubblewrap cannot make a sandbox here ({stderr}); allow user namespaces, or use another context"
        )
