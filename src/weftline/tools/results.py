"""Turns what a tool function returned or raised into what the model reads.

Nothing is changed silently: a value that JSON cannot hold as it is (NaN, keys that are not strings, raw bytes) is an
error result. The one exception is an unpaired surrogate (`text.surrogates`), which would cost the whole result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weftline import prompts
from weftline.failure import CORRECTABLE, Bounds, Cause, Failure, FailureKind, Hint, recovery_by
from weftline.kernel.bodies import AskBody
from weftline.messages import File, Image, Text, UserPart, joined_text
from weftline.text.canonical import MAX_DEPTH, NotCanonical, canonical_value
from weftline.text.characters import storable
from weftline.tools.arguments import StaleArguments
from weftline.tools.base import Paging, Tool, ToolFailed, ToolInDoubt, ToolOutput, ToolQuestion

_OWN = ("returned", "total", "truncated", "refinement_hint")
"""The fields that the runtime writes into the JSON of a bounded result, overriding the tool's."""


class Bounded(Struct, frozen=True, kw_only=True):
    """The result of a tool declared `bounded`: an object, and how much of the whole it holds."""

    value: Any
    returned: int
    total: int | None = None
    truncated: bool = False
    next_cursor: str | None = None
    refinement_hint: str = ""

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.returned, self.total, self.truncated, self.next_cursor, self.refinement_hint)


def with_bounds(tool: Tool, output: ToolOutput) -> ToolOutput:
    """Returns the output as the model reads it, with its bounds; an error if these are not as declared."""
    declared, bounds, name = tool.traits.bounded, output.bounds, tool.spec.name
    if bounds is None and (output.is_error or not declared):
        return output
    problem = bounds_problem(tool, output)
    if problem:
        text = prompts.failure.broken_bounds(name, problem)
        failure = Failure(text, "malformed_result", "replan")
        return ToolOutput.of(text, is_error=True, in_doubt=output.in_doubt, failure=failure)
    assert bounds is not None
    cursor = declared.next_cursor if isinstance(declared, Paging) else "next_cursor"
    fields: dict[str, Any] = msgspec.json.decode(joined_text(output.parts))
    kept = {key: value for key, value in fields.items() if key not in (*_OWN, cursor)}
    kept |= {"returned": bounds.returned, "truncated": bounds.truncated}
    if bounds.total is not None:
        kept["total"] = bounds.total
    if bounds.refinement_hint:
        kept["refinement_hint"] = bounds.refinement_hint
    if bounds.next_cursor:
        kept[cursor] = bounds.next_cursor
    return replace(output, parts=(Text(canonical_value(kept).decode()),))


def bounds_problem(tool: Tool, output: ToolOutput) -> str:
    """Returns what is wrong with the bounds of an output that has or needs some; empty if nothing is."""
    declared, bounds = tool.traits.bounded, output.bounds
    if bounds is None:
        return "it says nothing about how much it returned"
    if output.is_error:
        return "it has bounds although it failed"
    if not declared:
        return "it has bounds although the tool is not declared bounded"
    if bounds.returned < 0 or (bounds.total is not None and bounds.total < bounds.returned):
        return "its counts make no sense"
    if bounds.truncated and not (bounds.next_cursor or bounds.refinement_hint):
        return "it is truncated and says neither how to continue nor how to ask for less"
    if bounds.next_cursor and not isinstance(declared, Paging):
        return "it has a cursor although the tool has no paging"
    return "" if joined_text(output.parts).startswith("{") else "it is not a JSON object"


_JSON_TYPES = frozenset({dict, int, float, bool, type(None)})
"""What is returned most often. A value of these types has no meaning but itself."""


def output_of(value: object, *, tool_name: str) -> ToolOutput:
    """Returns the result of a call that returned `value`.

    A string is the text itself, a `ToolOutput` or a list of message parts is taken as it is, and anything else becomes
    canonical JSON (None is `null`).
    """
    try:
        if isinstance(value, str):
            return ToolOutput((Text(storable(value)),))
        if type(value) not in _JSON_TYPES:
            if isinstance(value, ToolOutput):
                return _checked(value)
            if isinstance(value, ToolFailed):
                return replace(error_of(value), final=True)
            if isinstance(value, Bounded):
                return replace(output_of(value.value, tool_name=tool_name), bounds=value.bounds)
            if parts := _parts(value):
                return _checked(ToolOutput(parts))
        try:
            data = canonical_value(value)
        except NotCanonical:
            # Most results are plain JSON already; only the others need the conversion.
            data = canonical_value(_plain(value, MAX_DEPTH))
    except (NotCanonical, UnicodeEncodeError, RecursionError, TypeError, ValueError) as error:
        text = prompts.calls.result_not_json(tool_name, str(error))
        return ToolOutput.of(text, is_error=True, failure=Failure(text, "malformed_result"))
    return ToolOutput((Text(data.decode()),), is_json=True)


def stale_output(error: StaleArguments) -> ToolOutput:
    """Returns the result of a call that is not made, because its tool would not make it as it was asked for."""
    return ToolOutput.of(error.message, not_run=True, failure=Failure(error.message, "invalid_call"))


def output_bytes(parts: Iterable[UserPart]) -> int:
    """Returns how much of a request a result takes: bytes of its texts, and base64 characters of images and files."""
    return sum([_size(part) for part in parts])


def reason_of(error: BaseException) -> str:
    """Returns the message of an error, or its type if the message is empty."""
    return _message_of(error) or type(error).__name__


