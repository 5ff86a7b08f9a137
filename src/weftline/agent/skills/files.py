"""Files and scripts of a skill: reading lines of a file, and the command that starts a script."""

from __future__ import annotations

import os
import shlex
from pathlib import PurePosixPath

from weftline import prompts
from weftline.agent.skills.confined import Opened, Refused, open_inside, read_inside
from weftline.text.characters import whole
from weftline.tools.base import ToolFailed

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
