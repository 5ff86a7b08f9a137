"""The script format: the answers of a scripted model, as data.

A script file is a JSON object from script name to `{turns, finalize}`. An invalid file is refused at load with
`WeftlineError(code="bad_script")`, whose message names the file, the script, the turn and the mistake.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias, cast, get_args

import msgspec
from msgspec import Struct

from weftline.errors import WeftlineError
from weftline.messages import Usage
from weftline.providers.base import ErrorClass

DEFAULT_USAGE = Usage(input=10, output=5)

TURN_KEYS = ("text", "deltas", "delay_ms", "thinking", "tool_calls", "finish_reason", "error", "usage", "loop")
TURN_CONTENT = frozenset({"text", "deltas", "thinking", "tool_calls", "finish_reason", "error"})
ERROR_CLASSES: tuple[ErrorClass, ...] = get_args(ErrorClass)
TEMPLATES = (
    "n",
    "tool_results.N",
    "len_tool_results.N",
    "all_tool_results",
    "user_messages",
    "message_count",
    "tools",
    "tool_desc.NAME",
    "system",
    "reasoning",
    "sampling",
    "attachments",
)


class Slot(NamedTuple):
    """A template in a text: `{{tool_results.1}}` is `Slot("tool_results", "1")`."""

    name: str
    arg: str = ""

    def __str__(self) -> str:
        return "{{" + (f"{self.name}.{self.arg}" if self.arg else self.name) + "}}"


class Template(NamedTuple):
    """A text with slots in it; a text without any stays a `str`."""

    pieces: tuple[str | Slot, ...]


Phrase: TypeAlias = str | Template


class ScriptedCall(Struct, frozen=True):
    """A scripted call. `args` is the JSON text if it is always the same, and otherwise `value` has templates in it."""

    name: str
    args: str | None
    value: object = None


class ScriptedFailure(Struct, frozen=True):
    cls: ErrorClass
    message: str
    retryable: bool | None = None


class Turn(Struct, frozen=True):
    """One answer of the model. A `usage` of None means the default, or none on a turn that fails."""

    deltas: tuple[Phrase, ...] = ()
    delay_s: float = 0.0
    thinking: tuple[str, ...] = ()
    calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = "end_turn"
    error: ScriptedFailure | None = None
    usage: Usage | None = None
    loop: bool = False


class Script(Struct, frozen=True):
    """The turns of a scripted model, and the one it plays if tools are disabled for the final turn."""

    name: str
    turns: tuple[Turn, ...]
    finalize: Turn | None = None


def load_scripts(path: str | Path) -> dict[str, Script]:
    """Reads a script file. Raises `WeftlineError(code="bad_script")`."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        _Place(str(path)).refuse(f"cannot be read: {error.strerror or error}")
    return parse_scripts(data, source=str(path))


