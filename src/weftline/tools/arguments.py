"""The arguments of a tool call: parsing what a model wrote as a JSON object, and describing what is wrong with it.

Server tools and client tools share this. It imports nothing heavy: a client that only defines tools stays light.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, TypeAlias, TypeVar, cast, get_args, get_origin

from msgspec import Struct

from weftline import prompts
from weftline.text.canonical import NotCanonical, parse_canonical

MAX_ISSUES = 20


class Issue(Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong with the arguments of a call."""

    path: str
    message: str
    constraint: str = ""


class InvalidArguments(Exception):
    """The model's arguments do not fit the tool."""

    def __init__(self, message: str, issues: tuple[Issue, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.issues = issues


class StaleArguments(InvalidArguments):
    """Final arguments that the tool no longer takes as they are, since it has changed after they were prepared."""


def object_args(text: str) -> tuple[dict[str, object], bytes]:
    """Parses the arguments that a model wrote; returns a dict and canonical bytes. An empty text means `{}`.

    Raises:
        InvalidArguments: if the text is not a JSON object.
    """
    try:
        value, canonical = parse_canonical("{}" if not text or text.isspace() else text)
        if isinstance(value, dict):
            return cast("dict[str, object]", value), canonical
    except NotCanonical as error:
        message = prompts.calls.arguments_not_json(str(error))
        raise InvalidArguments(message, (Issue("", str(error), "json"),)) from None
    raise InvalidArguments(prompts.calls.ARGUMENTS_NOT_OBJECT, (Issue("", prompts.calls.NOT_AN_OBJECT, "type"),))


def drop_nulls(args: dict[str, object], issues: Iterable[Issue]) -> bool:
    """Removes the members that are null and wrong, in place; False if there are none.

    Models write null for what they leave out. A required member that is removed is missing then.
    """
    found = [(parent, name) for one in issues for parent, name in _nulls(args, one.path)]
    for parent, name in found:
        parent.pop(name, None)
    return bool(found)


def _nulls(args: dict[str, object], path: str) -> Iterator[tuple[dict[str, object], str]]:
    """Yields where a JSON Pointer leads, if that is a null in an object."""
    value: Any = args
    parent: Any = None
    name = ""
    for step in path.split("/")[1:]:
        parent, name = value, step.replace("~1", "/").replace("~0", "~")
        try:
            value = cast("list[Any]", parent)[int(name)] if isinstance(parent, list) else parent[name]
        except (LookupError, TypeError, ValueError):
            return
    if value is None and isinstance(parent, dict):
        yield cast("dict[str, object]", parent), name


def described(name: str, issues: tuple[Issue, ...]) -> str:
    """Returns one sentence for the model that lists what is wrong."""
    return prompts.calls.invalid_arguments(name, in_words(issues))


def in_words(issues: Iterable[Issue]) -> list[str]:
    return [f"{issue.path or '(root)'}: {issue.message}" for issue in issues]


def pointer(path: Iterable[str | int]) -> str:
    """Returns the JSON Pointer of a path; empty for the root."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def path_in(value: object, location: tuple[int | str, ...], *, names_absent: bool) -> list[str | int]:
    """Returns the steps of a pydantic location that lead through `value`, without members of unions and functions.

    The last step stays if the error `names_absent`: a field that is missing or not allowed.
    """
    path: list[str | int] = []
    for position, step in enumerate(location):
        if isinstance(value, dict) and step in value:
            value = cast("dict[str | int, object]", value)[step]
        elif isinstance(value, list) and isinstance(step, int) and step < len(cast("list[object]", value)):
            value = cast("list[object]", value)[step]
        elif not (names_absent and position == len(location) - 1):
            continue
        path.append(step)
    return path


def names_absent(kind: str) -> bool:
    """Returns True if errors of this pydantic type name a field that is not in the value, or must not be."""
    return kind in ("missing", "extra_forbidden")


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
