"""Finds the lines of a text that match a pattern, with bounded work, as patterns come from models.

Patterns have the semantics of Python's `re`. It can take forever, so it runs in a process that is killed after some
seconds of processor time. If ripgrep is installed, it does the work instead, in linear time, but only if the pattern
means the same there: the parsed pattern is translated, and what has no equivalent is left to Python.
"""

from __future__ import annotations

import os
import re
import shutil
from array import array
from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

from weftline import prompts
from weftline.tools.base import ToolFailed
from weftline.tools.contexts.running import Execution, Program
from weftline.work.processes import GaveUp, shared_workers

MAX_PATTERN_CHARS = 1000
_JOB = "weftline.tools.builtin.matching:match_job"
_RIPGREP = (
    *("--no-config", "--color=never", "--no-heading", "--line-number", "--text", "--encoding=none", "--no-mmap"),
    *("--max-columns=1",),  # the lines themselves are known here
)
_RIPGREP_TIMEOUT_S = 20.0
_MAX_OUTPUT_BYTES = 64 * 1024 * 1024
_CATEGORIES = {
    "CATEGORY_DIGIT": "0-9",
    "CATEGORY_NOT_DIGIT": r"\x{0}-\x{2f}\x{3a}-\x{7f}",
    "CATEGORY_WORD": "0-9A-Z_a-z",
    "CATEGORY_NOT_WORD": r"\x{0}-\x{2f}\x{3a}-\x{40}\x{5b}-\x{5e}\x{60}\x{7b}-\x{7f}",
    "CATEGORY_SPACE": r"\x{9}-\x{d}\x{1c}-\x{20}",
    "CATEGORY_NOT_SPACE": r"\x{0}-\x{8}\x{e}-\x{1b}\x{21}-\x{7f}",
}
"""The ASCII part; beyond it, ripgrep and Python disagree."""
_ANCHORS = {
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": "^",
    "AT_END": "$",
    "AT_END_STRING": "$",
    "AT_BOUNDARY": r"(?-u:\b)",
}


class Matcher:
    """A compiled pattern. Raises `ToolFailed` for an invalid one.

    Args:
        ripgrep: The path of the program; None uses Python only.
    """

    def __init__(self, pattern: str, *, ignore_case: bool, ripgrep: str | None) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise ToolFailed(prompts.files.pattern_too_long(MAX_PATTERN_CHARS))
        self._pattern = pattern
        self._ignore_case = ignore_case
        self._ripgrep = ripgrep
        self._for_ripgrep = for_ripgrep(pattern, ignore_case=ignore_case)

    async def lines(self, text: bytes) -> Sequence[int]:
        """Returns the numbers of the matching lines, from 0. `text` is valid UTF-8."""
        if self._ripgrep is not None and self._for_ripgrep is not None:
            expression, for_ascii_only = self._for_ripgrep
            if not for_ascii_only or text.isascii():
                found = await _by_ripgrep(self._ripgrep, expression, text)
                if found is not None:
                    return found
        try:
            reply = await shared_workers().run(_JOB, self._pattern.encode(), b"i" if self._ignore_case else b"", text)
        except GaveUp:
            raise ToolFailed(prompts.files.PATTERN_TOO_COSTLY) from None
        found = array("I")
        found.frombytes(reply)
        return found


def installed_ripgrep() -> str | None:
    return shutil.which("rg")


def match_job(pattern: bytes, flags: bytes, text: bytes) -> bytes:
    """Returns the numbers of the matching lines. Runs in a worker with a time limit."""
    matches = re.compile(pattern.decode(), re.IGNORECASE if flags else 0).search
    return array("I", (number for number, line in enumerate(text.decode().split("\n")) if matches(line))).tobytes()


async def _by_ripgrep(path: str, expression: str, text: bytes) -> Sequence[int] | None:
    """Matches with ripgrep; None if its version is too old or the expression too large for it."""
    search = Program(
        argv=[path, *_RIPGREP, f"--regexp={expression}", "-"],
        cwd="/",
        env={"PATH": os.defpath},
        timeout_s=_RIPGREP_TIMEOUT_S,
        stdin=text or b"\n",
        max_output_bytes=_MAX_OUTPUT_BYTES,
    )
    result = await Execution(search).result()
    if result.exit_code not in (0, 1) or result.dropped_stdout:
        return None
    return [int(line.partition(b":")[0]) - 1 for line in result.stdout.splitlines()]


