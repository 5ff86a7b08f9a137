"""Names of stores in commands."""

from __future__ import annotations

import shlex
from pathlib import Path

DEFAULT_DB = "weftline-data"
"""The store of commands that name none: this folder in the current directory."""


def db_option(path: Path | None) -> str:
    """The option that a command needs to find this store, as ` --db PATH`; empty if it is the default, or has no
    folder.
    """
    if path is None or path.absolute() == Path(DEFAULT_DB).absolute():
        return ""
    return f" --db {shlex.quote(str(path))}"
