"""Fields of a request that the protocol does not know.

They are accepted, because clients may be newer than servers, and kept in the stored spec; but an unknown field is more
often a typo than a new feature, so the client is warned about each, with the known field nearest to it.

The known fields come from the models that validate the request. A request without unknown fields costs a look-up
for each of its fields.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeGuard,
    Union,
    cast,
    get_args,
    get_origin,
)

from msgspec import Struct, inspect

from weftline.errors import MAX_ISSUES, InvalidRequest
from weftline.text.suggestions import sentence

if TYPE_CHECKING:
    from pydantic import BaseModel


_TYPOS_IN_MESSAGE = 3
MAX_LISTED = 20
"""How many unknown fields one response lists."""
_COMPARED_CHARS = 64
"""A longer name is not a typo, and comparing it takes quadratic time."""
_EXCERPT_CHARS = 80
_OTHER_WORDS: Mapping[str, str] = {
    "model": "modelId",
    "system": "systemPrompt",
    "instructions": "systemPrompt",
    "input": "prompt",
    "message": "prompt",
    "maxtokens": "maxOutputTokens",
    "maxcompletiontokens": "maxOutputTokens",
    "stop": "stopSequences",
    "reasoning": "reasoningLevel",
    "reasoningeffort": "reasoningLevel",
    "effort": "reasoningLevel",
    "thinking": "reasoningLevel",
    "responseformat": "outputSchema",
    "functions": "tools",
    "inputschema": "parameters",
    "schema": "parameters",
    "text": "content",
    "images": "attachments",
    "files": "attachments",
    "base64": "data",
    "uri": "url",
    "endpoint": "url",
    "mimetype": "mediaType",
    "contenttype": "mediaType",
    "filename": "name",
    "output": "result",
    "content": "result",
    "toolcallid": "toolUseId",
    "callid": "toolUseId",
}
"""Names of the field in other APIs, in lowercase letters only."""


class UnknownField(Struct, frozen=True):
    """An unknown field. `path` is as the client wrote it, such as `tools[0].paramaters`; `nearest` may be empty.

    `problem` says what is wrong with it, as in "modelid is not a known field".
    """

    path: str
    nearest: str = ""
    problem: str = "is not a known field"
    code: str = "unknown_field"

    @property
    def message(self) -> str:
        """The message for a client whose field was ignored."""
        return f"{self.problem} and was ignored{self._question}"

    @property
    def refusal(self) -> str:
        """The message for a client whose request was refused."""
        return f"{self.problem}{self._question}"

    @property
    def _question(self) -> str:
        return f"; did you mean {self.nearest}?" if self.nearest else ""


class Shape(Struct, frozen=True):
    """The fields of an object, and which of them hold objects with known fields."""

    known: frozenset[str]
    inside: dict[str, _Inner] = {}

    def fits(self, value: Any) -> bool:
        """Whether a value has no unknown fields. Nearly every request needs no more than this."""
        if not isinstance(value, dict):
            return True
        known, inside = self.known, self.inside
        for name, field in cast("dict[str, Any]", value).items():
            if name not in known or (field and name in inside and not inside[name].fits(field)):
                return False
        return True

    def unknown(self, value: Any) -> Iterator[_Found]:
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        for name in fields:
            if name not in self.known and fields[name] is not None:
                yield (name,), nearest_field(name, self)
        for name, inner in self.inside.items():
            for steps, nearest in inner.unknown(fields.get(name)):
                yield (name, *steps), nearest


class Items(Struct, frozen=True):
    each: _Inner

    def fits(self, value: Any) -> bool:
        return not isinstance(value, list) or all(map(self.each.fits, cast("list[Any]", value)))

    def unknown(self, value: Any) -> Iterator[_Found]:
        for index, item in enumerate(cast("list[Any]", value) if isinstance(value, list) else ()):
            for steps, nearest in self.each.unknown(item):
                yield (index, *steps), nearest


class _Values(Struct, frozen=True):
    each: _Inner

    def fits(self, value: Any) -> bool:
        return not isinstance(value, dict) or all(map(self.each.fits, cast("dict[str, Any]", value).values()))

    def unknown(self, value: Any) -> Iterator[_Found]:
        for name, item in cast("dict[str, Any]", value).items() if isinstance(value, dict) else ():
            for steps, nearest in self.each.unknown(item):
                yield (name, *steps), nearest


class _Tagged(Struct, frozen=True):
    by_kind: dict[str, Shape]

    def fits(self, value: Any) -> bool:
        shape = self._shape(value)
        return shape is None or shape.fits(value)

    def unknown(self, value: Any) -> Iterator[_Found]:
        shape = self._shape(value)
        return iter(()) if shape is None else shape.unknown(value)

    def _shape(self, value: Any) -> Shape | None:
        kind = cast("dict[str, Any]", value).get("kind") if isinstance(value, dict) else None
        return self.by_kind.get(kind) if isinstance(kind, str) else None


_Inner: TypeAlias = Shape | Items | _Values | _Tagged
_Found: TypeAlias = tuple[tuple[str | int, ...], str]
"""The path to an unknown field, and the nearest known one."""


def unknown_fields(sent: Mapping[str, Any], shape: Shape) -> tuple[UnknownField, ...]:
    """Returns the first unknown fields of a request; the last one says if there are more.

    A field that is null counts as absent.
    """
    if shape.fits(sent):
        return ()
    found = list(islice(shape.unknown(sent), MAX_LISTED + 1))
    named = [UnknownField(_joined(steps), nearest) for steps, nearest in found[:MAX_LISTED]]
    if len(found) > MAX_LISTED:
        named.append(
            UnknownField("…", problem=f"is not all: each field beyond the first {MAX_LISTED} that is not known")
        )
    return tuple(named)


def with_typos(error: InvalidRequest, unknown: Sequence[UnknownField]) -> InvalidRequest:
    """Returns the refusal, with unknown fields that resemble known ones, as they may be its cause."""
    typos = [field for field in unknown if field.nearest]
    if not typos:
        return error
    *others, last = [f"{field.nearest} instead of {field.path}" for field in typos[:_TYPOS_IN_MESSAGE]]
    meant = f"{', '.join(others)} and {last}" if others else last
    details = error.details | {
        "issues": [
            *[{"path": field.path, "message": field.refusal} for field in typos],
            *error.details.get("issues", ()),
        ][:MAX_ISSUES]
    }
    message = f"{sentence(error.message)} Did you mean {meant}?"
    return type(error)(message, code=error.code, hint=error.hint, **details)


def _joined(steps: Sequence[str | int]) -> str:
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
            continue
        name = step if 0 < len(step) <= _EXCERPT_CHARS and step.isprintable() else repr(step[:_EXCERPT_CHARS])
        path = f"{path}.{name}" if path else name
    return path


# The nearest known field


def nearest_field(name: str, shape: Shape) -> str:
    """Returns the known field that `name` most likely means; empty if none is similar."""
    return _nearest(name, shape.known, _fields_inside(shape)) if len(name) <= _COMPARED_CHARS else ""


@lru_cache(maxsize=1024)
def _nearest(name: str, known: frozenset[str], inside: frozenset[str]) -> str:
    bare = _bare(name)
    candidates = {_bare(path.rpartition(".")[2]): path for path in sorted(inside)}
    candidates |= {_bare(field): field for field in sorted(known)}
    if bare in candidates:
        return candidates[bare]
    other = _OTHER_WORDS.get(bare)
    if other is not None and _bare(other) in candidates:
        return candidates[_bare(other)]
    close = difflib.get_close_matches(bare, candidates, n=1, cutoff=0.7)
    return candidates[close[0]] if close else ""


def _fields_inside(shape: Shape) -> frozenset[str]:
    """Returns the fields of nested objects, where a misplaced field may belong."""
    return frozenset(
        f"{name}.{field}" for name, inner in shape.inside.items() if isinstance(inner, Shape) for field in inner.known
    )


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# What is known, from the models


@lru_cache(maxsize=64)
def shape_of(model: type[BaseModel]) -> Shape:
    """Returns the fields of a model, by their JSON names."""
    inside: dict[str, _Inner] = {}
    known: set[str] = set()
    for name, field in model.model_fields.items():
        known.add(field.alias or name)
        inner = _inner(field.annotation)
        if inner is not None:
            inside[field.alias or name] = inner
    return Shape(frozenset(known), inside)


def _inner(annotation: Any) -> _Inner | None:
    """Returns what to check in a field of this type; None for plain values, and for what is passed on unread."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _inner(args[0])
    if origin in (Union, UnionType):
        inner = [found for arg in args if arg is not NoneType and (found := _inner(arg)) is not None]
        if len(inner) > 1:
            return _Tagged({kind: shape_of(model) for model in _members(args) for kind in _kinds(model)})
        return inner[0] if inner else None
    if origin in (list, tuple):
        each = _inner(args[0])
        return None if each is None else Items(each)
    if origin is dict:
        each = _inner(args[1])
        return None if each is None else _Values(each)
    if _is_model(annotation):
        return None if getattr(annotation, "passthrough", False) else shape_of(annotation)
    return None


