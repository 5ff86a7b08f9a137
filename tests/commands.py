"""Commands of `weftline`, run in this process: what a user types, without the half second that a new process takes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from click.testing import CliRunner

from weftline.cli import main
from weftline.cli.reach import reach


class Done(NamedTuple):
    code: int
    out: str
    err: str


def weftline(*arguments: str, stdin: str = "", env: Mapping[str, str | None] | None = None) -> Done:
    """Runs a command to its end. Variables in `env` are added to the environment, or taken out of it when None.

    What a user would see as a traceback is raised.
    """
    with (
        CliRunner().isolation(input=stdin, env=env) as (out, err, _),
        patch.object(sys, "argv", ["weftline", *arguments]),
    ):
        code = _exit_code()
        sys.stdout.flush()
        sys.stderr.flush()
        return Done(code, out.getvalue().decode(), err.getvalue().decode())


async def weftline_beside(*arguments: str, stdin: str = "", env: Mapping[str, str | None] | None = None) -> Done:
    """The same while the test's loop goes on: the command has a loop of its own, in a thread."""
    return await asyncio.to_thread(weftline, *arguments, stdin=stdin, env=env)


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def new_secret(db: Path, workspace: str, *, name: str = "", agents: Sequence[str] = ()) -> str:
    """A key of a workspace, which is made if it is new, as `weftline keys create` makes it."""
    with reach(db, workspace=workspace, writes=True) as at:
        made = at.ensure().post("/api-keys", {"name": name, "agentIds": list(agents) or None})
    return str(made["key"])


def operate(db: Path, method: str, path: str, body: Any = None, **query: str) -> Any:
    """What the operator alone can do; `path` is below that of the operator."""
    with reach(db, writes=True) as at:
        return at.operate(method, path, body=body, query=query)
