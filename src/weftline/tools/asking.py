"""What people read about calls: questions of tools that ask a person, and titles of calls in progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from string import Formatter
from typing import Any, cast

from msgspec import Struct
from msgspec.json import decode

from weftline.kernel.bodies import AskBody
from weftline.kernel.entries import AwaitKind
from weftline.text.display import titled
from weftline.text.suggestions import did_you_mean
from weftline.tools.base import Tool, title_of

logger = logging.getLogger(__name__)


class Ask(Struct, frozen=True):
    """A question to a person about a call. With `options` the answer is one of them, or several if `multiple`.

    With `parts` these are several questions, and `prompt` has them all; see `describe_invalid`.
    """

    prompt: str
    kind: AwaitKind = "confirm"
    options: tuple[str, ...] = ()
    multiple: bool = False
    parts: tuple[AskBody, ...] = ()
    timeout_s: float | None = None
    """How long the person has to answer; None means the run's limit."""
    approvers: tuple[str, ...] = ()
    """Who may decide; empty means anybody."""


def describe_invalid(asked: AskBody, value: object) -> str:
    """Returns what is wrong with an answer; empty if it is valid.

    Several questions are answered by a list with one answer each, or by one text for all.
    """
    if asked.parts and not isinstance(value, str):
        given = cast("list[object]", value) if isinstance(value, list) else []
        if len(given) != len(asked.parts):
            return f"must be a list with {len(asked.parts)} answers, one to each question"
        problems = [describe_invalid(part, one) for part, one in zip(asked.parts, given, strict=True)]
        return "; ".join([f"answer {number}: {problem}" for number, problem in enumerate(problems, 1) if problem])
    if asked.options:
        chosen = cast("list[object]", value) if asked.multiple and isinstance(value, list) else [value]
        if not chosen or any(one not in asked.options for one in chosen):
            among = ", ".join(map(repr, asked.options))
            return f"must be some of {among}, in a list" if asked.multiple else f"must be one of {among}"
    elif value is None or (isinstance(value, str) and not value.strip()):
        return "the answer is missing"
    return ""


def ask_of(tool: object, args: bytes) -> Ask | None:
    """Returns what a person is asked about a call of `tool`. Raises whatever the tool raises."""
    ask = getattr(tool, "asks_people", None)
    return None if ask is None else ask(args)


class _Template(Formatter):
    """Formats arguments by name only, without attributes or positions."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        return kwargs[field_name], field_name


def checked_approvers(approvers: Iterable[str] | None, *, where: str) -> tuple[str, ...]:
    """Returns the names. Raises `ValueError` for an empty list, since then nobody could decide."""
    if approvers is None:
        return ()
    if isinstance(approvers, str):
        raise ValueError(f"{where}: approvers are a list of names, such as ['user:ann'], not a string")
    names = tuple(approvers)
    if not names or not all(isinstance(one, str) and one.strip() for one in names):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{where}: approvers are one or more names, such as ['user:ann'], not {list(names)!r}")
    return names


def checked_confirm(
    confirm: str | Callable[..., str | None] | None, *, tool: str
) -> str | Callable[..., str | None] | None:
    """Returns what it was given. Raises `TypeError` or `ValueError` for anything that is not a question."""
    if isinstance(confirm, str):
        return checked_template(confirm, tool=tool)
    if confirm is not None and not callable(confirm):
        raise TypeError(
            f'tool {tool!r}: confirm is the question that a person is asked, such as confirm="Really call {tool}?",'
            f" or a function that returns it, not {confirm!r}"
        )
    return confirm


def checked_template(template: str, *, tool: str, what: str = "confirm") -> str:
    """Returns the template. Raises `ValueError` unless it is a valid one, with fields such as `{argument}`."""
    try:
        fields = fields_of(template)
    except ValueError as error:
        raise ValueError(f"tool {tool!r}: {what} is not a template: {error}") from None
    if not template.strip():
        raise ValueError(f"tool {tool!r}: {what} is empty")
    for field in fields:
        if not field.isidentifier():
            raise ValueError(f"tool {tool!r}: {what} may name arguments, such as {{amount}}, not {field!r}")
    return template


def fields_of(template: str) -> list[str]:
    """Returns the arguments that a template names, in order, each once."""
    return list(dict.fromkeys([field for _, field, _, _ in Formatter().parse(template) if field is not None]))


def require_arguments(template: str, arguments: Collection[str], *, tool: str, what: str = "confirm") -> None:
    """Raises `ValueError` if the template names something that is not an argument of the tool."""
    for field in fields_of(template):
        if field not in arguments:
            near = did_you_mean(field, arguments)
            raise ValueError(f"tool {tool!r}: {what} names {{{field}}}, which is not an argument of it.{near}")


def rendered(template: str, args: bytes) -> str:
    """Returns the question for a call with these arguments.

    Raises `LookupError` or `ValueError` if it cannot be rendered.
    """
    return _Template().vformat(template, (), decode(args, type=dict[str, Any]))


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
