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
    template = getattr(tool, "display_hint", "")
    if isinstance(template, str) and template and (hint := hint_from(template, args, tool=name)):
        return hint
    if tool is None or (not getattr(tool, "title", "") and tool.spec.name == name):
        return ""
    title = one_line(title_of(tool))
    return "" if title == titled(name) else title
