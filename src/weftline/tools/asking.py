"""Tools that a person is asked about: before a call begins, or in place of carrying it out."""

from __future__ import annotations

from string import Formatter
from typing import Any, Protocol

from msgspec import Struct
from msgspec.json import decode

from weftline.kernel.entries import AwaitKind


class Ask(Struct, frozen=True):
    """What a person is asked about a call. With `options` the answer is one of them, or several if `multiple`."""

    prompt: str
    kind: AwaitKind = "confirm"
    options: tuple[str, ...] = ()
    multiple: bool = False
    timeout_s: float | None = None
    """How long there is to answer; None leaves that to the run."""


class AsksPeople(Protocol):
    """What a tool has besides if people are asked about its calls."""

    def asks_people(self, args: bytes) -> Ask | None:
        """What is asked about a call with these final arguments; None if it may begin. An error blocks the call."""
        ...


def ask_of(tool: object, args: bytes) -> Ask | None:
    """What a person is asked about a call of `tool`. Raises whatever the tool raises."""
    ask = getattr(tool, "asks_people", None)
    return None if ask is None else ask(args)


class _Template(Formatter):
    """Arguments by name, and nothing that lies behind them: no attributes, no positions."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        return kwargs[field_name], field_name


def checked_template(template: str, *, tool: str) -> str:
    """The same text. Raises `ValueError` if it is not one with `{argument}` in it."""
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise ValueError(f"tool {tool!r}: confirm is not a template: {error}") from None
    if not template.strip():
        raise ValueError(f"tool {tool!r}: confirm is empty")
    for field in fields:
        if not field.isidentifier():
            raise ValueError(f"tool {tool!r}: confirm may name arguments, such as {{amount}}, not {field!r}")
    return template


def rendered(template: str, args: bytes) -> str:
    """The question for a call with these arguments. Raises `LookupError` or `ValueError` if it cannot be made."""
    return _Template().vformat(template, (), decode(args, type=dict[str, Any]))
