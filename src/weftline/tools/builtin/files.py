"""The tools for files. An agent may only access files below `root`, and with `write=False` it may only read them.

agent = Agent("openai:gpt-5", tools=[files("./project", write=False)])
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, cast

import msgspec

from weftline import prompts
from weftline.text.canonical import canonical_value
from weftline.tools.arguments import StaleArguments, object_args
from weftline.tools.base import Reconciled, Tool, ToolContext, ToolFailed, ToolOutput
from weftline.tools.builtin.editing import KEY, Changing, Edit, Verdict, sealed_verdicts
from weftline.tools.builtin.reading import (
    LIMIT,
    MAX_BYTES,
    FileMemory,
    checked_slice,
    display_path,
    is_binary,
    page,
    parse_path,
)
from weftline.tools.builtin.searching import (
    Match,
    Matcher,
    Search,
    entry_line,
    inside,
    installed_ripgrep,
    listed,
    parse_glob,
)
from weftline.tools.builtin.workplace import Workplace, WorkplaceTools, errors_for_model, off_the_loop, workplace
from weftline.tools.contexts.base import ExecutionContext
from weftline.tools.decorator import tool
from weftline.tools.function import FunctionTool
from weftline.tools.results import stale_output
from weftline.tools.workers import shared_workers

SKIPPED = frozenset(
    {".git", ".hg", ".svn", ".tox", ".nox", ".venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache"}
)
"""Directories that `glob` and `grep` leave out unless they start inside one, as searches rarely mean them."""
HEAD_LIMIT = 250
MAX_ENTRIES = 1000
TIMEOUT_S = 120.0


class Files(WorkplaceTools):
    """The toolset for files. `tools` has the single tools, to pick some of them."""


def files(
    root: str | os.PathLike[str] = ".",
    *,
    write: bool = True,
    context: ExecutionContext | None = None,
    line_numbers: bool = True,
    require_read_before_edit: bool = False,
    dedup_reads: bool = True,
    skip: Collection[str] = SKIPPED,
    ripgrep: bool = True,
) -> Files:
    """`read_file`, `list_files`, `glob` and `grep`, and with `write` also `write_file`, `edit` and `multi_edit`.

    Args:
        root: Nothing outside this directory is read or written, not even through links and `..`.
        write: Whether files may be changed.
        context: Where the files are; this machine by default. A context without files has no such tools.
        line_numbers: Whether `read_file` puts a number and a tab before each line.
        require_read_before_edit: Refuses to edit a file that the model has not read as it is now.
        dedup_reads: Answers a repeated read of an unchanged file with a note instead of the text.
        skip: Directories that `glob` and `grep` do not enter.
        ripgrep: Whether `grep` uses ripgrep if it is installed; the results are the same.
    """
    place = workplace(context, root)
    if not place.context.capabilities.filesystem:
        return Files(place, ())
    tools: list[Tool] = [
        _read_file(place, line_numbers=line_numbers, dedup=dedup_reads),
        _list_files(place),
        _glob(place, skip=frozenset(skip)),
        _grep(place, skip=frozenset(skip), ripgrep=ripgrep),
    ]
    if write:
        changing = Changing(place, require_read=require_read_before_edit)
        tools += [_write_file(changing), _edit(changing), _multi_edit(changing)]
    return Files(place, tools)


def _read_file(place: Workplace, *, line_numbers: bool, dedup: bool) -> Tool:
    description = f"{prompts.files.READ_FILE} {prompts.files.NUMBERED}" if line_numbers else prompts.files.READ_FILE

    @tool(description=description, effect="read", timeout_s=TIMEOUT_S)
    async def read_file(
        context: ToolContext, path: str, offset: int = 1, limit: int = LIMIT, max_bytes: int = MAX_BYTES
    ) -> str:
        """One page of a file.

        Args:
            path: The file, relative to the working directory.
            offset: The number of the first line to read, from 1.
            limit: How many lines to read at most; 0 for all.
            max_bytes: How many bytes to read at most; 0 for all.
        """
        wanted = checked_slice(offset, limit, max_bytes)
        async with errors_for_model():
            file = await place.context.read_file(await place.handle(), parse_path(path))
        if await off_the_loop(lambda: is_binary(file.data), size=len(file.data)):
            return prompts.files.binary_file(display_path(path), len(file.data), more=not file.complete)
        memory = FileMemory(context.state)
        part = await off_the_loop(
            lambda: page(file.data, wanted, path=display_path(path), numbered=line_numbers, complete=file.complete),
            size=len(file.data),
        )
        if dedup and part.last and memory.has_seen(file.path, file.data, wanted):
            return prompts.files.unchanged_read(display_path(path), part.first, part.last)
        memory.saw(file.path, file.data, wanted)
        return part.text

    return read_file


def _list_files(place: Workplace) -> Tool:
    @tool(effect="read", timeout_s=TIMEOUT_S)
    async def list_files(path: str = ".", offset: int = 0) -> str:
        """Lists a directory, one entry per line; names of directories end in a slash.

        Args:
            path: The directory, relative to the working directory.
            offset: How many entries to skip, to continue a long list.
        """
        async with errors_for_model():
            listing = await listed(place, parse_path(path), recursive=False, skip=())
        lines = [entry_line(entry, listing.path) for entry in listing.entries]
        return _some(lines, offset, complete=listing.complete) if lines else prompts.files.EMPTY_DIRECTORY

    return list_files


def _glob(place: Workplace, *, skip: Collection[str]) -> Tool:
    @tool(effect="read", timeout_s=TIMEOUT_S)
    async def glob(pattern: str, path: str = ".", offset: int = 0) -> str:
        """Finds files and directories by name, one path per line.

        Args:
            pattern: Such as `src/**/*.py`; `**` stands for any number of directories, `{a,b}` for either.
            path: The directory that the pattern starts in, relative to the working directory.
            offset: How many paths to skip, to continue a long list.
        """
        wanted = parse_glob(pattern)
        async with errors_for_model():
            listing = await listed(place, parse_path(path), recursive=True, skip=skip)
        found = await shared_workers().run(
            lambda: [
                display_path(entry.path) + ("/" if entry.kind == "directory" else "")
                for entry in listing.entries
                if wanted.matches(inside(entry, listing.path))
            ]
        )
        if not found:
            return prompts.files.nothing_matches(display_path(pattern))
        return _some(found, offset, complete=listing.complete)

    return glob


def _grep(place: Workplace, *, skip: Collection[str], ripgrep: bool) -> Tool:
    @tool(effect="read", timeout_s=TIMEOUT_S)
    async def grep(
        pattern: str,
        path: str = ".",
        glob: str = "",
        ignore_case: bool = False,
        head_limit: int = HEAD_LIMIT,
        offset: int = 0,
    ) -> str:
        """Finds lines in text files by a regular expression. Each match is a line `path:number:line`.

        Args:
            pattern: A regular expression in Python's syntax, matched against each line.
            path: The directory or file to search, relative to the working directory.
            glob: Only files whose path matches this, such as `*.py` or `src/**/*.ts`.
            ignore_case: Whether to ignore case.
            head_limit: How many matches to return at most; 0 for all.
            offset: How many matches to skip, to continue after a limit.
        """
        for name, value in (("head_limit", head_limit), ("offset", offset)):
            if value < 0:
                raise ToolFailed(prompts.files.negative(name))
        matcher = Matcher(pattern, ignore_case=ignore_case, ripgrep=installed_ripgrep() if ripgrep else None)
        search = Search(place, matcher)
        found: list[Match] = []
        more = False
        seen = 0
        async with errors_for_model():
            async for match in search.lines(parse_path(path), glob=glob, skip=skip):
                seen += 1
                if seen <= offset:
                    continue
                if head_limit and len(found) == head_limit:
                    more = True
                    break
                found.append(match)
        notes = [prompts.files.matches_remain(offset + 1, offset + len(found))] if more else []
        notes += [prompts.files.not_all_searched(search.left_out)] if search.left_out else []
        if not found:
            nothing = (
                prompts.files.no_more_matches(offset, seen)
                if seen
                else prompts.files.nothing_matches(display_path(pattern))
            )
            return "\n".join([nothing, *notes])
        return "\n".join([*(match.render() for match in found), *notes])

    return grep


class WriteFile(FunctionTool[..., Any]):
    """The tool `write_file`. `prior_content` returns what it is about to replace."""

    changing: Changing

    async def prior_content(self, args: bytes) -> str | None:
        """Returns the content of the file that a call would replace; None if it does not exist or is not text."""
        path = msgspec.json.decode(args, type=dict[str, object]).get("path")
        try:
            async with errors_for_model():
                before = await self.changing.content(str(path))
        except ToolFailed:
            return None
        return None if before is None or is_binary(before.data) else before.data.decode("utf-8", "replace")


def _write_file(changing: Changing) -> Tool:
    async def write_file(context: ToolContext, path: str, content: str) -> str:
        """Creates a file or replaces its whole content. Missing directories are created.

        Args:
            path: The file, relative to the working directory.
            content: The whole content of the file.
        """
        return await changing.write(path, content, context)

    made = WriteFile(write_file, effect="idempotent", timeout_s=TIMEOUT_S)
    made.changing = changing
    return made


def _edit(changing: Changing) -> Tool:
    async def was_edited(
        context: ToolContext, path: str, old_string: str, new_string: str, replace_all: bool
    ) -> Reconciled:
        return await changing.reconcile(path, [Edit(old_string, new_string, replace_all)], None, context)

    @tool(reconcile=was_edited, timeout_s=TIMEOUT_S)
    async def edit(context: ToolContext, path: str, old_string: str, new_string: str, replace_all: bool = False) -> str:
        """Replaces a piece of text in a file.

        Args:
            path: The file, relative to the working directory.
            old_string: The text to replace, exactly as it is in the file; it must occur once.
            new_string: What to put in its place.
            replace_all: Whether to replace it wherever it occurs.
        """
        return await changing.edit(path, [Edit(old_string, new_string, replace_all)], context, several=False)

    return edit


class MultiEdit(FunctionTool[..., Any]):
    """The tool `multi_edit`, which also takes what `inject_edit_outcomes` adds to its arguments."""

    changing: Changing

    async def prepare(self, args: str) -> bytes:
        given, _ = object_args(args)
        verdicts = sealed_verdicts(given)
        if verdicts is None:
            return await super().prepare(args)
        plain = {name: value for name, value in given.items() if name != KEY}
        final = await super().prepare(canonical_value(plain).decode())
        return canonical_value({**msgspec.json.decode(final), KEY: verdicts})

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        plain, verdicts = _without_verdicts(args)
        if verdicts is None:
            return await super().invoke(plain, context)
        try:
            given = self.parameters.keywords(plain)
        except StaleArguments as error:
            return stale_output(error)
        return await self._outcome(
            lambda: self.changing.edit_decided(given["path"], given["edits"], verdicts, context), context
        )

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        plain, verdicts = _without_verdicts(args)
        given = self.parameters.keywords(plain)
        return await self.changing.reconcile(given["path"], given["edits"], verdicts, context)


def _without_verdicts(args: bytes) -> tuple[bytes, list[Verdict] | None]:
    if KEY.encode() not in args:
        return args, None
    given = msgspec.json.decode(args, type=dict[str, Any])
    found: object = given.pop(KEY, None)
    if isinstance(found, dict):  # as a gate left it
        found = cast("dict[str, object]", found).get("verdicts")
    return canonical_value(given), cast("list[Verdict] | None", found)


def _multi_edit(changing: Changing) -> Tool:
    async def multi_edit(context: ToolContext, path: str, edits: list[Edit]) -> str:
        """Makes several replacements in one file, in order, all or none.

        Args:
            path: The file, relative to the working directory.
            edits: What to replace, each in the result of the one before.
        """
        if not edits:
            raise ToolFailed(prompts.files.NO_EDITS)
        return await changing.edit(path, edits, context, several=True)

    made = MultiEdit(multi_edit, reconcile=changing.reconcile, timeout_s=TIMEOUT_S)
    made.changing = changing
    return made


def _some(lines: list[str], offset: int, *, complete: bool) -> str:
    if offset < 0:
        raise ToolFailed(prompts.files.negative("offset"))
    some = lines[offset : offset + MAX_ENTRIES]
    if not some:
        return prompts.files.no_more_matches(offset, len(lines))
    last = offset + len(some)
    notes = [prompts.files.entries_remain(offset + 1, last, len(lines))] if last < len(lines) else []
    notes += [] if complete else [prompts.files.not_all_searched([prompts.files.TOO_MANY_FILES])]
    return "\n".join([*some, *notes])
