"""Finds files by name and lines by content: the context lists and reads files, the matching is done here."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from fnmatch import translate
from importlib import import_module
from typing import Any, cast

from msgspec import Struct

from weftline import prompts
from weftline.tools.base import ToolFailed
from weftline.tools.builtin.reading import display_path
from weftline.tools.builtin.workplace import Workplace
from weftline.tools.contexts.base import Entry, FileBytes, FileError, FileKind, Listing
from weftline.tools.contexts.running import Execution, Program
from weftline.work.processes import GaveUp, shared_workers

MAX_CHARS = 1000
MAX_ALTERNATIVES = 64


class BadGlob(Exception):
    """The pattern is too long or has too many alternatives."""


class Glob:
    """One compiled pattern, to match the parts of paths."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_CHARS:
            raise BadGlob
        self._patterns = [_steps(one) for one in _alternatives(pattern)]

    def matches(self, path: str) -> bool:
        parts = path.split("/")
        return any(_matches(steps, parts) for steps in self._patterns)


def _steps(pattern: str) -> list[re.Pattern[str] | None]:
    """Returns a pattern for each part of a path; None means `**`."""
    steps: list[re.Pattern[str] | None] = []
    for part in pattern.split("/"):
        if part == "**":
            if not steps or steps[-1] is not None:
                steps.append(None)
        elif part not in ("", "."):
            steps.append(re.compile(translate(part)))
    if steps and steps[-1] is None:
        steps.append(re.compile(translate("*")))
    return steps


def _matches(steps: list[re.Pattern[str] | None], parts: list[str]) -> bool:
    reached = {0}
    for part in parts:
        reached = set(_after(steps, reached, part))
        if not reached:
            return False
    return len(steps) in reached


def _after(steps: list[re.Pattern[str] | None], reached: set[int], part: str) -> Iterator[int]:
    """Yields the positions in the pattern that are possible after one more part of the path."""
    for place in reached:
        if place < len(steps) and steps[place] is None:
            yield place
            place += 1
        if place < len(steps):
            step = steps[place]
            if step is not None and step.match(part):
                yield place + 1


