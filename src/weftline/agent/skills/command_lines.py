"""Decides whether a shell command line runs a single command and nothing else.

Strict rather than clever: what could start a further command, write a file or be read differently by another shell is
refused, even if it happens to be harmless. In single quotes everything is plain text in every shell; in double quotes
everything but `$`, the backtick and the backslash.
"""

from __future__ import annotations

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
        return not prefix or _fits(prefix, command) or _fits(f"{prefix} *", command)
    return _fits(pattern, command)


def _fits(pattern: str, text: str) -> bool:
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
