"""Calls that other calls of a turn have asked for, and their results, in the order of the log."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from weftline.kernel.bodies import AskedBody
from weftline.messages import ToolResult


class Asked(Struct, frozen=True):
    """A call that another call of the latest turn asked for. `parent` is the id of that one."""

    index: int
    parent: str
    name: str
    body: AskedBody


class Closed(Struct, frozen=True):
    """Its result."""

    index: int
    result: ToolResult


Nested: TypeAlias = Asked | Closed
