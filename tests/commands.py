"""Commands of `weftline`, run in this process: what a user types, without the half second that a new process takes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import NamedTuple
from unittest.mock import patch

from click.testing import CliRunner

from weftline.cli import main


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
