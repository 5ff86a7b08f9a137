"""The content of a skill, as skills_use returns it: the body with the output of its commands, and a list of files."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import deque
from collections.abc import Generator
from typing import NamedTuple

from weftline import prompts
from weftline.agent.skills.confined import Refused, open_inside
from weftline.agent.skills.discovery import SKIPPED
from weftline.agent.skills.format import FILE_NAMES, Skill
from weftline.agent.skills.running import Runs
from weftline.text.surrogates import whole

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