def _alternatives(pattern: str) -> list[str]:
    """Expands braces: returns the pattern once for each choice."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        one = waiting.pop()
        found = re.search(r"\{([^{}]*,[^{}]*)\}", one)
        if found is None:
            done.append(one)
        else:
            waiting += [one[: found.start()] + choice + one[found.end() :] for choice in found[1].split(",")]
        if len(done) + len(waiting) > MAX_ALTERNATIVES:
            raise BadGlob
    return done


MAX_PATTERN_CHARS = 1000
_JOB = "weftline.tools.builtin.searching:match_job"
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


def glob_job(pattern: bytes, paths: bytes) -> bytes:
    """Returns the numbers of the matching paths, which end in NUL. Runs in a worker with a time limit."""
    matches = Glob(pattern.decode()).matches
    found = (number for number, path in enumerate(paths.decode().split("\0")[:-1]) if matches(path))
    return array("I", found).tobytes()


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


MAX_ENTRIES = 100_000
MAX_SEARCHED_BYTES = 256 * 1024 * 1024
MAX_FILE_BYTES = 8 * 1024 * 1024
BATCH_BYTES = 4 * 1024 * 1024
MAX_LINE_CHARS = 500
_AT_ONCE = 16
_MARKS: dict[FileKind, str] = {"directory": "/", "file": "", "link": " (link)", "other": " (special)"}


class Match(Struct, frozen=True):
    """A matching line."""

    path: str
    number: int
    text: str

    def render(self) -> str:
        cut = self.text if len(self.text) <= MAX_LINE_CHARS else self.text[:MAX_LINE_CHARS] + "…"
        return f"{display_path(self.path)}:{self.number}:{cut}"


def parse_glob(pattern: str) -> Glob:
    try:
        return Glob(pattern)
    except BadGlob:
        raise ToolFailed(prompts.files.bad_glob(display_path(pattern[:100]))) from None


async def listed(place: Workplace, path: str, *, recursive: bool, skip: Collection[str]) -> Listing:
    return await place.context.list_files(
        await place.handle(), path, recursive=recursive, skip=skip, max_entries=MAX_ENTRIES
    )


class Search:
    """One search for lines. Afterwards, `left_out` says why something was not searched."""

    def __init__(self, place: Workplace, matcher: Matcher) -> None:
        self._place = place
        self._matcher = matcher
        self._too_large = 0
        self._left_out: list[str] = []

    @property
    def left_out(self) -> list[str]:
        skipped = [prompts.files.large_files_skipped(self._too_large)] if self._too_large else []
        return [*self._left_out, *skipped]

    async def lines(self, path: str, *, glob: str, skip: Collection[str]) -> AsyncIterator[Match]:
        """Yields the matching lines, in the order of paths and numbers."""
        batch = Batch()
        async for name, text in self._texts(path, await self._paths(path, glob=glob, skip=skip)):
            batch.add(name, text)
            if batch.size >= BATCH_BYTES:
                for found in await batch.matching(self._matcher):
                    yield found
                batch = Batch()
        for found in await batch.matching(self._matcher):
            yield found

    async def _paths(self, path: str, *, glob: str, skip: Collection[str]) -> list[str]:
        wanted = parse_glob(glob if "/" in glob else f"**/{glob}") if glob else None
        try:
            listing = await listed(self._place, path, recursive=True, skip=skip)
        except FileError as error:
            if error.kind != "not_directory":
                raise
            return [path]
        if not listing.complete:
            self._left_out.append(prompts.files.TOO_MANY_FILES)
        files = [entry for entry in listing.entries if entry.kind == "file"]
        return [file.path for file in files if wanted is None or wanted.matches(inside(file, listing.path))]

    async def _texts(self, asked: str, paths: list[str]) -> AsyncIterator[tuple[str, bytes]]:
        """Yields the text files, as valid UTF-8 with plain line breaks, so that matches do not depend on the tool."""
        left = MAX_SEARCHED_BYTES
        for start in range(0, len(paths), _AT_ONCE):
            some = paths[start : start + _AT_ONCE]
            read = await asyncio.gather(*(self._read(path, must=path == asked) for path in some))
            for file in read:
                if file is None or b"\0" in file.data:
                    continue
                if not file.complete:
                    self._too_large += 1
                    continue
                left -= len(file.data)
                if left < 0:
                    self._left_out.append(prompts.files.TOO_MUCH_TEXT)
                    return
                yield file.path, file.data.decode("utf-8", "replace").replace("\r\n", "\n").encode()

    async def _read(self, path: str, *, must: bool) -> FileBytes | None:
        try:
            return await self._place.context.read_file(await self._place.handle(), path, max_bytes=MAX_FILE_BYTES)
        except FileError:
            if must:
                raise
            return None  # removed meanwhile, or not readable


class Batch:
    """Several texts as one, so that matching takes one process rather than one per file."""

    def __init__(self) -> None:
        self.size = 0
        self._paths: list[str] = []
        self._texts: list[bytes] = []
        self._starts: list[int] = []
        self._first: list[int] = []
        self._lines = 0

    def add(self, path: str, text: bytes, *, first: int = 1) -> None:
        """Adds a text that is valid UTF-8; `first` is the number of its first line, if it is a part of a file."""
        text = text.removesuffix(b"\n")
        if not text:
            return
        self._paths.append(path)
        self._texts.append(text)
        self._starts.append(self._lines)
        self._first.append(first)
        self._lines += text.count(b"\n") + 1
        self.size += len(text)

    async def matching(self, matcher: Matcher) -> list[Match]:
        if not self._texts:
            return []
        found: list[Match] = []
        split: tuple[int, list[bytes]] = (-1, [])
        for number in await matcher.lines(b"\n".join(self._texts)):
            place = bisect_right(self._starts, number) - 1
            if split[0] != place:
                split = (place, self._texts[place].split(b"\n"))
            line = number - self._starts[place]
            found.append(Match(self._paths[place], self._first[place] + line, split[1][line].decode()))
        return found


def inside(entry: Entry, folder: str) -> str:
    """Returns the path of an entry relative to a directory above it."""
    return entry.path if folder == "." else entry.path.removeprefix(f"{folder}/")


def entry_line(entry: Entry, folder: str) -> str:
    return display_path(inside(entry, folder)) + _MARKS[entry.kind]
