"""The `allowed-tools` of active skills, which restrict calls or approve them in advance. This module only decides.

As soon as one active skill declares a list, the union of all declared lists (and the three skills tools) is what may be
called (`restrict`), or what needs no confirmation (`preapprove`). An entry names a tool by its own name or by the
model's name for it; `Bash(git:*)` allows a shell tool for matching commands only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from weftline import prompts
from weftline.agent.skills.activation import SKILL_TOOLS
from weftline.agent.skills.format import Skill

_OUTSIDE = frozenset(";&|<>()`$\\\n\r\0")
_IN_DOUBLE = frozenset("`$\\\n\r\0")
_IN_SINGLE = frozenset("\n\r\0")
_BLANK = " \t"


def simple_command(line: str) -> str | None:
    """Returns the command line with single spaces between its words, or None unless it is one simple command."""
    words: list[str] = []
    quote = ""
    for char in line.strip(" \t\n"):
        match quote:
            case "'":
                refused = _IN_SINGLE
            case '"':
                refused = _IN_DOUBLE
            case _:
                refused = _OUTSIDE
        if char in refused:
            return None
        if char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif not quote and char in _BLANK:
            if words[-1] != " ":
                words.append(" ")
            continue
        words.append(char)
    return None if quote else "".join(words)


def matches(pattern: str, command: str) -> bool:
    """Returns True if a simple command matches a pattern, as in `Bash(pattern)`.

    `git:*` is the word `git` alone or with anything after it; `*` elsewhere stands for any text; anything else is
    literal.
    """
    pattern = pattern.strip()
    if pattern.endswith(":*"):
        prefix = pattern[:-2].rstrip()
        return not prefix or _word_fits(prefix, command) or _word_fits(f"{prefix} *", command)
    return _word_fits(pattern, command)


def _word_fits(pattern: str, text: str) -> bool:
    """Matches a glob with `*` only, in time linear in the text rather than in the ways to divide it."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    last = rest.pop()
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    place, end = len(first), len(text) - len(last)
    for piece in rest:
        place = text.find(piece, place, end)
        if place < 0:
            return False
        place += len(piece)
    return True


KNOWN_NAMES: Mapping[str, str] = {
    "Agent": "spawn",
    "AskUserQuestion": "ask_user",
    "Bash": "shell",
    "Edit": "edit",
    "Glob": "glob",
    "Grep": "grep",
    "LS": "list_files",
    "MultiEdit": "multi_edit",
    "Read": "read_file",
    "Skill": "skills_use",
    "Task": "spawn",
    "TodoWrite": "todo",
    "WebFetch": "fetch",
    "Write": "write_file",
}
"""The names that public skills use for built-in tools. A tool or alias with such a name takes precedence."""

SHELLS: Mapping[str, str] = {"shell": "command"}
"""Tools whose calls a pattern can restrict, with the argument that holds the command line."""
_HARMLESS = frozenset({"cwd", "description", "timeout", "timeout_s"})
"""Other arguments of a shell that do not change which command runs."""

_ENTRY = re.compile(r"([^\s()]+)(?:\((.*)\))?", re.DOTALL)


class Entry(NamedTuple):
    """One entry of `allowed-tools`. `pattern` is None if it covers every call of the tool."""

    tool: str
    pattern: str | None


class Call(NamedTuple):
    """A call that is about to be made: the tool's own name, and its final arguments."""

    tool: str
    args: Mapping[str, object]


class ToolNames:
    """The tools of a run. `aliases` has the model's names for some of them."""

    def __init__(self, tools: Iterable[str] = (), *, aliases: Mapping[str, str] | None = None) -> None:
        self._tools = frozenset(tools)
        self._by_alias = {alias: own for own, alias in (aliases or {}).items()}

    def own_name(self, name: str) -> str | None:
        """Returns the tool that an entry names, or None if there is none."""
        for found in (name, self._by_alias.get(name), KNOWN_NAMES.get(name)):
            if found is not None and (found in self._tools or found in SKILL_TOOLS):
                return found
        return None


def parse_entry(text: str) -> Entry | None:
    """Parses an entry; None if it is unreadable, and so allows nothing."""
    found = _ENTRY.fullmatch(text)
    return None if found is None else Entry(found[1], found[2])


def refusal(call: Call, *, active: Iterable[Skill], names: ToolNames, shells: Mapping[str, str] = SHELLS) -> str:
    """Returns why a call is not allowed while these skills are active; empty if it is allowed."""
    declaring = [skill for skill in active if skill.allowed_tools is not None]
    if not declaring or call.tool in SKILL_TOOLS:
        return ""
    entries = [entry for skill in declaring for entry in skill.allowed_tools or ()]
    if _allows(entries, call, names, shells):
        return ""
    return prompts.skills.tool_not_allowed(call.tool, [skill.name for skill in declaring], list(dict.fromkeys(entries)))


def preapproved(call: Call, *, active: Iterable[Skill], names: ToolNames, shells: Mapping[str, str] = SHELLS) -> bool:
    """Returns True if an active skill approves a call in advance. Only a trusted skill can."""
    entries = [entry for skill in active if skill.trusted for entry in skill.allowed_tools or ()]
    return _allows(entries, call, names, shells)


def faulty_entries(skill: Skill, *, names: ToolNames, shells: Mapping[str, str] = SHELLS) -> list[str]:
    """Returns a sentence about each entry of a skill that allows nothing."""
    found: list[str] = []
    for text in skill.allowed_tools or ():
        entry = parse_entry(text)
        own = None if entry is None else names.own_name(entry.tool)
        if entry is None:
            found.append(f"allowed-tools of the skill {skill.name!r}: {text!r} cannot be read and is ignored.")
        elif own is None:
            found.append(f"allowed-tools of the skill {skill.name!r}: no tool is named {entry.tool!r}; it is ignored.")
        elif entry.pattern is not None and own not in shells:
            found.append(
                f"allowed-tools of the skill {skill.name!r}: {text!r} is ignored; only shell tools have patterns."
            )
    return found


def _allows(entries: Iterable[str], call: Call, names: ToolNames, shells: Mapping[str, str]) -> bool:
    for text in entries:
        entry = parse_entry(text)
        if entry is None or names.own_name(entry.tool) != call.tool:
            continue
        if entry.pattern is None or _fits(entry.pattern, call, shells):
            return True
    return False


def _fits(pattern: str, call: Call, shells: Mapping[str, str]) -> bool:
    argument = shells.get(call.tool)
    if argument is None:
        return False
    line = call.args.get(argument)
    others = {name for name, value in call.args.items() if value is not None} - {argument}
    if not isinstance(line, str) or not others <= _HARMLESS:
        return False
    command = simple_command(line)
    return bool(command) and matches(pattern, command or "")
