"""A disk that can be filled up: a small in-memory file system, or else a limit on file sizes.

A file system can be mounted without privileges in a separate mount namespace, which `enter_namespace` gets from the
`unshare` command. It vanishes with the last process in it, however that ends.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_SIZE = "256m"
INSIDE = "WEFTLINE_TORTURE_NAMESPACE"
"""The environment variable that says: this process may mount, as far as it can."""
_SLACK_BYTES = 16384
"""What a server whose files are limited may still write."""


def enter_namespace(arguments: Sequence[str]) -> None:
    """Runs this program again in a namespace where it may mount, and does not return; returns if that is not possible
    here.
    """
    unshare = shutil.which("unshare")
    if INSIDE in os.environ or unshare is None or not sys.platform.startswith("linux"):
        return
    command = [unshare, "--user", "--map-root-user", "--mount"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        os.execve(unshare, [*command, sys.executable, *arguments], {**os.environ, INSIDE: "1"})


class Volume:
    """`folder` is where the store is created."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mounted = INSIDE in os.environ and _mount(folder)
        self._limited: int | None = None

    @property
    def kind(self) -> str:
        return f"a file system of {_SIZE}" if self._mounted else "limits on the size of files"

    def fill(self, pid: int) -> None:
        """Fills the disk, so that nothing more fits, at least for the process `pid`."""
        if self._mounted:
            self._take_all()
            return
        sizes = [file.stat().st_size for file in self.folder.rglob("*") if file.is_file()]
        soft = max([0, *sizes]) + _SLACK_BYTES
        self._limited = pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))

    def release(self) -> None:
        self._ballast.unlink(missing_ok=True)
        if self._limited is not None:
            pid, self._limited = self._limited, None
            try:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            except ProcessLookupError:
                pass

    def close(self) -> None:
        if self._mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def _take_all(self) -> None:
        with open(self._ballast, "wb", buffering=0) as file:
            for block in (1024 * 1024, 4096):
                try:
                    while True:
                        file.write(bytes(block))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise


def _mount(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE},mode=0700", "torture", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
