"""Strict mode, in which OpenAI enforces a schema: which schemas fit, and which can be adapted.

Strict mode requires every object to be closed and every property to be required. Optional properties are made required
and nullable; the nulls that a model then writes are dropped from its answer (`without_nulls`), so that the author of
the schema does not see them. A schema that cannot be adapted without changing its meaning (a map with free keys, a
length limit, ambiguous alternatives) is sent without strict mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Raw

from weftline.text.json_size import excess

Schema: TypeAlias = dict[str, Any]

_KEYWORDS = frozenset(
    {
        "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref", "$defs",
        "definitions", "description", "title", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "multipleOf", "minItems", "maxItems",
    }
)  # fmt: skip
_NOTES = frozenset(
    {"$schema", "$id", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"}
)
"""Keywords that restrict nothing, and that strict mode refuses."""
_WORDS = frozenset({"title", "description"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_DEFINITIONS = frozenset({"$defs", "definitions"})
_DEPTH = 10
_PROPERTIES = 5_000
_ENUM_VALUES = 1_000
_ALTERNATIVES = 64
_NULL: Schema = {"type": "null"}

_read = msgspec.json.Decoder(float_hook=lambda digits: Raw(digits.encode())).decode
"""Integers are exact, and other numbers keep their digits as written."""


class StrictForm(NamedTuple):
    """A schema for strict mode. `nulls` says whether null stands for omitted fields in it."""

    schema: Schema
    nulls: bool


def strict_form(schema: Schema) -> StrictForm | None:
    """Returns the schema for strict mode, unchanged if possible; None if there is no equivalent."""
    mender = _Mender(schema)
    try:
        mended = mender.mended_root()
    except (_NotStrict, RecursionError):
        return None
    return StrictForm(schema if mended == schema else mended, mender.optional > 0)


def without_nulls(text: str, schema: Schema) -> str:
    """Removes nulls that stand for omitted fields; returns the text unchanged if it has none, or is not JSON."""
    if "null" not in text or excess(text.encode(errors="replace")):
        return text
    try:
        value: Any = _read(text)
        pruned = _pruned(value, schema, schema)
        return text if pruned is value else msgspec.json.encode(pruned).decode()
    except (msgspec.DecodeError, UnicodeError, RecursionError, _NotStrict):
        return text


class _NotStrict(Exception):
    """Strict mode has no equivalent of this schema."""


class _Mender:
    """Adapts one schema. References are not followed: their targets are adapted where they are defined."""

    def __init__(self, root: Schema) -> None:
        self.optional = 0
        """Fields that are null if they are omitted."""
        self._root = root
        self._properties = 0
        self._values = 0
        self._ambiguous = False
        """Whether a value could match several alternatives, so that it is unclear which fields it omits."""

    def mended_root(self) -> Schema:
        root = self._root
        pointed = target(root, root)
        if pointed is not None:
            # The top must be an object, not a reference to one.
            if root.keys() - _DEFINITIONS - _NOTES - _WORDS != {"$ref"}:
                raise _NotStrict
            root = {**pointed, **{name: value for name, value in root.items() if name != "$ref"}}
        if root.get("type") != "object":
            raise _NotStrict
        mended = self._mended(root, 0)
        if self._ambiguous and self.optional:
            raise _NotStrict
        return mended

    def _mended(self, schema: object, depth: int) -> Schema:
        if not isinstance(schema, dict) or depth > _DEPTH:
            raise _NotStrict
        fields = self._in_known_words(cast("Schema", schema))
        out = {name: value for name, value in fields.items() if name not in ("$ref", "anyOf")}
        for name in _DEFINITIONS & fields.keys():
            out[name] = {key: self._mended(one, depth + 1) for key, one in _object(fields[name]).items()}
        if "$ref" in fields or "anyOf" in fields:
            if fields.keys() - _WORDS - _DEFINITIONS - {"$ref", "anyOf"} or {"$ref", "anyOf"} <= fields.keys():
                raise _NotStrict
            return out | self._joined(fields, depth, alone=not out)
        self._check_literals(out)
        kinds = _kinds(out)
        if not kinds or not kinds <= _TYPES or str(out.get("format", "date")) not in _FORMATS:
            raise _NotStrict
        if "object" in kinds:
            self._close(out, depth)
        elif "properties" in out or "required" in out or "additionalProperties" in out:
            raise _NotStrict
        if "array" in kinds:
            out["items"] = self._mended(out.get("items"), depth + 1)
        elif "items" in out:
            raise _NotStrict
        return out

    def _in_known_words(self, schema: Schema) -> Schema:
        """Returns the schema in the keywords of strict mode, as far as there are equivalents."""
        fields = {name: value for name, value in schema.items() if name not in _NOTES}
        if schema.get("default") is not None:
            default = f"Default: {msgspec.json.encode(schema['default']).decode()}"
            fields["description"] = f"{fields['description']} {default}" if fields.get("description") else default
        if "allOf" in fields and len(_list(fields["allOf"])) == 1 and "anyOf" not in fields:
            fields["anyOf"] = fields.pop("allOf")
        if "oneOf" in fields and "anyOf" not in fields:
            fields["anyOf"] = fields.pop("oneOf")
            if not _exclusive(_alternatives({"anyOf": fields["anyOf"]}, self._root), self._root):
                raise _NotStrict
        if not fields.keys() <= _KEYWORDS:
            raise _NotStrict
        return fields

    def _joined(self, fields: Schema, depth: int, *, alone: bool) -> Schema:
        if "$ref" in fields:
            if target(fields, self._root) is None:
                raise _NotStrict
            # A reference may not have siblings.
            return {"$ref": fields["$ref"]} if alone else {"anyOf": [{"$ref": fields["$ref"]}]}
        members = _list(fields["anyOf"])
        if not members:
            raise _NotStrict
        found = _alternatives(fields, self._root)
        for kind in ("object", "array"):
            alike = [one for one in found if kind in _kinds(one)]
            self._ambiguous |= len(alike) > 1 and not _exclusive(alike, self._root)
        return {"anyOf": [self._mended(member, depth + 1) for member in members]}

    def _close(self, out: Schema, depth: int) -> None:
        properties = _object(out.get("properties", {}))
        required = _list(out.get("required", []))
        closed = out.get("additionalProperties")
        # An object without named properties has free keys, unless it says otherwise.
        if closed not in (None, False) or not (properties or closed is False):
            raise _NotStrict
        if not all(isinstance(name, str) and name in properties for name in required):
            raise _NotStrict
        self._properties += len(properties)
        if self._properties > _PROPERTIES:
            raise _NotStrict
        mended: Schema = {}
        for name, one in properties.items():
            mended[name] = self._mended(one, depth + 1)
            if name not in required and not _admits_null(one, self._root):
                mended[name] = _nullable(mended[name])
                self.optional += 1
        out["properties"] = mended
        out["additionalProperties"] = False
        if len(required) != len(properties):
            out["required"] = list(properties)

    def _check_literals(self, out: Schema) -> None:
        if not out.keys() & {"enum", "const"}:
            return
        values = _literals(out)
        self._values += len(values)
        kinds = {_kind_of(value) for value in values}
        if not kinds or "" in kinds or self._values > _ENUM_VALUES:
            raise _NotStrict
        if "type" not in out:
            out["type"] = kinds.pop() if len(kinds) == 1 else sorted(kinds)


def _kind_of(value: object) -> str:
    """Returns the type of a scalar; empty for an object or an array."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "number"
        case _:
            return ""