def error_of(error: BaseException) -> ToolOutput:
    """Returns the error result of a call that raised: the message of a `ToolFailed`, otherwise type and message."""
    message = _message_of(error)
    if not isinstance(error, ToolFailed):
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = storable(message or prompts.remote.FAILED_WITHOUT_WORDS)
    in_doubt = isinstance(error, ToolInDoubt)
    return ToolOutput.of(text, is_error=True, in_doubt=in_doubt, failure=failure_of(error, text))


def question_of(error: ToolQuestion) -> ToolOutput:
    """Returns the interim result of a call whose tool asks a person."""
    ask = AskBody(storable(error.question), tuple([storable(one) for one in error.options]), error.multiple)
    return ToolOutput((Text(ask.prompt),), asks=ask, asks_for_s=error.timeout_s)


def raised_by(tool: str, error: BaseException) -> ToolOutput:
    """Returns the error result of a call whose tool raised an unexpected exception."""
    text = prompts.calls.tool_failed(tool, reason_of(error))
    return ToolOutput.of(text, is_error=True, failure=failure_of(error, text))


def failure_of(error: BaseException, text: str) -> Failure:
    """Returns what is known about a failure besides its text. Any exception may have a hint, as `hint`."""
    hint = _hint_of(error)
    causes = causes_of(error)
    if isinstance(error, ToolFailed):
        implied = None if error.kind in CORRECTABLE else recovery_by(error.kind)
        return Failure(text, error.kind, error.recovery or implied, hint, causes)
    for cls, kind in _KINDS:
        if isinstance(error, cls):
            return Failure(text, kind, None, hint, causes)
    return Failure(text, None, None, hint, causes)


_KINDS: tuple[tuple[type[BaseException], FailureKind], ...] = (
    (TimeoutError, "timeout"),
    (ConnectionError, "unavailable"),
)
_MAX_CAUSES = 10


def causes_of(error: BaseException) -> tuple[Cause, ...]:
    """Returns the exceptions that led to this one, the nearest first, each once."""
    found: dict[Cause, None] = {}
    seen = {id(error)}
    own = Cause(type(error).__name__, storable(_message_of(error)))
    one = _cause_of(error)
    while one is not None and id(one) not in seen and len(found) < _MAX_CAUSES:
        seen.add(id(one))
        cause = Cause(type(one).__name__, storable(_message_of(one)) or prompts.remote.FAILED_WITHOUT_WORDS)
        if cause != own:
            found.setdefault(cause)
        one = _cause_of(one)
    return tuple(found)


def _cause_of(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _hint_of(error: BaseException) -> Hint | None:
    try:
        hint = getattr(error, "hint", None)
    except Exception:  # a property of a foreign exception: the exception itself is what went wrong
        return None
    return hint if isinstance(hint, Hint) else None


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _checked(output: ToolOutput) -> ToolOutput:
    """Raises unless the output can be decoded again: structs accept any value, but readers of the log do not."""
    try:
        data = msgspec.json.encode(output)
    except UnicodeEncodeError:
        data = msgspec.json.encode(output.whole())
    return _decode_output(data)


_decode_output = msgspec.json.Decoder(ToolOutput).decode


def _parts(value: object) -> tuple[UserPart, ...]:
    if isinstance(value, Text | Image | File):
        return (value,)
    if isinstance(value, list | tuple):
        items = cast("list[object]", value)
        parts = tuple(item for item in items if isinstance(item, Text | Image | File))
        if len(parts) == len(items):
            return parts
    return ()


def _plain(value: Any, levels: int) -> object:
    """Returns `value` in JSON's own types, converting what has one obvious JSON form."""
    if not levels:
        raise NotCanonical(f"nested deeper than {MAX_DEPTH} levels")
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        raise NotCanonical("bytes have no JSON form; return text, or an Image or File part")
    if isinstance(value, Enum):
        return _plain(value.value, levels - 1)
    if isinstance(value, Mapping):
        return _mapping(cast("Mapping[object, object]", value), levels)
    if isinstance(value, set | frozenset):
        items = [_plain(item, levels - 1) for item in cast("Iterable[object]", value)]
        return sorted(items, key=canonical_value)
    if isinstance(value, list | tuple):
        return [_plain(item, levels - 1) for item in cast("Iterable[object]", value)]
    if isinstance(value, str):
        return storable(str(value))
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, msgspec.Struct):
        return _plain(msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview)), levels - 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _mapping(fields, levels)
    return _by_pydantic(cast(object, value), levels)


def _mapping(value: Mapping[Any, object], levels: int) -> dict[Any, object]:
    # Keys that are not strings stay as they are, so that `canonical_value` refuses them.
    return {storable(key) if isinstance(key, str) else key: _plain(item, levels - 1) for key, item in value.items()}


def _by_pydantic(value: object, levels: int) -> object:
    from pydantic import BaseModel
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    kind = type(value).__name__
    try:
        if isinstance(value, BaseModel):
            # The JSON dump turns every key into a string; the Python dump still shows which were not.
            _refuse_keys(value.model_dump(mode="python"), levels)
            return value.model_dump(mode="json")
        if not isinstance(value, Iterable):
            return to_jsonable_python(value, inf_nan_mode="constants")
    except PydanticSerializationError:
        raise NotCanonical(f"{kind} has no JSON form") from None
    return [_plain(item, levels - 1) for item in cast("Iterable[object]", value)]


def _refuse_keys(value: object, levels: int) -> None:
    if not levels:
        raise NotCanonical(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            if not isinstance(key, str):
                raise NotCanonical(f"an object key is {type(key).__name__}, not a string")
            _refuse_keys(item, levels - 1)
    elif isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            _refuse_keys(item, levels - 1)


def _size(part: UserPart) -> int:
    return len(part.text.encode(errors="replace")) if isinstance(part, Text) else len(part.data or "")