def parse_scripts(data: bytes, *, source: str = "scripts") -> dict[str, Script]:
    """Returns the scripts in the bytes of a script file; `source` names it in errors."""
    place = _Place(source)
    try:
        decoded: object = json.loads(
            data.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except RecursionError:
        place.refuse("is nested too deeply")
    except ValueError as error:
        place.refuse(f"is not valid JSON: {error}")
    return {name: parse_script(value, name=name, source=source) for name, value in _object(decoded, place).items()}


def parse_script(value: object, *, name: str, source: str = "scripts") -> Script:
    """Returns one script from its JSON value."""
    place = _Place(source, name)
    if not name:
        place.refuse("the name of a script must not be empty")
    fields = _object(value, place)
    _known(fields, ("turns", "finalize"), place)
    if "turns" not in fields:
        place.refuse("'turns' is missing")
    turns = _list(fields["turns"], "turns", place)
    if not turns:
        place.refuse("'turns' is empty: give at least one turn")
    finalize = fields.get("finalize")
    return Script(
        name,
        tuple(_turn(turn, place._replace(turn=f"turns[{index}]")) for index, turn in enumerate(turns)),
        None if "finalize" not in fields else _turn(finalize, place._replace(turn="finalize")),
    )


def _turn(value: object, place: _Place) -> Turn:
    fields = _object(value, place)
    _known(fields, TURN_KEYS, place)
    if TURN_CONTENT.isdisjoint(fields):
        place.refuse(f"the turn is empty: give one of {', '.join(sorted(TURN_CONTENT))}")
    if "text" in fields and "deltas" in fields:
        place.refuse("has both 'text' and 'deltas'")
    deltas: Sequence[object] = (
        (fields["text"],) if "text" in fields else _list(fields.get("deltas", ()), "deltas", place)
    )
    what = "text" if "text" in fields else "deltas"
    calls = _list(fields.get("tool_calls", ()), "tool_calls", place)
    reason = fields.get("finish_reason", "tool_use" if calls else "end_turn")
    if reason is not None and not _text(reason, "finish_reason", place):
        place.refuse("'finish_reason' must not be empty")
    return Turn(
        deltas=tuple(_phrase(_text(delta, what, place), what, place) for delta in deltas),
        delay_s=_delay_s(fields.get("delay_ms", 0), place),
        thinking=tuple(_text(text, "thinking", place) for text in _list(fields.get("thinking", ()), "thinking", place)),
        calls=tuple(_call(call, f"tool_calls[{index}]", place) for index, call in enumerate(calls)),
        finish_reason=cast("str | None", reason),
        error=_failure(fields["error"], place) if "error" in fields else None,
        usage=_usage(fields["usage"], place) if "usage" in fields else None,
        loop=_flag(fields.get("loop", False), "loop", place),
    )


class _Place(NamedTuple):
    source: str
    script: str | None = None
    turn: str | None = None

    def refuse(self, problem: str) -> NoReturn:
        where = self.source
        if self.script is not None:
            where += f": script {self.script!r}"
        if self.turn is not None:
            where += f", {self.turn}"
        raise WeftlineError(f"{where}: {problem}", code="bad_script", script=self.script, turn=self.turn)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number


def _object(value: object, place: _Place, *, what: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        place.refuse(f"{what or 'it'} must be an object, not {_kind(value)}")
    fields = cast("dict[object, object]", value)
    for key in fields:
        if not isinstance(key, str):
            place.refuse(f"the key {key!r} must be a string")
    # A leading underscore marks a comment.
    return {key: item for key, item in cast("dict[str, object]", fields).items() if not key.startswith("_")}


def _known(fields: dict[str, object], known: Sequence[str], place: _Place, *, what: str = "") -> None:
    for key in fields:
        if key not in known:
            inside = f" in {what}" if what else ""
            place.refuse(f"unknown key {key!r}{inside} (known: {', '.join(known)})")


def _list(value: object, what: str, place: _Place) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        place.refuse(f"'{what}' must be a list, not {_kind(value)}")
    return cast("Sequence[object]", value)


def _text(value: object, what: str, place: _Place) -> str:
    if not isinstance(value, str):
        place.refuse(f"'{what}' must be text, not {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        place.refuse(f"'{what}' contains an unpaired surrogate")
    return value


def _flag(value: object, what: str, place: _Place) -> bool:
    if not isinstance(value, bool):
        place.refuse(f"'{what}' must be true or false, not {_kind(value)}")
    return value


def _delay_s(value: object, place: _Place) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        place.refuse("'delay_ms' must be a number of milliseconds, 0 or more")
    return value / 1000


def _failure(value: object, place: _Place) -> ScriptedFailure:
    fields = _object(value, place, what="'error'")
    _known(fields, ("class", "message", "retryable"), place, what="'error'")
    name = _text(fields.get("class"), "error.class", place)
    if name not in ERROR_CLASSES:
        place.refuse(f"unknown error class {name!r} (known: {', '.join(ERROR_CLASSES)})")
    message = _text(fields["message"], "error.message", place) if "message" in fields else f"scripted error: {name}"
    retryable = _flag(fields["retryable"], "error.retryable", place) if "retryable" in fields else None
    return ScriptedFailure(name, message, retryable)


def _usage(value: object, place: _Place) -> Usage:
    fields = _object(value, place, what="'usage'")
    _known(fields, ("input", "cached", "reasoning", "output", "cache_write"), place, what="'usage'")
    counts: dict[str, int] = {}
    for key, count in fields.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            place.refuse(f"'usage.{key}' must be a whole number, 0 or more")
        counts[key] = count
    return msgspec.structs.replace(DEFAULT_USAGE, **counts)


def _call(value: object, what: str, place: _Place) -> ScriptedCall:
    fields = _object(value, place, what=f"'{what}'")
    _known(fields, ("name", "args"), place, what=f"'{what}'")
    name = _text(fields.get("name"), f"{what}.name", place)
    if not name:
        place.refuse(f"'{what}.name' must not be empty")
    args = fields.get("args", {})
    try:
        text = msgspec.json.encode(args).decode()
        if "{{" not in text:  # which no JSON has outside of strings
            return ScriptedCall(name, text)
        compiled, has_slots = _compile(args, f"{what}.args", place)
    except UnicodeEncodeError:
        place.refuse(f"'{what}.args' contains an unpaired surrogate")
    except (TypeError, ValueError, RecursionError) as error:
        place.refuse(f"'{what}.args' is not JSON: {error}")
    return ScriptedCall(name, None, compiled) if has_slots else ScriptedCall(name, text)


def _compile(value: object, what: str, place: _Place) -> tuple[object, bool]:
    """Compiles the strings in a value; returns it, and whether any of them has a template."""
    if isinstance(value, str):
        phrase = _phrase(_text(value, what, place), what, place)
        return phrase, isinstance(phrase, Template)
    if isinstance(value, dict):
        pairs = {key: _compile(item, what, place) for key, item in cast("dict[object, object]", value).items()}
        return {key: item for key, (item, _) in pairs.items()}, any(slots for _, slots in pairs.values())
    if isinstance(value, list | tuple):
        items = [_compile(item, what, place) for item in cast("Sequence[object]", value)]
        return [item for item, _ in items], any(slots for _, slots in items)
    return value, False


_SLOT = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


def _phrase(text: str, what: str, place: _Place) -> Phrase:
    if "{{" not in text:
        return text
    pieces: list[str | Slot] = []
    for index, piece in enumerate(_SLOT.split(text)):
        if index % 2:
            pieces.append(_slot(piece, what, place))
        elif "{{" in piece:
            place.refuse(f"'{what}' has a '{{{{' without its '}}}}'")
        elif piece:
            pieces.append(piece)
    return Template(tuple(pieces))


def _slot(inside: str, what: str, place: _Place) -> Slot:
    name, _, arg = inside.partition(".")
    match name:
        case "tool_results" | "len_tool_results":
            known = arg.isascii() and arg.isdigit()
        case "tool_desc":
            known = arg != ""
        case _:
            known = inside in TEMPLATES
    if not known:
        place.refuse(f"'{what}' has the unknown template '{{{{{inside}}}}}' (known: {', '.join(TEMPLATES)})")
    return Slot(name, arg)


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case dict():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return type(value).__name__
