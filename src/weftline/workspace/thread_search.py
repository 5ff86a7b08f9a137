"""Searches the files of a thread, by name and by line. The matching is done in processes with a time limit.

Whatever the pattern and the files, a search is answered or refused after bounded work, and has a few megabytes at once.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from weakref import WeakKeyDictionary

from msgspec import Struct

from weftline.errors import InvalidRequest, invalid_field
from weftline.store.database import Query
from weftline.store.records import thread_files as rows
from weftline.store.records.thread_files import FileRow
from weftline.store.records.threads import ThreadRow
from weftline.tools.base import ToolFailed
from weftline.tools.builtin.searching import (
    BATCH_BYTES,
    MAX_SEARCHED_BYTES,
    BadGlob,
    Batch,
    Glob,
    Match,
    Matcher,
    installed_ripgrep,
)
from weftline.work.heavy import off_loop
from weftline.work.processes import GaveUp, shared_workers
from weftline.work.turns import FairSemaphore
from weftline.workspace.context import Workspaces
from weftline.workspace.thread_contents import reading
from weftline.workspace.thread_files import place_of

MAX_LINES = 10_000
MAX_LINE_CHARS = 500
SEARCH_S = 60.0
_AT_ONCE = 2
"""How many searches for lines of one workspace are under way; further ones wait."""
_JOB = "weftline.tools.builtin.searching:glob_job"
_searches: WeakKeyDictionary[asyncio.AbstractEventLoop, FairSemaphore] = WeakKeyDictionary()


class Line(Struct, frozen=True):
    """A line that matches; `line` counts from 1."""

    line: int
    text: str


class FileLines(Struct, frozen=True):
    path: str
    matches: tuple[Line, ...]


async def find_files(at: Workspaces, thread: ThreadRow, pattern: str) -> list[str]:
    """Returns the paths of the files that match. A pattern without a slash matches names in every folder.

    Raises `InvalidRequest` for a pattern that is not one, or that takes too long.
    """
    _check(pattern.strip("/"))
    name = pattern.strip("/")
    wanted = name if "/" in pattern else f"**/{name}"
    try:
        Glob(wanted)
    except BadGlob:
        raise invalid_field("pattern", "is too long or has too many alternatives.") from None
    paths = [one.path for one in await at.records.read(rows.contents_of_files(thread.key), heavy=True)]
    listed = "".join([path[1:] + "\0" for path in paths])
    try:
        reply = await shared_workers().run(_JOB, wanted.encode(), listed.encode())
    except GaveUp:
        raise invalid_field("pattern", "takes too long to match; use a simpler one.") from None
    numbers = array("I")
    numbers.frombytes(reply)
    return [paths[number] for number in numbers]


async def grep_files(at: Workspaces, thread: ThreadRow, pattern: str) -> list[FileLines]:
    """Returns the lines that a regular expression matches, by file. Files with a NUL are not searched.

    Raises `InvalidRequest` for a pattern that is not one or takes too long, and for too much to search or to return.
    """
    _check(pattern)
    try:
        matcher = Matcher(pattern, ignore_case=False, ripgrep=installed_ripgrep())
        async with _turns().place(thread.workspace), asyncio.timeout(SEARCH_S):
            found = await _Search(at, thread, matcher).lines()
    except ToolFailed as error:
        raise invalid_field("pattern", str(error)) from None
    except TimeoutError:
        raise InvalidRequest("The search takes too long; use a simpler pattern.") from None
    return [
        FileLines(path, tuple([Line(one.number, _cut(one.text)) for one in lines]))
        for path, lines in groupby(found, key=attrgetter("path"))
    ]


def _check(pattern: str) -> None:
    if not pattern:
        raise invalid_field("pattern", "must not be empty.")
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise invalid_field("pattern", "must be Unicode text.") from None


class _Search:
    def __init__(self, at: Workspaces, thread: ThreadRow, matcher: Matcher) -> None:
        self._at = at
        self._thread = thread
        self._matcher = matcher
        self._left = MAX_SEARCHED_BYTES
        self._batch = Batch()
        self._found: list[Match] = []

    async def lines(self) -> Sequence[Match]:
        for one in await self._at.records.read(rows.contents_of_files(self._thread.key), heavy=True):
            if one.content is not None:
                await self._read(one.path)
        await self._flush()
        return self._found

    async def _read(self, path: str) -> None:
        """Adds the parts of a text file to the batch; those of a file that turns out to be binary are dropped."""
        first = 1
        async with reading(self._at, partial(_find, self._thread.key, path)) as found:
            if found is None:
                return  # it was removed meanwhile
            async for part in _parts(found.pieces):
                self._left -= len(part)
                if self._left < 0:
                    raise InvalidRequest(f"One search reads at most {MAX_SEARCHED_BYTES:,} bytes of text.")
                if b"\0" in part:
                    await self._flush()
                    self._found = [one for one in self._found if one.path != path]
                    return
                text = await off_loop(partial(_utf8, part), size=len(part))
                self._batch.add(path, text, first=first)
                first += text.count(b"\n")
                if self._batch.size >= BATCH_BYTES:
                    await self._flush()

    async def _flush(self) -> None:
        batch, self._batch = self._batch, Batch()
        self._found += await batch.matching(self._matcher)
        if len(self._found) > MAX_LINES:
            raise InvalidRequest(f"More than {MAX_LINES:,} lines match; use a narrower pattern.")


def _find(thread: int, path: str) -> Query[FileRow | None]:
    return (yield from rows.find(thread, *place_of(path)))


async def _parts(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields whole lines together, about a chunk at a time. A line that is longer than a batch is cut."""
    rest = b""
    async for piece in pieces:
        head, newline, tail = piece.rpartition(b"\n")
        if newline:
            yield rest + head + newline
            rest = tail
        else:
            rest += piece
        if b"\0" in rest or len(rest) >= BATCH_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest


def _utf8(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").replace("\r\n", "\n").encode()


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE_CHARS else text[:MAX_LINE_CHARS] + "…"


def _turns() -> FairSemaphore:
    loop = asyncio.get_running_loop()
    found = _searches.get(loop)
    if found is None:
        found = _searches[loop] = FairSemaphore(per_owner=_AT_ONCE)
    return found
