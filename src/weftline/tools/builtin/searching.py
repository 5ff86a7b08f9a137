"""Finds files by name and lines by content: the context lists and reads files, the matching is done here."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Collection

from msgspec import Struct

from weftline import prompts
from weftline.tools.base import ToolFailed
from weftline.tools.builtin.globbing import BadGlob, Glob
from weftline.tools.builtin.matching import Matcher
from weftline.tools.builtin.paths import display_path
from weftline.tools.builtin.workplace import Workplace
from weftline.tools.contexts.base import Entry, FileBytes, FileError, FileKind, Listing

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
        batch = _Batch()
        async for name, text in self._texts(path, await self._paths(path, glob=glob, skip=skip)):
            batch.add(name, text)
            if batch.size >= BATCH_BYTES:
                for found in await batch.matching(self._matcher):
                    yield found
                batch = _Batch()
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


class _Batch:
    """Several files as one text, so that matching takes one process rather than one per file."""

    def __init__(self) -> None:
        self.size = 0
        self._paths: list[str] = []
        self._texts: list[bytes] = []
        self._starts: list[int] = []
        self._lines = 0

    def add(self, path: str, text: bytes) -> None:
        text = text.removesuffix(b"\n")
        if not text:
            return
        self._paths.append(path)
        self._texts.append(text)
        self._starts.append(self._lines)
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
            found.append(Match(self._paths[place], line + 1, split[1][line].decode()))
        return found


def inside(entry: Entry, folder: str) -> str:
    """Returns the path of an entry relative to a directory above it."""
    return entry.path if folder == "." else entry.path.removeprefix(f"{folder}/")


def entry_line(entry: Entry, folder: str) -> str:
    return display_path(inside(entry, folder)) + _MARKS[entry.kind]