@lru_cache(maxsize=64)
def shape_of_struct(declared: type[Struct]) -> Shape:
    """Returns the fields of a struct that accepts unknown ones, by their JSON names."""
    info = inspect.type_info(declared)
    assert isinstance(info, inspect.StructType)
    return _struct_shape(info)


def _struct_shape(info: inspect.StructType) -> Shape:
    inside = {one.encode_name: inner for one in info.fields if (inner := _inside(one.type)) is not None}
    known = {one.encode_name for one in info.fields} | ({info.tag_field} if info.tag_field else set[str]())
    return Shape(frozenset(known), inside)


def _inside(info: inspect.Type) -> _Inner | None:
    match info:
        case inspect.Metadata():
            extra = cast("dict[str, Any]", info.extra or {})  # pyright: ignore[reportUnknownMemberType]
            return None if extra.get("whole") else _inside(info.type)
        case inspect.UnionType():
            members = [one for one in info.types if _inside(one) is not None]
            tagged = {one.tag: _struct_shape(one) for one in members if isinstance(one, inspect.StructType) and one.tag}
            return _Tagged(cast("dict[str, Shape]", tagged)) if tagged else _inside(members[0]) if members else None
        case inspect.VarTupleType() | inspect.ListType():
            each = _inside(info.item_type)
            return None if each is None else Items(each)
        case inspect.DictType():
            each = _inside(info.value_type)
            return None if each is None else _Values(each)
        case inspect.StructType():
            return _struct_shape(info)
        case _:
            return None


