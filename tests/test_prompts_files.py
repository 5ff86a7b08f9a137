"""The texts of the tools for files and commands, word for word: whoever changes one sees it here and reads it aloud."""

from __future__ import annotations

from typing import get_args

import pytest

from prompt_texts import filled_in, functions
from weftline import prompts
from weftline.tools.contexts.base import FileErrorKind

CONSTANTS: dict[str, str] = {
    "READ_FILE": "Reads a text file, from its beginning or from a given line.",
    "NUMBERED": "Each line is preceded by its number and a tab, which are not part of the file.",
    "EMPTY_FILE": "(The file is empty.)",
    "OFFSET_FROM_ONE": "offset must be 1 or more: it is the number of the first line to read.",
    "NO_EDITS": "There are no edits. Give at least one.",
    "OLD_STRING_EMPTY": "old_string is empty. To create or replace a whole file, use write_file.",
    "NOTHING_TO_CHANGE": "old_string and new_string are the same.",
    "EMPTY_DIRECTORY": "(The directory is empty.)",
    "TOO_MANY_FILES": "there are too many files; name a directory in `path`",
    "TOO_MUCH_TEXT": "there is too much text; name a directory in `path`",
    "PATTERN_TOO_COSTLY": "The pattern takes too long to match. Use a simpler one: no nested repetitions.",
    "STDERR": "[stderr]",
    "EMPTY_TODO": "The list is empty.",
}
ERROR_KINDS: dict[str, str] = {
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
FUNCTIONS: list[tuple[str, tuple[object, ...], dict[str, object], str]] = [
    ("file_error", ("f", "denied", "Read-only file system"), {}, "f: Permission denied."),
    ("file_error", ("f", "failed", "File name too long"), {}, "f: It cannot be reached. (File name too long)"),
    ("negative", ("limit",), {}, "limit must be 0 or more."),
    ("binary_file", ("f", 9), {}, "[f is a binary file (9 bytes), which cannot be shown as text.]"),
    ("binary_file", ("f", 9), {"more": True}, "[f is a binary file (over 9 bytes), which cannot be shown as text.]"),
    ("offset_past_end", ("f", 3, 1), {}, "f has 1 line, so there is no line 3."),
    ("lines_remain", (1, 20, 50), {}, "[Lines 1 to 20 of 50. To continue, re-read with offset=21.]"),
    (
        "line_cut",
        (3, 100, 900, 4),
        {},
        "[Line 3 of 4 is cut after 100 of its 900 bytes: re-read with offset=3, limit=1 and max_bytes=0 for all of it. "
        "To continue, re-read with offset=4.]",
    ),
    (
        "line_cut",
        (4, 100, 900, 4),
        {},
        "[Line 4 of 4 is cut after 100 of its 900 bytes: "
        "re-read with offset=4, limit=1 and max_bytes=0 for all of it.]",
    ),
    (
        "file_cut",
        (100,),
        {},
        "[The file is larger than 100 bytes; what follows cannot be read with this tool.]",
    ),
    (
        "unchanged_read",
        ("f", 1, 20),
        {},
        "[f has not changed since you last read lines 1 to 20 of it: they are in an earlier result of read_file.]",
    ),
    ("created", ("f", 1, 1), {}, "Created f (1 line, 1 byte)."),
    ("updated", ("f", 10, 2), {}, "Updated f (2 lines, 10 bytes)."),
    ("no_change_needed", ("f",), {}, "No change needed: f already has this content."),
    ("edited", ("f", 1), {}, "Edited f: 1 replacement."),
    ("edited", ("f", 2), {}, "Edited f: 2 replacements."),
    ("edited_often", ("f", 2, 3), {}, "Edited f: applied 2 edits (3 replacements)."),
    ("multi_edit_failed", ("f", 2, "why."), {}, "f was not changed, because edit #2 cannot be applied: why."),
    ("edits_decided", ("f",), {"applied": 1, "denied": 2, "failed": 3}, "Edited f: 1/6 applied · 2 denied · 3 failed"),
    ("edits_decided", ("f",), {"applied": 1, "denied": 0, "failed": 0}, "Edited f: 1/1 applied"),
    ("edit_decided", (1, "applied"), {}, "#1 applied"),
    ("edit_decided", (2, "failed", "why."), {}, "#2 failed: why."),
    (
        "not_unique",
        (2,),
        {},
        "old_string occurs 2 times in the file. Add lines around it until it occurs once, or set replace_all to change "
        "all of them.",
    ),
    ("not_found", ("",), {}, "old_string is not in the file. It must match exactly, including white space."),
    (
        "not_found",
        ("4\tx",),
        {},
        "old_string is not in the file. It must match exactly, including white space. The nearest place in it:\n4\tx",
    ),
    ("edit_refused", ("f", "why."), {}, "f was not changed: why."),
    ("read_first", ("f",), {}, "f was not changed: read it with read_file before you edit it."),
    (
        "read_again",
        ("f",),
        {},
        "f was not changed: it has changed since you last read it. Read it again with read_file, then edit it.",
    ),
    ("nothing_matches", ("*.py",), {}, "Nothing matches *.py."),
    ("entries_remain", (1, 10, 20), {}, "[Entries 1 to 10 of 20. To continue, call again with offset=10.]"),
    ("matches_remain", (1, 10), {}, "[Matches 1 to 10; more remain. To continue, call again with offset=10.]"),
    ("no_more_matches", (9, 8), {}, "There is nothing at offset=9: the search found 8 matches."),
    ("not_all_searched", (["this", "that"],), {}, "[Not everything was searched: this; that.]"),
    ("large_files_skipped", (2,), {}, "2 very large files left out"),
    ("bad_pattern", ("missing )",), {}, "The pattern is not a valid regular expression: missing )."),
    ("bad_glob", ("{{",), {}, "The pattern {{ is too long or too complicated."),
    ("pattern_too_long", (1000,), {}, "The pattern is longer than 1000 characters."),
    ("truncated_head", (7,), {}, "…(7 bytes truncated from head)…"),
    (
        "command_timed_out",
        (2.5,),
        {},
        "[The command did not finish within 2.5 seconds and was killed with all its children.]",
    ),
    ("command_ended", (1, 20), {}, "(exit 1, 20ms)"),
    ("timeout_limit", (600.0,), {}, "timeout_s must be more than 0 and at most 600."),
    (
        "todo_too_long",
        (9, 8),
        {},
        "The list was not changed: it may have at most 9 items, of at most 8 characters each.",
    ),
]


def test_the_fixed_texts() -> None:
    found = {name: value for name, value in vars(prompts.files).items() if isinstance(value, str) and name.isupper()}
    assert found == CONSTANTS


def test_every_error_of_a_file_has_its_words() -> None:
    assert prompts.files.FILE_ERRORS == ERROR_KINDS
    assert set(ERROR_KINDS) == set(get_args(FileErrorKind))


@pytest.mark.parametrize(("name", "given", "options", "text"), FUNCTIONS)
def test_the_texts_that_are_filled_in(
    name: str, given: tuple[object, ...], options: dict[str, object], text: str
) -> None:
    assert filled_in(prompts.files, name, given, options) == text


def test_no_text_is_left_out_here() -> None:
    assert functions(prompts.files) == {name for name, *_ in FUNCTIONS}
