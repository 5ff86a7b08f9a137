"""What models read about skills, word for word: whoever changes a text sees it here and reads it aloud."""

from __future__ import annotations

import pytest

from prompt_texts import constants, filled_in, functions
from weftline import prompts

CONSTANTS: dict[str, str] = {
    "CATALOG": "Skills are instructions, files and scripts for particular kinds of task. When a task fits a skill's "
    "description, call skills_use with its name before you begin, and follow what it says. Use only the skills "
    "that the task needs.",
    "CONTENT_START": "<skill_content",
    "NOT_A_FILE": "it is not a file",
    "NOT_A_NAME": "its name contains a NUL character",
    "NOT_RELATIVE": "its path must be relative to the skill's directory",
    "PATH_TOO_LONG": "its path is too long",
    "OUTSIDE": "it is outside the skill's directory",
    "LINKS_IN_A_CIRCLE": "its links form a loop",
    "LINK_OUT": "it is a link that leads out of the skill's directory",
    "NOT_OPENED": "it could not be opened",
}
FULL: dict[str, object] = {
    "directory": "/skills/pdf",
    "compatibility": "Needs <poppler>",
    "allowed_tools": "Read",
    "resources": ["a.md", "b & c"],
    "left": "(2 more files of this skill are not listed)",
}
EMPTY: dict[str, object] = {"directory": "", "compatibility": "", "allowed_tools": "", "resources": (), "left": ""}
FUNCTIONS: list[tuple[str, tuple[object, ...], dict[str, object], str]] = [
    ("catalog", ([],), {}, ""),
    (
        "catalog",
        ([("docx", "Word."), ("pdf", "PDF & more.")],),
        {},
        f"{CONSTANTS['CATALOG']}\n\n<available_skills>\n"
        "<skill>\n<name>docx</name>\n<description>Word.</description>\n</skill>\n"
        "<skill>\n<name>pdf</name>\n<description>PDF &amp; more.</description>\n</skill>\n"
        "</available_skills>",
    ),
    ("skill_content", ("pdf", "Body."), EMPTY, '<skill_content name="pdf">\nBody.\n\n</skill_content>'),
    (
        "skill_content",
        ("pdf", "Body."),
        FULL,
        '<skill_content name="pdf">\nBody.\n\nDirectory of this skill: /skills/pdf\n'
        "Paths in this skill are relative to that directory. Read its files with skills_read and run its scripts with "
        "skills_run_script.\n"
        "Compatibility: Needs &lt;poppler&gt;\nAllowed tools: Read\n"
        "<skill_resources>\n<file>a.md</file>\n<file>b &amp; c</file>\n</skill_resources>\n"
        "(2 more files of this skill are not listed)\n</skill_content>",
    ),
    ("resources_left", (1200,), {"at_least": False}, "(1,200 more files of this skill are not listed)"),
    ("resources_left", (2,), {"at_least": True}, "(at least 2 more files of this skill are not listed)"),
    ("command_output_cut", ("end", 7), {}, "…(7 bytes truncated from head)…\nend"),
    ("command_failed", ("ls x", 2, "no x"), {}, "[The command `ls x` failed with exit code 2: no x]"),
    ("command_failed", ("ls x", 2, ""), {}, "[The command `ls x` failed with exit code 2]"),
    (
        "command_timed_out",
        ("sleep 99", 30.0),
        {},
        "[The command `sleep 99` did not finish within 30 seconds and was stopped]",
    ),
    ("command_not_started", ("ls", "no shell"), {}, "[The command `ls` could not be started: no shell]"),
    (
        "command_skipped",
        ("ls",),
        {},
        "[The command `ls` was not run: this skill has too many commands, or they take too long]",
    ),
    (
        "already_active",
        ("pdf",),
        {},
        "The skill pdf is already active; its instructions are above. Continue with them.",
    ),
    (
        "unknown_skill",
        ("pfd", " Did you mean 'pdf'?"),
        {},
        "There is no skill named 'pfd'. Did you mean 'pdf'? Use one of the skills listed in your instructions.",
    ),
    (
        "too_many_active",
        ("pdf", ["a", "b"], 2),
        {},
        "The skill pdf was not activated: at most 2 skills may be active at once in this run. Active now: a, b. "
        "Continue with those, or without a skill.",
    ),
    (
        "too_many_active",
        ("pdf", ["a"], 1),
        {},
        "The skill pdf was not activated: at most one skill may be active at once in this run. Active now: a. "
        "Continue with those, or without a skill.",
    ),
    ("not_active", ("pdf",), {}, "The skill 'pdf' is not active. Call skills_use with its name first."),
    ("no_files", ("pdf",), {}, "The skill pdf has no files."),
    ("file_refused", ("../x", "it is not a file"), {}, "'../x' cannot be read: it is not a file."),
    (
        "file_missing",
        ("x",),
        {},
        "There is no file 'x' in this skill. Its files are listed in the result of skills_use.",
    ),
    ("file_binary", ("x", 1200), {}, "[x is a binary file (1,200 bytes), which cannot be shown as text]"),
    ("file_empty", ("x",), {}, "[x is empty]"),
    ("file_ends_before", ("x", 9, 4), {}, "[x has only 4 lines; there is nothing at offset=9]"),
    ("file_goes_on", ("abc",), {"next_offset": 3}, "abc\n[More lines follow; read on with offset=3]"),
    (
        "file_line_cut",
        ("abc",),
        {"next_offset": 3},
        "abc\n[This line is too long and was cut; read on after it with offset=3]",
    ),
    (
        "script_not_runnable",
        ("x.csv",),
        {},
        "'x.csv' cannot be run: it is not executable, has no #! line, and its file type is not supported. "
        "Read it with skills_read instead.",
    ),
    (
        "script_untrusted",
        ("pdf",),
        {},
        "The skill pdf comes with the project and is not trusted, so its scripts may not be run. Follow its "
        "instructions without them, or say that the script is needed.",
    ),
    ("script_not_started", ("x.py", "No such file"), {}, "'x.py' could not be started: No such file."),
    (
        "script_timed_out",
        ("so far", 60.0),
        {},
        "so far\n[The script did not finish within 60 seconds and was stopped. Parts of it may have taken effect.]",
    ),
    ("script_done", ("out", "err"), {"exit_code": 1, "elapsed_ms": 5}, "out\nstderr:\nerr\n(exit 1, 5ms)"),
    ("script_done", ("", ""), {"exit_code": 0, "elapsed_ms": 5}, "(exit 0, 5ms)"),
    (
        "tool_not_allowed",
        ("pay", ["a"], ["Read", "Edit"]),
        {},
        "Blocked: pay may not be called this way now; the active skill a allows only Read, Edit, besides the skills "
        "tools.",
    ),
    (
        "tool_not_allowed",
        ("pay", ["a", "b", "c"], []),
        {},
        "Blocked: pay may not be called this way now; the active skills a, b and c allow no tools, besides the skills "
        "tools.",
    ),
]


def test_the_fixed_texts() -> None:
    assert {name: value for name, value in constants(prompts.skills).items() if not name.startswith("_")} == CONSTANTS


@pytest.mark.parametrize(("name", "given", "options", "text"), FUNCTIONS)
def test_the_texts_that_are_filled_in(
    name: str, given: tuple[object, ...], options: dict[str, object], text: str
) -> None:
    assert filled_in(prompts.skills, name, given, options) == text


def test_no_text_is_left_out_here() -> None:
    assert functions(prompts.skills) == {name for name, *_ in FUNCTIONS}