def _nullable(mended: Schema) -> Schema:
    kind = mended.get("type")
    if "anyOf" in mended:
        return {**mended, "anyOf": [*mended["anyOf"], _NULL]}
    if kind is not None and not mended.keys() & {"enum", "const", "properties", "items"}:
        return {**mended, "type": [*_kinds_in_order(kind), "null"]}
    words = {name: value for name, value in mended.items() if name in _WORDS}
    return words | {"anyOf": [{name: value for name, value in mended.items() if name not in _WORDS}, _NULL]}


def _admits_null(schema: object, root: Schema) -> bool:
    for one in _alternatives(schema, root):
        limited = bool(one.keys() & {"enum", "const"})
        if None in _literals(one) if limited else "type" not in one or "null" in _kinds(one):
            return True
    return False


def _pruned(value: Any, schema: object, root: Schema) -> Any:
    """Drops nulls from a value; returns the value itself if there are none."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        branch = _branch_of(members, schema, root)
        properties = _object(branch.get("properties", {}))
        required = _list(branch.get("required", []))
        kept: dict[str, Any] = {}
        for name, one in members.items():
            inner = properties.get(name)
            if one is not None or name in required or inner is None or _admits_null(inner, root):
                kept[name] = _pruned(one, inner, root)
        same = len(kept) == len(members) and all(kept[name] is one for name, one in members.items())
        return members if same else kept
    if isinstance(value, list):
        items = cast("list[Any]", value)
        arrays = [one for one in _alternatives(schema, root) if "array" in _kinds(one)]
        if len(arrays) != 1:
            return items
        pruned = [_pruned(one, arrays[0].get("items"), root) for one in items]
        return items if all(new is old for new, old in zip(pruned, items, strict=True)) else pruned
    return value


def _branch_of(members: dict[str, Any], schema: object, root: Schema) -> Schema:
    """Returns the alternative that an object matches; empty if it is unknown."""
    found = [one for one in _alternatives(schema, root) if "object" in _kinds(one)]
    if len(found) > 1:
        tags = _tags(found, root)
        tag = next((name for name in tags if name in members), None)
        found = [] if tag is None else [one for one, values in tags[tag] if members[tag] in values]
    return found[0] if len(found) == 1 else {}


def _exclusive(alternatives: Sequence[Schema], root: Schema) -> bool:
    """Returns True if no value can match more than one of these."""
    seen: set[str] = set()
    literals: list[object] = []
    for one in alternatives:
        values = _literals(one)
        kinds = {_kind_of(value) for value in values} if values else _kinds(one) - {"object"}
        if (not kinds and "object" not in _kinds(one)) or "" in kinds:
            return False
        if any(value in literals for value in values) or (not values and kinds & seen):
            return False
        literals += values
        seen |= set() if values else kinds
    kinds = {_kind_of(value) for value in literals}
    if kinds & seen or ("number" in kinds | seen and "integer" in kinds | seen):
        return False
    objects = [one for one in alternatives if "object" in _kinds(one)]
    return len(objects) < 2 or bool(_tags(objects, root))


def _literals(schema: Schema) -> list[object]:
    return _list(schema["enum"]) if "enum" in schema else [schema["const"]] if "const" in schema else []


def _tags(objects: Sequence[Schema], root: Schema) -> dict[str, list[tuple[Schema, list[Any]]]]:
    """Returns the properties that distinguish these: required in each, with strings that no other has."""
    found: dict[str, list[tuple[Schema, list[Any]]]] = {}
    for name in _object(objects[0].get("properties", {})) if objects else ():
        pairs: list[tuple[Schema, list[Any]]] = []
        for one in objects:
            tag = _object(one.get("properties", {})).get(name)
            plain = _alternatives(tag, root)
            strings = [value for value in _literals(plain[0]) if isinstance(value, str)] if len(plain) == 1 else []
            if strings and name in _list(one.get("required", [])):
                pairs.append((one, strings))
        every = [value for _, values in pairs for value in values]
        if len(pairs) == len(objects) and len(set(every)) == len(every):
            found[name] = pairs
    return found


def _alternatives(schema: object, root: Schema) -> list[Schema]:
    """Returns the alternatives of a schema, with references followed. Raises `_NotStrict` if there are too many."""
    found: list[Schema] = []
    waiting: list[object] = [schema]
    for _ in range(_ALTERNATIVES):
        if not waiting:
            return found
        one = waiting.pop(0)
        if not isinstance(one, dict):
            continue
        fields = cast("Schema", one)
        union = next((name for name in ("anyOf", "oneOf", "allOf") if name in fields), None)
        if "$ref" in fields:
            waiting.append(target(fields, root))
        elif union is not None:
            waiting.extend(_list(fields[union]))
        else:
            found.append(fields)
    raise _NotStrict


def target(schema: Schema, root: Schema) -> Schema | None:
    """Returns the target of a reference: the whole schema, or one of its definitions."""
    reference = schema.get("$ref")
    if reference == "#":
        return root
    parts = reference.split("/") if isinstance(reference, str) else []
    if len(parts) != 3 or parts[0] != "#" or parts[1] not in _DEFINITIONS:
        return None
    found = _object(root.get(parts[1], {})).get(parts[2])
    return cast("Schema", found) if isinstance(found, dict) else None


def _kinds(schema: Schema) -> set[str]:
    return set(_kinds_in_order(schema.get("type")))


def _kinds_in_order(kind: object) -> list[str]:
    if isinstance(kind, str):
        return [kind]
    return [one for one in cast("list[Any]", kind) if isinstance(one, str)] if isinstance(kind, list) else []


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
