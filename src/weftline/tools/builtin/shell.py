"""The tool `shell`. Its result keeps the end of what a command printed, as errors are there."""

from __future__ import annotations

import os
import time

from weftline import prompts
from weftline.tools.base import ToolFailed
from weftline.tools.builtin.reading import whole_tail
from weftline.tools.builtin.workplace import WorkplaceTools, errors_for_model, workplace
from weftline.tools.contexts.base import TIMEOUT_S, ExecResult, ExecutionContext
from weftline.tools.decorator import tool

MAX_OUTPUT_BYTES = 32_768
MAX_TIMEOUT_S = 600.0
_ENDING_S = 30.0
"""How long it may take to end a command after its time is up."""


class Shell(WorkplaceTools):
    """A toolset with one tool, or none if the context has no shell."""


def shell(
    root: str | os.PathLike[str] = ".",
    *,
    context: ExecutionContext | None = None,
    timeout_s: float = TIMEOUT_S,
    max_timeout_s: float = MAX_TIMEOUT_S,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
    metadata: bool = True,
) -> Shell:
    """`shell`, which runs command lines.

    On this machine, which is the default, commands start in `root` but are not confined to it: they may do what the
    user may do. `context=SandboxedContext()` confines them.

    Args:
        root: The directory that commands start in.
        context: Where commands run.
        timeout_s: After this a command is killed, unless the model asks for more.
        max_timeout_s: The most that the model may ask for.
        max_output_bytes: How much of the output the model reads; the end is kept. 0 for all.
        metadata: Whether the model reads stderr, the exit code and the time that the command took.
    """
    place = workplace(context, root)
    if not place.context.capabilities.shell:
        return Shell(place, ())
    usual_s = timeout_s
    longest_s = max(timeout_s, max_timeout_s)

    @tool(name="shell", effect="once", timeout_s=longest_s + _ENDING_S)
    async def run_in_shell(command: str, timeout_s: float | None = None) -> str:
        """Runs a command line in the working directory and returns what it prints.

        It gets no input, and everything that it started is stopped when it ends.

        Args:
            command: The command line, for a POSIX shell.
            timeout_s: Seconds after which it is killed, if it needs more or less than usual.
        """
        limit_s = usual_s if timeout_s is None else timeout_s
        if not 0 < limit_s <= longest_s:
            raise ToolFailed(prompts.files.timeout_limit(longest_s))
        async with errors_for_model():
            handle = await place.handle()
            begun = time.monotonic()
            result = await place.context.exec(handle, command, timeout_s=limit_s)
        took_ms = int((time.monotonic() - begun) * 1000)
        text = output_text(result, max_bytes=max_output_bytes, with_stderr=metadata)
        notes = [prompts.files.command_timed_out(limit_s)] if result.timed_out else []
        notes += [prompts.files.command_ended(result.exit_code, took_ms)] if metadata else []
        if text and notes and not text.endswith("\n"):
            text += "\n"
        return text + "\n".join(notes)

    return Shell(place, (run_in_shell,))


def output_text(result: ExecResult, *, max_bytes: int, with_stderr: bool) -> str:
    """Returns both outputs together, cut to their last `max_bytes` bytes (0 for no limit)."""
    stdout, stderr = result.stdout, result.stderr if with_stderr else b""
    dropped = result.dropped_stdout + (result.dropped_stderr if with_stderr else 0)
    surplus = len(stdout) + len(stderr) - max_bytes if max_bytes else 0
    if surplus > 0:
        kept = len(stdout) + len(stderr)
        stdout, stderr = stdout[surplus:], stderr[max(0, surplus - len(stdout)) :]
        if stdout:
            stdout = whole_tail(stdout)
        else:
            stderr = whole_tail(stderr)
        dropped += kept - len(stdout) - len(stderr)
    text = stdout.decode("utf-8", "replace")
    if stderr:
        text += ("\n" if text and not text.endswith("\n") else "") + f"{prompts.files.STDERR}\n"
        text += stderr.decode("utf-8", "replace")
    return f"{prompts.files.truncated_head(dropped)}\n{text}" if dropped else text
