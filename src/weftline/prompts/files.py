"""Texts of the tools for files, commands and lists."""

from __future__ import annotations

from collections.abc import Sequence

FILE_ERRORS = {
    "missing": "There is no such file or directory.",
    "directory": "It is a directory, not a file.",
    "not_directory": "A part of the path is a file, not a directory.",
    "outside": "It is outside the working directory. Only paths inside it can be used.",
    "special": "It is a device, a pipe or a socket, which cannot be read or written.",
    "linked": "It has a second name (a hard link), which may be outside the working directory.",
    "denied": "Permission denied.",
    "too_large": "It is too large for this tool.",
    "failed": "It cannot be reached.",
}
"""Why a file cannot be used, by kind of error."""


def _counted(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def file_error(path: str, kind: str, reason: str = "") -> str:
    return f"{path}: {FILE_ERRORS[kind]}" + (f" ({reason})" if reason and kind == "failed" else "")


# Reading

READ_FILE = "Reads a text file, from its beginning or from a given line."
NUMBERED = "Each line is preceded by its number and a tab, which are not part of the file."
"""Descriptions of `read_file`; the second one is for numbered lines."""
EMPTY_FILE = "(The file is empty.)"


def negative(name: str) -> str:
    return f"{name} must be 0 or more."


OFFSET_FROM_ONE = "offset must be 1 or more: it is the number of the first line to read."


def binary_file(path: str, size: int, *, more: bool = False) -> str:
    """`more` means that there are further bytes."""
    return f"[{path} is a binary file ({'over ' if more else ''}{size} bytes), which cannot be shown as text.]"


def offset_past_end(path: str, offset: int, lines: int) -> str:
    return f"{path} has {_counted(lines, 'line')}, so there is no line {offset}."


def lines_remain(first: int, last: int, total: int) -> str:
    return f"[Lines {first} to {last} of {total}. To continue, re-read with offset={last + 1}.]"


def line_cut(line: int, kept: int, size: int, total: int) -> str:
    more = f" To continue, re-read with offset={line + 1}." if line < total else ""
    return (
        f"[Line {line} of {total} is cut after {kept} of its {size} bytes: "
        f"re-read with offset={line}, limit=1 and max_bytes=0 for all of it.{more}]"
    )


def file_cut(size: int) -> str:
    return f"[The file is larger than {size} bytes; what follows cannot be read with this tool.]"


def unchanged_read(path: str, first: int, last: int) -> str:
    return (
        f"[{path} has not changed since you last read lines {first} to {last} of it: "
        "they are in an earlier result of read_file.]"
    )


# Writing and editing


def created(path: str, size: int, lines: int) -> str:
    return f"Created {path} ({_counted(lines, 'line')}, {_counted(size, 'byte')})."


def updated(path: str, size: int, lines: int) -> str:
    return f"Updated {path} ({_counted(lines, 'line')}, {_counted(size, 'byte')})."


def no_change_needed(path: str) -> str:
    return f"No change needed: {path} already has this content."


def edited(path: str, replacements: int) -> str:
    return f"Edited {path}: {_counted(replacements, 'replacement')}."


def edited_often(path: str, edits: int, replacements: int) -> str:
    return f"Edited {path}: applied {_counted(edits, 'edit')} ({_counted(replacements, 'replacement')})."


def multi_edit_failed(path: str, number: int, reason: str) -> str:
    return f"{path} was not changed, because edit #{number} cannot be applied: {reason}"


def edits_decided(path: str, *, applied: int, denied: int, failed: int) -> str:
    """`parse_edit_outcomes` parses this again, and so do programs that show a stored result."""
    rest = (f" · {denied} denied" if denied else "") + (f" · {failed} failed" if failed else "")
    return f"Edited {path}: {applied}/{applied + denied + failed} applied{rest}"


def edit_decided(number: int, outcome: str, reason: str = "") -> str:
    return f"#{number} {outcome}" + (f": {reason}" if reason else "")


NO_EDITS = "There are no edits. Give at least one."
OLD_STRING_EMPTY = "old_string is empty. To create or replace a whole file, use write_file."
NOTHING_TO_CHANGE = "old_string and new_string are the same."


def not_unique(count: int) -> str:
    return (
        f"old_string occurs {count} times in the file. Add lines around it until it occurs once, "
        "or set replace_all to change all of them."
    )


def not_found(preview: str) -> str:
    nearest = f" The nearest place in it:\n{preview}" if preview else ""
    return f"old_string is not in the file. It must match exactly, including white space.{nearest}"


def edit_refused(path: str, reason: str) -> str:
    return f"{path} was not changed: {reason}"


def read_first(path: str) -> str:
    return f"{path} was not changed: read it with read_file before you edit it."


def read_again(path: str) -> str:
    return f"{path} was not changed: it has changed since you last read it. Read it again with read_file, then edit it."


# Finding


def nothing_matches(what: str) -> str:
    return f"Nothing matches {what}."


EMPTY_DIRECTORY = "(The directory is empty.)"


def entries_remain(first: int, last: int, total: int) -> str:
    return f"[Entries {first} to {last} of {total}. To continue, call again with offset={last}.]"


def matches_remain(first: int, last: int) -> str:
    return f"[Matches {first} to {last}; more remain. To continue, call again with offset={last}.]"


def no_more_matches(offset: int, total: int) -> str:
    matches = "1 match" if total == 1 else f"{total} matches"
    return f"There is nothing at offset={offset}: the search found {matches}."


def not_all_searched(reasons: Sequence[str]) -> str:
    return f"[Not everything was searched: {'; '.join(reasons)}.]"


TOO_MANY_FILES = "there are too many files; name a directory in `path`"
TOO_MUCH_TEXT = "there is too much text; name a directory in `path`"


def large_files_skipped(count: int) -> str:
    return f"{_counted(count, 'very large file')} left out"


def bad_pattern(reason: str) -> str:
    return f"The pattern is not a valid regular expression: {reason}."


def bad_glob(pattern: str) -> str:
    return f"The pattern {pattern} is too long or too complicated."


def pattern_too_long(max_chars: int) -> str:
    return f"The pattern is longer than {max_chars} characters."


PATTERN_TOO_COSTLY = "The pattern takes too long to match. Use a simpler one: no nested repetitions."


# Commands and lists


def truncated_head(dropped: int) -> str:
    return f"…({dropped} bytes truncated from head)…"


STDERR = "[stderr]"


def command_timed_out(timeout_s: float) -> str:
    return f"[The command did not finish within {timeout_s:g} seconds and was killed with all its children.]"


def command_ended(exit_code: int, took_ms: int) -> str:
    return f"(exit {exit_code}, {took_ms}ms)"


def timeout_limit(max_s: float) -> str:
    return f"timeout_s must be more than 0 and at most {max_s:g}."


EMPTY_TODO = "The list is empty."


def todo_too_long(max_items: int, max_chars: int) -> str:
    return f"The list was not changed: it may have at most {max_items} items, of at most {max_chars} characters each."
