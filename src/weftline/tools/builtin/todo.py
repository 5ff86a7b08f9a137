"""The tool `todo`: a list that a model keeps for itself, so that it does not lose track of a long task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from msgspec import to_builtins

from weftline import prompts
from weftline.tools.base import Tool, ToolContext, ToolFailed
from weftline.tools.decorator import tool

KEY = "todo"
MAX_ITEMS = 100
MAX_CHARS = 500
_MARKS = {"pending": "[ ]", "in_progress": "[~]", "done": "[x]"}


@dataclass(frozen=True)
class TodoItem:
    """One thing to do."""

    text: str
    status: Literal["pending", "in_progress", "done"] = "pending"


def todo() -> Tool:
    """The tool `todo`. The list is part of the run and survives a crash."""

    @tool(name="todo", effect="idempotent", blocking=False)
    def keep_list(context: ToolContext, items: list[TodoItem] | None = None) -> str:
        """Keeps a list of things to do. Without `items` it returns the list.

        Args:
            items: The whole new list, in order, which replaces the old one.
        """
        if items is not None:
            if len(items) > MAX_ITEMS or any(len(item.text) > MAX_CHARS for item in items):
                raise ToolFailed(prompts.files.todo_too_long(MAX_ITEMS, MAX_CHARS))
            context.state[KEY] = to_builtins(items)
        kept = cast("list[dict[str, Any]]", context.state.get(KEY) or [])
        return "\n".join(f"{_MARKS[item['status']]} {item['text']}" for item in kept) or prompts.files.EMPTY_TODO

    return keep_list
