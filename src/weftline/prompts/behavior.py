"""Texts for models because of an agent's behavior: stubs, refusals, the list of withheld tools."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.text.display import escaped

BUILD = (
    "You work on the files of a project. Look before you change anything, make the smallest change that does what "
    "was asked, and check it with the project's own commands. Say at the end what you changed and what you checked."
)
PLAN = (
    "You plan work on the files of a project, and change nothing. Read what matters, then answer with a plan: the "
    "steps in order, the files that each one touches, how to check it, and what is uncertain."
)
"""Instructions of the presets."""


# Replacing content


def compacted(tool: str, size: int) -> str:
    return f"[The result of {tool} ({size} bytes) was left out to save space. Call it again if you still need it.]"


def stale_read(path: str) -> str:
    return f"[What was read from {path} here was left out: the file has been changed since. Read it again.]"


def persisted(tool: str, *, size: int, path: str, preview: str) -> str:
    head = f'<persisted-output tool="{escaped(tool)}" bytes="{size}" path="{escaped(path)}">'
    return f"{head}\n{preview}\n</persisted-output>"


# Arguments


def invalid_arguments(message: str) -> str:
    return f"Validation error: {message}"


# Budgets


def over_budget(tool: str, max_calls: int) -> str:
    """A reason for `prompts.blocked`."""
    return f"{tool} may be called {_at_most(max_calls)} in this run. Continue without it, or give your final answer."


def steer_budget(tool: str, max_calls: int) -> str:
    return (
        f"[{tool} should be called {_at_most(max_calls)} in this run, and you have called it more often. "
        "Work with what you have, and call it again only if you cannot do without it.]"
    )


def _at_most(count: int) -> str:
    return "at most once" if count == 1 else f"at most {count} times"


# Tools that have to be found first

SEARCH_NEEDS_QUERY = "Say what to look for: names, a query or a server."
SEARCH_LIMIT = "limit must be above 0."


def withheld_tools(names: Sequence[str], *, search: str) -> str:
    """Returns the list for the system prompt; empty if there are none. `search` is empty if the agent has no search."""
    if not names:
        return ""
    how = f" Call {search} to get the input schema of those you need; then you can call them." if search else ""
    listed = "\n".join(f"<tool>{escaped(name)}</tool>" for name in names)
    return f"These tools also exist.{how}\n\n<available_tools>\n{listed}\n</available_tools>"


def withheld(tool: str, *, search: str) -> str:
    """A reason for `prompts.blocked`."""
    how = f" Call {search} with its name first." if search else ""
    return f"the input schema of {tool} has not been loaded.{how}"


def found_tools(found: Sequence[tuple[str, str, str]], *, left: int) -> str:
    """Returns name, description and input schema of each, with `<` escaped in the schema."""
    if not found:
        return "<tool_search_results>\nNo tool matches.\n</tool_search_results>"
    rows = "\n".join(
        f"<tool>\n<name>{escaped(name)}</name>\n<description>{escaped(description)}</description>\n"
        f"<input_schema>{schema}</input_schema>\n</tool>"
        for name, description, schema in found
    )
    more = f"\n({left} more match; search more narrowly to see them)" if left else ""
    return f"<tool_search_results>\n{rows}{more}\n</tool_search_results>"
