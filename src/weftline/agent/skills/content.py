"""The content of a skill, as skills_use returns it: the body with the output of its commands, and a list of files."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import time
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol

from msgspec import Struct

from weftline import prompts
from weftline.agent.skills.confined import Opened, Refused, open_inside, read_inside
from weftline.agent.skills.discovery import SKIPPED
from weftline.agent.skills.format import FILE_NAMES, Skill
from weftline.text.characters import whole
from weftline.tools.base import ToolFailed
from weftline.tools.contexts.base import ExecResult
from weftline.tools.contexts.running import Execution, Program

MAX_OUTPUT_BYTES = 32_768
ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TERM", "TMPDIR", "TZ", "USER")
"""What a process inherits of this one's environment: nothing that may hold a secret."""


class Runs(Protocol):
    """Where commands of skills are run."""

    async def exec(self, command: str | Sequence[str], *, cwd: str | None, timeout_s: float) -> ExecResult | Ran:
        """Runs a command line (for a shell) or a list of arguments (without one) to its end.

        Without `cwd` it runs where the agent's other commands do. Cancelling this kills what was started.

        Raises:
            OSError: if it cannot be started.
        """
        ...


class Ran(Struct, frozen=True):
    """An `Outcome`. A command that was ended by signal N has exit code 128 + N."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    timed_out: bool = False
    dropped_stdout: int = 0
    dropped_stderr: int = 0


class ProcessRuns:
    """Runs on this machine, as this user, without further confinement."""

    def __init__(self, *, root: str | os.PathLike[str] | None = None, max_output_bytes: int = MAX_OUTPUT_BYTES) -> None:
        self._root = None if root is None else os.fspath(root)
        self._max_output_bytes = max_output_bytes

    async def exec(self, command: str | Sequence[str], *, cwd: str | None, timeout_s: float) -> Ran:
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        where = cwd or self._root or os.getcwd()
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        program = Program(
            argv=argv, cwd=where, env=environment, timeout_s=timeout_s, max_output_bytes=self._max_output_bytes
        )
        execution = Execution(program)
        ended = await execution.result()
        if not execution.began and not ended.timed_out:
            raise OSError(ended.stderr.decode(errors="replace").strip() or f"{argv[0]} could not be started")
        return Ran(
            ended.stdout,
            ended.stderr,
            ended.exit_code,
            ended.timed_out,
            ended.dropped_stdout,
            ended.dropped_stderr,
        )


MAX_BYTES = 262_144
MAX_FILE_BYTES = 16 * 1024 * 1024
"""How much is read to find the requested lines."""

LANGUAGES = {
    ".bash": "bash",
    ".cjs": "node",
    ".js": "node",
    ".mjs": "node",
    ".pl": "perl",
    ".py": "python3",
    ".rb": "ruby",
    ".sh": "sh",
}
"""The interpreters of scripts that are not executable, by suffix."""
_SHEBANG_BYTES = 256


def read_lines(directory: str, path: str, *, offset: int, limit: int) -> str:
    """Returns lines of a file of the skill in `directory`, from line `offset` (the first is 1).

    Raises:
        ToolFailed: if the file does not exist, is outside of the directory, or is not a regular file.
    """
    try:
        data = read_inside(directory, path, max_bytes=MAX_FILE_BYTES)
    except Refused as error:
        raise ToolFailed(prompts.skills.file_refused(path, str(error))) from None
    except FileNotFoundError:
        raise ToolFailed(prompts.skills.file_missing(path)) from None
    except OSError as error:
        raise ToolFailed(prompts.skills.file_refused(path, error.strerror or prompts.skills.NOT_OPENED)) from None
    content = data.content
    if not content:
        return prompts.skills.file_empty(path)
    text = content.decode("utf-8", "replace")
    if b"\0" in content or text.count("\ufffd") * 10 > len(text):
        return prompts.skills.file_binary(path, len(content) + data.left)
    return _lines(path, text, offset=offset, limit=limit)


def _lines(path: str, text: str, *, offset: int, limit: int) -> str:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    first = max(offset, 1) - 1
    if first >= len(lines):
        return prompts.skills.file_ends_before(path, offset, len(lines))
    wanted = lines[first : first + limit] if limit > 0 else lines[first:]
    taken: list[str] = []
    size = 0
    for line in wanted:
        size += len(line.encode("utf-8", "replace")) + 1
        if size > MAX_BYTES:
            break
        taken.append(line)
    next_offset = first + len(taken) + 1
    if not taken:
        start = wanted[0].encode("utf-8", "replace")[:MAX_BYTES].decode("utf-8", "ignore")
        return prompts.skills.file_line_cut(whole(start), next_offset=next_offset + 1)
    part = whole("\n".join(taken))
    return part if next_offset > len(lines) else prompts.skills.file_goes_on(part, next_offset=next_offset)


def script_command(directory: str, script: str) -> list[str]:
    """Returns the arguments that start a script of the skill in `directory`, by its real path.

    Only a script from elsewhere is refused. Swapping the script before it starts is not prevented: whoever can do that
    could also have written it.

    Raises:
        ToolFailed: if it does not exist, is outside of the directory, or cannot be run.
    """
    try:
        with open_inside(directory, script) as opened:
            command = _interpreter(opened)
            real = opened.path
    except Refused as error:
        raise ToolFailed(prompts.skills.file_refused(script, str(error))) from None
    except FileNotFoundError:
        raise ToolFailed(prompts.skills.file_missing(script)) from None
    except OSError as error:
        raise ToolFailed(prompts.skills.file_refused(script, error.strerror or prompts.skills.NOT_OPENED)) from None
    if command is None:
        raise ToolFailed(prompts.skills.script_not_runnable(script))
    # Never bare: a name without a slash would be looked up in PATH, and one like `-c` taken for an option.
    return [*command, os.path.join(directory, real)]


def _interpreter(opened: Opened) -> list[str] | None:
    """Returns what precedes the script: nothing if it runs by itself, None if its interpreter is unknown."""
    head = os.read(opened.fd, _SHEBANG_BYTES)
    executable = bool(opened.mode & 0o111)
    if head.startswith(b"#!"):
        first = head[2:].split(b"\n")[0]
        # The system would look for an interpreter whose name ends in a carriage return.
        if executable and not first.endswith(b"\r"):
            return []
        try:
            return shlex.split(first.decode("utf-8", "replace")) or None
        except ValueError:
            return None
    language = LANGUAGES.get(PurePosixPath(opened.path).suffix)
    if language is not None:
        return [language]
    return [] if executable else None


MAX_RESOURCES = 50
MAX_COMMANDS = 32
COMMAND_TIMEOUT_S = 30.0
ALL_COMMANDS_TIMEOUT_S = 120.0
MAX_COMMAND_BYTES = 16_384

_MAX_DIRECTORIES = 500
_MAX_FILES = 5_000
_UNLISTED = SKIPPED | {"__pycache__"}

# A command, or a code span, which is skipped: in `assert!` and `x` no command begins at the exclamation mark.
_COMMAND = re.compile(
    r"(?<![\w`\\!])!`(?P<command>[^`\n]+)`(?!`)"
    r"|(?<!`)(?P<ticks>`+)(?!`)[^\n]*?(?<!`)(?P=ticks)(?!`)"
)
_TAG = re.compile(r"<(?=/?skill_content\b)", re.IGNORECASE)


async def content_of(skill: Skill, runs: Runs) -> str:
    """Returns what the model reads when a skill becomes active.

    Commands in the body are run now, if the skill is trusted.
    """
    body = await _interpolate(skill.body, runs) if skill.trusted else skill.body
    listed = await asyncio.to_thread(_resources, skill.directory) if skill.directory else _Resources((), 0, False)
    return prompts.skills.skill_content(
        skill.name,
        # Whatever a file or a command prints cannot close the element.
        _TAG.sub("&lt;", whole(body)),
        directory=skill.directory,
        compatibility=skill.compatibility,
        allowed_tools=" ".join(skill.allowed_tools or ()),
        resources=listed.paths,
        left=prompts.skills.resources_left(listed.left, at_least=listed.cut) if listed.left else "",
    )


def tail(output: bytes, dropped: int, *, max_bytes: int) -> str:
    """Returns the end of an output as text, with a mark if its beginning is missing; no character is cut in two."""
    kept = output[-max_bytes:] if len(output) > max_bytes else output
    dropped += len(output) - len(kept)
    if dropped:
        start = next((index for index, byte in enumerate(kept[:4]) if byte & 0xC0 != 0x80), 0)
        kept, dropped = kept[start:], dropped + start
    text = whole(kept.decode("utf-8", "replace"))
    return prompts.skills.command_output_cut(text, dropped) if dropped else text


async def _interpolate(body: str, runs: Runs) -> str:
    """Returns the body with each !`command` replaced by its output. The output itself is not interpolated."""
    pieces: list[str] = []
    end = count = 0
    deadline = time.monotonic() + ALL_COMMANDS_TIMEOUT_S
    for found in _COMMAND.finditer(body):
        command = found["command"]
        if command is None:
            continue
        pieces.append(body[end : found.start()])
        end = found.end()
        count += 1
        left_s = deadline - time.monotonic()
        if count > MAX_COMMANDS or left_s <= 0:
            pieces.append(prompts.skills.command_skipped(command))
        else:
            pieces.append(await _output(command, runs, min(COMMAND_TIMEOUT_S, left_s)))
    return "".join([*pieces, body[end:]])


async def _output(command: str, runs: Runs, timeout_s: float) -> str:
    try:
        ran = await runs.exec(command, cwd=None, timeout_s=timeout_s)
    except (OSError, ValueError) as error:
        return prompts.skills.command_not_started(command, str(error))
    if ran.timed_out:
        return prompts.skills.command_timed_out(command, timeout_s)
    if ran.exit_code != 0:
        output = ran.stderr or ran.stdout
        return prompts.skills.command_failed(command, ran.exit_code, tail(output, 0, max_bytes=1024).strip())
    return tail(ran.stdout, ran.dropped_stdout, max_bytes=MAX_COMMAND_BYTES).rstrip("\n")


class _Resources(NamedTuple):
    paths: tuple[str, ...]
    left: int
    """The number of files that are not listed."""
    cut: bool
    """Whether there are so many that not all were counted."""


def _resources(directory: str) -> _Resources:
    """Lists the files of a skill by path, without opening them. Links are listed only if they stay inside."""
    paths: list[str] = []
    cut = False
    for path in _files(directory):
        if path is None or len(paths) == _MAX_FILES:
            cut = True
            break
        paths.append(path)
    # Files near the top are the ones that the body mentions; deep ones are mostly data.
    paths.sort(key=lambda path: (path.count("/"), path))
    return _Resources(tuple(paths[:MAX_RESOURCES]), max(0, len(paths) - MAX_RESOURCES) + cut, cut)


def _files(directory: str) -> Generator[str | None]:
    """Yields paths relative to `directory`, level by level; None if there are too many directories to continue."""
    waiting = deque([""])
    visited = 0
    while waiting:
        below = waiting.popleft()
        visited += 1
        if visited > _MAX_DIRECTORIES:
            yield None
            return
        try:
            with os.scandir(os.path.join(directory, below)) as found:
                entries = sorted(found, key=lambda entry: os.fsencode(entry.name))
        except OSError:
            continue
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            if not entry.name.isprintable() or path in FILE_NAMES:
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _UNLISTED:
                    waiting.append(path)
            elif entry.is_file(follow_symlinks=False) or (entry.is_symlink() and _is_inside(directory, path)):
                yield path


def _is_inside(directory: str, path: str) -> bool:
    try:
        with open_inside(directory, path):
            return True
    except (OSError, Refused):
        return False
