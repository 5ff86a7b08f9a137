"""Titles of calls in progress, for people."""

from __future__ import annotations

import logging

from weftline.text.display import titled
from weftline.tools.asking import rendered
from weftline.tools.base import Tool, title_of

logger = logging.getLogger(__name__)

MAX_HINT_CHARS = 200


def one_line(text: str) -> str:
    """Returns at most 200 characters of a text, on one line."""
    line = " ".join(text[: 4 * MAX_HINT_CHARS].split())
    return line if len(line) <= MAX_HINT_CHARS else f"{line[: MAX_HINT_CHARS - 1]}…"


def hint_from(template: str, args: bytes, *, tool: str) -> str:
    """Returns the template filled in with a call's final arguments; empty if that fails, which is logged."""
    try:
        return one_line(rendered(template, args))
    except Exception as error:
        logger.warning("the display hint of tool %s cannot be created: %s: %s", tool, type(error).__name__, error)
        return ""


def display_hint(tool: Tool | None, name: str, args: bytes) -> str:
    """Returns what people read about a call: from the tool's template or else its title.

    Empty if that would only be the tool's name in words.
    """
    if tool is None:
        return ""
    traits = tool.traits
    if traits.display_hint and (hint := hint_from(traits.display_hint, args, tool=name)):
        return hint
    if not traits.title and tool.spec.name == name:
        return ""
    title = one_line(title_of(tool))
    return "" if title == titled(name) else title
