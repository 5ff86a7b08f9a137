"""A Postgres of the tests' own: new, in a temporary directory, without fsync, behind a socket in the same place."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ADDRESS = "WEFTLINE_TEST_POSTGRES"
"""The variable with the address of a database to use instead."""
_DEBIAN = Path("/usr/lib/postgresql")
_QUICK = "-c fsync=off -c full_page_writes=off -c synchronous_commit=off -c shared_buffers=16MB -c max_connections=10"
_PATIENCE_S = 120


class _Who(NamedTuple):
    """Where the server's programs run, and as whom: None for the user of the tests."""

    folder: Path
    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] | None = None


class NotHere(Exception):
    """Postgres cannot be had on this machine; says why."""


@contextmanager
def postgres() -> Generator[str]:
    """The address of a database, for psql. Raises `NotHere` if there is none and none can be started."""
    if shutil.which("psql") is None:
        raise NotHere("there is no psql")
    if address := os.environ.get(ADDRESS):
        yield address
        return
    tools = _tools()
    folder = Path(tempfile.mkdtemp(prefix="weftline-pg-"))  # not below pytest's, which others may not enter
    try:
        who = _unprivileged(folder)
        _run(
            f"{tools}/initdb", "-D", "data", "-U", "weftline", "-A", "trust", "-N", "-E", "UTF8", "--locale=C", who=who
        )
        server, options = (f"{tools}/pg_ctl", "-D", "data", "-w"), f"-k {folder} -c listen_addresses='' {_QUICK}"
        _run(*server, "-l", "log", "-o", options, "start", who=who)
        try:
            yield f"host={folder} user=weftline dbname=postgres"
        finally:
            _run(*server, "-m", "immediate", "stop", who=who)
    finally:
        shutil.rmtree(folder)


def _tools() -> Path:
    """Debian does not put the programs of the server on the path."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += [path.parent for path in sorted(_DEBIAN.glob("*/bin/initdb"), reverse=True)]
    if not found:
        raise NotHere("there is no initdb")
    return found[0]


def _unprivileged(folder: Path) -> _Who:
    """Root becomes nobody: the server's programs refuse to run as root."""
    if os.geteuid() != 0:
        return _Who(folder)
    try:
        account = pwd.getpwnam("nobody")
        os.chown(folder, account.pw_uid, account.pw_gid)
    except (KeyError, OSError) as error:
        raise NotHere(f"it does not run as root, and there is nobody else: {error}") from None
    return _Who(folder, account.pw_uid, account.pw_gid, ())


def _run(*command: str, who: _Who) -> None:
    # To a file: the server keeps what it inherits open, so a pipe would not end.
    with tempfile.TemporaryFile() as said:
        try:
            code = subprocess.call(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=_PATIENCE_S,
                cwd=who.folder,
                user=who.user,
                group=who.group,
                extra_groups=who.groups,
            )
        except OSError as error:
            raise NotHere(f"{command[0]} cannot be started: {error}") from None
        if code:
            said.seek(0)
            raise NotHere(f"{command[0]} failed: {said.read().decode(errors='replace').strip()[-500:]}")