def for_ripgrep(pattern: str, *, ignore_case: bool) -> tuple[str, bool] | None:
    """Translates a pattern to ripgrep's syntax; None if there is no equivalent.

    Also returns whether the translation is only equivalent for ASCII text.

    Raises:
        ToolFailed: if the pattern is invalid.
    """
    flags = re.IGNORECASE if ignore_case else 0
    try:
        re.compile(pattern, flags)
        # Only the parser of `re`, which is not public, tells what a pattern means.
        parsed: Any = cast(Any, import_module("re._parser")).parse(pattern, flags)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise ToolFailed(prompts.files.bad_pattern(str(error))) from None
    except ImportError:
        return None
    if parsed.state.flags & ~(re.UNICODE | flags):
        return None
    writer = _Writer(ignore_case=ignore_case)
    try:
        written = writer.sequence(parsed)
    except _NoEqual:
        return None
    return written or "(?:)", writer.for_ascii_only


class _NoEqual(Exception):
    pass


class _Writer:
    def __init__(self, *, ignore_case: bool) -> None:
        self.for_ascii_only = ignore_case
        self._ignore_case = ignore_case

    def sequence(self, items: Any) -> str:
        return "".join(self._item(str(op), value) for op, value in items)

    def _item(self, op: str, value: Any) -> str:
        match op:
            case "LITERAL":
                return f"[{self._character(value)}]"
            case "NOT_LITERAL":
                return f"[^{self._character(value)}]"
            case "ANY":
                return "."
            case "IN":
                return self._set(value)
            case "AT":
                return self._anchor(str(value))
            case "BRANCH":
                return "(?:" + "|".join(self.sequence(one) for one in value[1]) + ")"
            case "SUBPATTERN":
                _, added, removed, inner = value
                if added or removed:
                    raise _NoEqual
                return f"(?:{self.sequence(inner)})"
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = value
                upper = "" if str(most) == "MAXREPEAT" else most
                return f"(?:{self.sequence(inner)}){{{int(least)},{upper}}}"
            case _:
                raise _NoEqual

    def _anchor(self, name: str) -> str:
        if name not in _ANCHORS:
            raise _NoEqual
        self.for_ascii_only = self.for_ascii_only or name == "AT_BOUNDARY"
        return _ANCHORS[name]

    def _set(self, items: Any) -> str:
        written = ""
        negated = False
        for op, value in items:
            match str(op):
                case "NEGATE":
                    negated = True
                case "LITERAL":
                    written += self._character(value)
                case "RANGE":
                    written += self._range(*value)
                case "CATEGORY":
                    written += self._category(str(value))
                case _:
                    raise _NoEqual
        return f"[{'^' if negated else ''}{written}]"

    def _category(self, name: str) -> str:
        self.for_ascii_only = True
        if name not in _CATEGORIES:
            raise _NoEqual
        return _CATEGORIES[name]

    def _range(self, first: int, last: int) -> str:
        if first <= 10 <= last:
            raise _NoEqual  # matches a line break, which ripgrep does not allow
        if not self._ignore_case:
            if last > 0xD7FF:
                raise _NoEqual  # includes surrogates, which ripgrep does not know
            return rf"\x{{{first:x}}}-\x{{{last:x}}}"
        if last > 0x7F:
            raise _NoEqual
        return "".join(self._character(code) for code in range(first, last + 1))

    def _character(self, code: int) -> str:
        if code == 10 or 0xD800 <= code <= 0xDFFF or (self._ignore_case and code > 0x7F):
            raise _NoEqual
        both = {code, ord(chr(code).swapcase())} if self._ignore_case and chr(code).isalpha() else {code}
        return "".join(rf"\x{{{one:x}}}" for one in sorted(both))
