"""Fields of a request that the protocol does not know.

They are accepted, because clients are newer than servers, and kept in the stored spec; but a field that does nothing is
more often a slip than the future, so each is named to the client with the known field that is nearest to it.

What is known is read off the models that judge the request. A request without unknown fields costs a comparison of
key sets for each of its objects.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, cast, get_args, get_origin

from msgspec import Struct
from pydantic import BaseModel

MAX_NAMED = 20
"""Unknown fields that are named in one answer."""
_COMPARED_CHARS = 64
"""A longer name is nobody's slip of the pen, and comparing it costs the square of its length."""
_SHOWN_CHARS = 80
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
    "mimetype": "mediaType",
    "contenttype": "mediaType",
    "filename": "name",
    "output": "result",
    "content": "result",
    "toolcallid": "toolUseId",
    "callid": "toolUseId",
}
"""What other APIs call it, in small letters alone."""


class UnknownField(Struct, frozen=True):
    """`path` is the field as the client wrote it, such as `tools[0].paramaters`. `nearest` is empty if nothing is near.

    `fault` says what is wrong with it, as in "modelid is not a known field".
    """

    path: str
    nearest: str = ""
    fault: str = "is not a known field"

    @property
    def message(self) -> str:
        """For a client that is told that the field was ignored."""
        return f"{self.fault} and was ignored{self._question}"

    @property
    def refusal(self) -> str:
        """For a client that is told that its request was refused."""
        return f"{self.fault}{self._question}"

    @property
    def _question(self) -> str:
        return f"; did you mean {self.nearest}?" if self.nearest else ""


class Shape(Struct, frozen=True):
    """The fields that an object may have, and those of them that hold objects of ours."""

    known: frozenset[str]
    inside: dict[str, _Inner] = {}


class _Items(Struct, frozen=True):
    each: _Inner


class _Values(Struct, frozen=True):
    each: _Inner


class _Tagged(Struct, frozen=True):
    by_kind: dict[str, Shape]


_Inner: TypeAlias = Shape | _Items | _Values | _Tagged
_Step: TypeAlias = str | int


def unknown_fields(sent: Mapping[str, Any], shape: Shape, *, at: str = "") -> tuple[UnknownField, ...]:
    """The unknown fields of a valid request, the first few; the last says so if there are more.

    A field that is null counts as absent. `at` is the path of the object itself.
    """
    found = list(islice(_unknown(sent, shape), MAX_NAMED + 1))
    if not found:
        return ()
    named = [UnknownField(_joined(at, steps), nearest) for steps, nearest in found[:MAX_NAMED]]
    if len(found) > MAX_NAMED:
        named.append(UnknownField("…", fault=f"is not all: each field beyond the first {MAX_NAMED} that is not known"))
    return tuple(named)


def _unknown(value: object, inner: _Inner) -> Iterator[tuple[tuple[_Step, ...], str]]:
    """The way to each unknown field inside, and the nearest known one."""
    match inner:
        case Shape(known, inside):
            if not isinstance(value, dict):
                return
            fields = cast("dict[str, Any]", value)
            if not fields.keys() <= known:
                for name in fields:
                    if name not in known and fields[name] is not None:
                        yield (name,), nearest_field(name, inner)
            for name, within in inside.items():
                if fields.get(name):
                    for steps, nearest in _unknown(fields[name], within):
                        yield (name, *steps), nearest
        case _Items(each):
            for index, item in enumerate(cast("list[object]", value) if isinstance(value, list) else ()):
                if isinstance(each, Shape) and _is_plain(item, each):
                    continue
                for steps, nearest in _unknown(item, each):
                    yield (index, *steps), nearest
        case _Values(each):
            for name, item in cast("dict[str, object]", value).items() if isinstance(value, dict) else ():
                for steps, nearest in _unknown(item, each):
                    yield (name, *steps), nearest
        case _Tagged(by_kind):
            fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            shape = by_kind.get(fields.get("kind", ""))
            if shape is not None and not _is_plain(fields, shape):
                yield from _unknown(fields, shape)


def _is_plain(value: object, shape: Shape) -> bool:
    return not shape.inside and isinstance(value, dict) and cast("dict[str, Any]", value).keys() <= shape.known


def _joined(at: str, steps: Sequence[_Step]) -> str:
    path = at
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
            continue
        name = step if 0 < len(step) <= _SHOWN_CHARS and step.isprintable() else repr(step[:_SHOWN_CHARS])
        path = f"{path}.{name}" if path else name
    return path


# The nearest known field


def nearest_field(name: str, shape: Shape) -> str:
    """The known field that `name` most likely stands for; empty if none is near."""
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
    """Fields of objects of this object, which is where somebody may have wanted to put one."""
    return frozenset(
        f"{name}.{field}" for name, inner in shape.inside.items() if isinstance(inner, Shape) for field in inner.known
    )


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# What is known, from the models


@lru_cache(maxsize=64)
def shape_of(model: type[BaseModel]) -> Shape:
    """The fields of a model, by their names in JSON."""
    inside: dict[str, _Inner] = {}
    known: set[str] = set()
    for name, field in model.model_fields.items():
        known.add(field.alias or name)
        inner = _inner(field.annotation)
        if inner is not None:
            inside[field.alias or name] = inner
    return Shape(frozenset(known), inside)


def _inner(annotation: Any) -> _Inner | None:
    """What is to be looked at in a field of this type; None for values, and for what is handed on unread."""
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
        return None if each is None else _Items(each)
    if origin is dict:
        each = _inner(args[1])
        return None if each is None else _Values(each)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return None if getattr(annotation, "passthrough", False) else shape_of(annotation)
    return None


def _members(args: Sequence[Any]) -> list[type[BaseModel]]:
    return [arg for arg in args if isinstance(arg, type) and issubclass(arg, BaseModel)]


def _kinds(model: type[BaseModel]) -> tuple[str, ...]:
    kind = model.model_fields["kind"].annotation
    assert get_origin(kind) is Literal
    return get_args(kind)
