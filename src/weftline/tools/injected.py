"""Arguments that a run fills in, and that the model neither sees nor sets.

    @tool
    def orders(customer: str, tenant: Injected[str]) -> list[str]: ...

A field with a name in `CALL_FIELDS` is filled from the call, any other from the run's label of that name.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar, get_args, get_origin

from weftline import prompts
from weftline.tools.arguments import InvalidArguments

T = TypeVar("T")


class _Marker:
    def __repr__(self) -> str:
        return "Injected"


_MARKER = _Marker()
Injected: TypeAlias = Annotated[T, _MARKER]
"""The type of an argument that the run fills in: `tenant: Injected[str]`. With a default it may be missing."""

CALL_FIELDS = frozenset(
    {"run_id", "thread_id", "turn", "turn_id", "call_id", "tool_call_id", "parent_call", "parent_tool_call_id"}
)
"""The names that are filled in from the call, if it has them."""
ALWAYS_KNOWN = CALL_FIELDS - {"thread_id", "parent_call", "parent_tool_call_id"}


class NotInjected(InvalidArguments):
    """A field that the run should fill in has no label, or one that does not fit its type."""

    def __init__(self, tool: str, field: str, reason: str = "") -> None:
        super().__init__(prompts.calls.not_injected(tool, field, reason))
        self.field = field


def is_injected(hint: object) -> bool:
    """Returns True if the run fills in an argument with this type."""
    return get_origin(hint) is Annotated and any(one is _MARKER for one in get_args(hint)[1:])