def _members(args: Sequence[Any]) -> list[type[BaseModel]]:
    return [arg for arg in args if _is_model(arg)]


def _is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    # Without pydantic, which is not loaded before the first request that is checked by a model.
    return isinstance(annotation, type) and hasattr(annotation, "model_fields")


def _kinds(model: type[BaseModel]) -> tuple[str, ...]:
    kind = model.model_fields["kind"].annotation
    assert get_origin(kind) is Literal
    return get_args(kind)


CODE: Final = "unused_schema"
_PROBLEM = "is not the schema of an object"


def unused_schemas(tools: Sequence[Mapping[str, Any]] | None) -> tuple[UnknownField, ...]:
    """Returns the first few of a valid request."""
    return tuple(islice(_unused(tools or ()), MAX_LISTED))


def _unused(tools: Sequence[Mapping[str, Any]]) -> Iterator[UnknownField]:
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if tool["kind"] == "local":
            if _is_lost(tool.get("parameters"), with_properties=True):
                yield UnknownField(f"{at}.parameters", problem=f"{_PROBLEM} with `properties`", code=CODE)
            if _is_lost(tool.get("outputSchema"), with_properties=False):
                yield UnknownField(f"{at}.outputSchema", problem=_PROBLEM, code=CODE)
        elif tool["kind"] == "mcp_local":
            for place, entry in enumerate(tool["tools"]):
                if _is_lost(entry.get("inputSchema"), with_properties=False):
                    yield UnknownField(f"{at}.tools[{place}].inputSchema", problem=_PROBLEM, code=CODE)


def _is_lost(schema: object, *, with_properties: bool) -> bool:
    """Whether a schema has content that is not used. A schema for any object has none."""
    if not isinstance(schema, dict):
        return schema is not None
    root = cast("dict[str, object]", schema)
    if root.get("type") != "object":
        return bool(root)
    return with_properties and not isinstance(root.get("properties", {}), dict)
