"""What models read because of an agent's behavior, word for word."""

from __future__ import annotations

import pytest

from prompt_texts import constants, filled_in, functions
from weftline import prompts

CONSTANTS: dict[str, str] = {
    "BUILD": "You work on the files of a project. Look before you change anything, make the smallest change that does "
    "what was asked, and check it with the project's own commands. Say at the end what you changed and what you "
    "checked.",
    "PLAN": "You plan work on the files of a project, and change nothing. Read what matters, then answer with a plan: "
    "the steps in order, the files that each one touches, how to check it, and what is uncertain.",
    "SEARCH_NEEDS_QUERY": "Say what to look for: names, a query or a server.",
    "SEARCH_LIMIT": "limit must be above 0.",
}
FUNCTIONS: list[tuple[str, tuple[object, ...], dict[str, object], str]] = [
    (
        "compacted",
        ("look", 900),
        {},
        "[The result of look (900 bytes) was left out to save space. Call it again if you still need it.]",
    ),
    (
        "stale_read",
        ("a.py",),
        {},
        "[What was read from a.py here was left out: the file has been changed since. Read it again.]",
    ),
    (
        "persisted",
        ("look",),
        {"size": 9000, "path": "/out/<1>.txt", "preview": "First lines"},
        '<persisted-output tool="look" bytes="9000" path="/out/&lt;1&gt;.txt">\nFirst lines\n</persisted-output>',
    ),
    ("invalid_arguments", ("at: missing.",), {}, "Validation error: at: missing."),
    (
        "over_budget",
        ("pay", 1),
        {},
        "pay may be called at most once in this run. Continue without it, or give your final answer.",
    ),
    (
        "steer_budget",
        ("pay", 2),
        {},
        "[pay should be called at most 2 times in this run, and you have called it more often. "
        "Work with what you have, and call it again only if you cannot do without it.]",
    ),
    ("withheld_tools", ([],), {"search": "find"}, ""),
    (
        "withheld_tools",
        (["a", "b<c"],),
        {"search": "find"},
        "These tools also exist. Call find to get the input schema of those you need; then you can call them."
        "\n\n<available_tools>\n<tool>a</tool>\n<tool>b&lt;c</tool>\n</available_tools>",
    ),
    (
        "withheld_tools",
        (["a"],),
        {"search": ""},
        "These tools also exist.\n\n<available_tools>\n<tool>a</tool>\n</available_tools>",
    ),
    (
        "withheld",
        ("a",),
        {"search": "find"},
        "the input schema of a has not been loaded. Call find with its name first.",
    ),
    ("withheld", ("a",), {"search": ""}, "the input schema of a has not been loaded."),
    ("found_tools", ([],), {"left": 0}, "<tool_search_results>\nNo tool matches.\n</tool_search_results>"),
    (
        "found_tools",
        ([("a", "It <adds>.", "{}")],),
        {"left": 2},
        "<tool_search_results>\n<tool>\n<name>a</name>\n<description>It &lt;adds&gt;.</description>\n"
        "<input_schema>{}</input_schema>\n</tool>\n(2 more match; search more narrowly to see them)\n"
        "</tool_search_results>",
    ),
]


def test_the_fixed_texts() -> None:
    assert constants(prompts.behavior) == CONSTANTS


@pytest.mark.parametrize(("name", "given", "options", "text"), FUNCTIONS)
def test_the_texts_that_are_filled_in(
    name: str, given: tuple[object, ...], options: dict[str, object], text: str
) -> None:
    assert filled_in(prompts.behavior, name, given, options) == text


def test_no_text_is_left_out_here() -> None:
    assert functions(prompts.behavior) == {name for name, *_ in FUNCTIONS}
