"""Finds everything that is wrong with a value: what the type of a spec's field says, and its own checks.

Decoding stops at the first problem. Where it fails, the value is walked beside the description that msgspec has of the
declared types, and every problem is noted with its path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias, cast, get_args

from msgspec import Struct, inspect, to_builtins
from msgspec.structs import force_setattr

from weftline.errors import Issue
from weftline.spec.declare import fields_of, is_seconds, milliseconds_problem, write_seconds
from weftline.wire.validation import path_of, quoted

Path: TypeAlias = tuple[int | str, ...]


class Problems:
    """The problems of a body, in the order in which they were found."""

    def __init__(self) -> None:
        self.found: list[Issue] = []

    def add(self, path: Path, problem: str) -> None:
        self.found.append(Issue(path_of(path), problem))


Walk: TypeAlias = Callable[[Any, Path, Problems], None]


@cache
def walk_of(declared: type[Struct]) -> Walk:
    """Returns what notes every problem of a value that should be such an object."""
    walk = _walk(inspect.type_info(declared), False)
    assert walk is not None
    return walk


@cache
def checks_of(declared: type[Struct]) -> dict[str, Walk]:
    """Returns the checks that are left when a body decodes, by the names of the fields that have some."""
    info = inspect.type_info(declared)
    assert isinstance(info, inspect.StructType)
    found = {one.encode_name: _walk(one.type, True) for one in info.fields}
    return {name: walk for name, walk in found.items() if walk is not None}


def _walk(info: inspect.Type, checks_only: bool) -> Walk | None:
    """Returns the walk for a type; None if there is nothing to check in it."""
    match info:
        case inspect.Metadata():
            return _described(info, checks_only)
        case inspect.UnionType():
            return _union(info, checks_only)
        case inspect.StructType():
            return _struct(info, checks_only)
        case inspect.DictType():
            return _dict(info, checks_only)
        case inspect.VarTupleType() | inspect.ListType():
            return _list(info, checks_only)
        case inspect.AnyType() | inspect.RawType():
            return None
        case _:
            return None if checks_only else _scalar(info)


def _described(info: inspect.Metadata, checks_only: bool) -> Walk | None:
    extra = cast("dict[str, Any]", info.extra or {})  # pyright: ignore[reportUnknownMemberType]
    inner, problem = _walk(info.type, checks_only), cast("Callable[[Any], str] | None", extra.get("check"))
    if inner is not None and "says" in extra and isinstance(info.type, inspect.StrType):
        inner = _scalar(info.type, extra["says"])
    if problem is None:
        return inner

    def walk(value: Any, path: Path, problems: Problems) -> None:
        before = len(problems.found)
        if inner is not None:
            inner(value, path, problems)
        if len(problems.found) == before and (text := problem(value)):
            problems.add(path, text)

    return walk


def _struct(info: inspect.StructType, checks_only: bool) -> Walk | None:
    fields = [(one.encode_name, _walk(one.type, checks_only)) for one in info.fields]
    required = [one.encode_name for one in info.fields if one.required]
    optional = {one.encode_name for one in info.fields} - set(required)
    known = {*optional, *required} | ({info.tag_field} if info.tag_field else set[str]())
    walks = [(name, walk) for name, walk in fields if walk is not None]
    if checks_only and not walks:
        return None

    def walk(value: Any, path: Path, problems: Problems) -> None:
        if not isinstance(value, dict):
            problems.add(path, "must be a JSON object")
            return
        sent = cast("dict[str, Any]", value)
        for name in required:
            if name not in sent:
                problems.add((*path, name), "is required")
        for name, inside in walks:
            field = sent.get(name)
            if field is not None or (name in sent and name not in optional):
                inside(field, (*path, name), problems)
        if info.forbid_unknown_fields:
            for name in sent:
                if name not in known:
                    problems.add((*path, name), "is not a known field")

    return walk


def _dict(info: inspect.DictType, checks_only: bool) -> Walk | None:
    of_key, of_value = _walk(info.key_type, checks_only), _walk(info.value_type, checks_only)
    most = info.max_length
    if checks_only and of_key is None and of_value is None:
        return None

    def walk(value: Any, path: Path, problems: Problems) -> None:
        if not isinstance(value, dict):
            problems.add(path, "must be a JSON object")
            return
        items = cast("dict[str, Any]", value)
        for name, item in items.items():
            if of_key is not None:
                of_key(name, (*path, name), problems)
            if of_value is not None:
                of_value(item, (*path, name), problems)
        if most is not None and len(items) > most:
            problems.add(path, f"has {len(items)} entries; at most {most} are allowed")

    return walk


def _list(info: inspect.VarTupleType | inspect.ListType, checks_only: bool) -> Walk | None:
    each, least, most = _walk(info.item_type, checks_only), info.min_length or 0, info.max_length
    if checks_only and each is None:
        return None

    def walk(value: Any, path: Path, problems: Problems) -> None:
        if not isinstance(value, list | tuple):
            problems.add(path, "must be a JSON array")
            return
        items = cast("list[Any]", value)
        if len(items) < least:
            problems.add(path, f"must have at least {least} item{'s' if least > 1 else ''}")
        elif most is not None and len(items) > most:
            problems.add(path, f"has {len(items)} items; at most {most} are allowed")
        elif each is not None:
            for index, item in enumerate(items):
                each(item, (*path, index), problems)

    return walk


def _union(info: inspect.UnionType, checks_only: bool) -> Walk | None:
    members = [one for one in info.types if not isinstance(one, inspect.NoneType)]
    nullable = len(members) < len(info.types)
    if len(members) == 1:
        inner = _walk(members[0], checks_only)
    elif all(isinstance(one, inspect.StructType) for one in members):
        inner = _tagged([one for one in members if isinstance(one, inspect.StructType)], checks_only)
    else:
        inner = _mixed(members, checks_only)
    if inner is None or not nullable:
        return inner

    def walk(value: Any, path: Path, problems: Problems) -> None:
        if value is not None:
            inner(value, path, problems)

    return walk


def _tagged(members: list[inspect.StructType], checks_only: bool) -> Walk | None:
    walks = {one.tag: _walk(one, checks_only) for one in members}
    field, kinds = members[0].tag_field or "", ", ".join([str(one.tag) for one in members])
    if checks_only and not any(walks.values()):
        return None

    def walk(value: Any, path: Path, problems: Problems) -> None:
        if not isinstance(value, dict):
            problems.add(path, "must be a JSON object")
            return
        kind = cast("dict[str, Any]", value).get(field)
        if isinstance(kind, str) and kind in walks:
            if (inside := walks[kind]) is not None:
                inside(value, path, problems)
        else:
            problems.add((*path, field), "is required" if field not in value else f"must be one of {kinds}")

    return walk


def _mixed(members: list[inspect.Type], checks_only: bool) -> Walk | None:
    """Of several plain types a check of their own says what is wrong; here only objects are looked into."""
    found = [_walk(one, checks_only) for one in members if isinstance(one, inspect.StructType)]
    inner = found[0] if found else None
    if inner is None:
        return None

    def walk(value: Any, path: Path, problems: Problems) -> None:
        if isinstance(value, dict):
            inner(cast("object", value), path, problems)

    return walk


def _scalar(info: inspect.Type, says: str = "") -> Walk:
    problem = _problem_of(info, says)

    def walk(value: Any, path: Path, problems: Problems) -> None:
        if text := problem(value):
            problems.add(path, text)

    return walk


def _problem_of(info: inspect.Type, says: str) -> Callable[[Any], str]:
    match info:
        case inspect.StrType(min_length, max_length, pattern):
            matches = None if pattern is None else re.compile(pattern).search
            written = "" if pattern is None else pattern.removeprefix(r"\A").removesuffix(r"\Z")

            def of_text(value: Any) -> str:
                if not isinstance(value, str):
                    return "must be a string"
                if min_length is not None and len(value) < min_length:
                    return _too_short(min_length)
                if max_length is not None and len(value) > max_length:
                    return f"must have at most {max_length} characters"
                if matches is not None and not matches(value):
                    return says or f"{quoted(value)} must match ^{written}$"
                return ""

            return of_text
        case inspect.IntType() | inspect.FloatType():
            kinds = (int,) if isinstance(info, inspect.IntType) else (int, float)
            name = "an integer" if kinds == (int,) else "a number"
            least, most = info.ge, info.le

            def of_number(value: Any) -> str:
                if not isinstance(value, kinds) or isinstance(value, bool):
                    return f"must be {name}"
                if least is not None and value < least:
                    return f"must be at least {least:g}"
                return f"must be at most {_plain(most)}" if most is not None and value > most else ""

            return of_number
        case inspect.BoolType():
            return lambda value: "" if isinstance(value, bool) else "must be true or false"
        case inspect.LiteralType(values):
            *others, last = [repr(value) for value in values]
            wanted = f"must be {', '.join(others)} or {last}"
            return lambda value: "" if isinstance(value, str) and value in values else wanted
        case inspect.CustomType(kind):
            return lambda value: milliseconds_problem(kind, value)
        case _:
            raise NotImplementedError(f"a spec cannot have a field of {info}")


def _too_short(least: int) -> str:
    return "must not be empty" if least == 1 else f"must have at least {least} characters"


def _plain(number: float) -> str:
    return f"{number:d}" if isinstance(number, int) else f"{number:g}"


# Values in Python


def require_field(declared: type[Struct], name: str, value: object) -> object:
    """Returns the value of a field that code gives, with its times as `Seconds`. Raises `ValueError`."""
    field = next(one for one in fields_of(declared) if one.name == name)
    kind = _seconds_in(field.type)
    if kind is not None and isinstance(value, Mapping):
        times = cast("Mapping[Any, object]", value)
        value = {key: _time(f"{name} of {key!r}", kind, one) for key, one in times.items()}
    elif kind is not None:
        value = _time(name, kind, value)
    for path, text in problems_in(declared, name, value)[:1]:
        raise ValueError(f"{path} {text}, not {value!r:.200}")
    return value


def problems_in(declared: type[Struct], name: str, value: object) -> list[Issue]:
    """Returns what is wrong with the value of a field that code gives."""
    value = dict(cast("Mapping[object, object]", value)) if isinstance(value, Mapping) else value
    problems = Problems()
    try:
        plain = to_builtins(value, enc_hook=write_seconds)
        _field_walk(declared, name)(plain, (name,), problems)
    except (TypeError, ValueError, OverflowError) as error:
        return [Issue(name, f"is not JSON: {error}")]
    return [Issue(path, in_python(declared, text)) for path, text in problems.found]


def require_group(group: Struct, declared: type[Struct]) -> None:
    """Checks a group that code has made, and turns its times into `Seconds`. Raises `ValueError`."""
    for one in fields_of(declared):
        value = getattr(group, one.name)
        if value is not None:
            checked = require_field(declared, one.name, value)
            if checked is not value:
                force_setattr(group, one.name, checked)


def in_python(declared: type[Struct], text: str) -> str:
    """Rewords what is wrong with a value for those who write Python."""
    names = {one.wire: one.name for one in fields_of(declared)}
    text = re.sub(r"\b[a-z]+[A-Z]\w*", lambda found: names.get(found[0], found[0]), text)
    return text.replace("a JSON array", "a list").replace("a JSON object", "a mapping")


@cache
def _field_walk(declared: type[Struct], name: str) -> Walk:
    info = inspect.type_info(declared)
    assert isinstance(info, inspect.StructType)
    found = _walk(next(one.type for one in info.fields if one.name == name), False)
    return found or (lambda value, path, problems: None)


def _seconds_in(kind: Any) -> Any:
    if is_seconds(kind):
        return kind
    return next((found for arg in get_args(kind) if (found := _seconds_in(arg)) is not None), None)


def _time(name: str, kind: Any, value: object) -> object:
    least, most = max(kind.least_ms, 1) / 1000, kind.most_ms / 1000
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if least <= number <= most or (number == 0 and kind.least_ms == 0):
        return kind(number)
    zero = "0, or " if kind.least_ms == 0 else ""
    raise ValueError(f"{name} must be a number of seconds: {zero}{least} to {most:,.0f}, not {value!r:.200}")
