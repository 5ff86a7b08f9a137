"""JSON Schemas of the types of requests and responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast, get_args

from msgspec import Struct, UnsetType, structs
from msgspec.json import schema_components
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from weftline.spec.declare import schema_of_seconds

Schema: TypeAlias = dict[str, Any]


class Schemas(Struct, frozen=True):
    """Schemas by type; `by_type` refers to `components` for types with a name."""

    by_type: dict[Any, Schema]
    components: dict[str, Schema]


def schemas_of(*, requests: Iterable[Any], responses: Iterable[Any]) -> Schemas:
    """Returns the schemas. Raises `ValueError` if two types have the same name."""
    sent = list(dict.fromkeys(requests))
    models = [one for one in sent if isinstance(one, type) and issubclass(one, BaseModel)]
    received = list(dict.fromkeys(responses))
    found = [
        _of_models(models),
        _of_structs([one for one in sent if one not in models]),
        _as_written(_of_structs(received), received),
    ]
    by_type: dict[Any, Schema] = {}
    components: dict[str, Schema] = {}
    for schemas in found:
        for name, schema in schemas.components.items():
            if components.setdefault(name, schema) != schema:
                raise ValueError(f"two types are named {name}")
        by_type |= schemas.by_type
    return Schemas(_all_for_generators(by_type), _all_for_generators(components))


def _of_models(models: Sequence[type[BaseModel]]) -> Schemas:
    by_model, whole = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    return Schemas({model: schema for (model, _), schema in by_model.items()}, whole.get("$defs", {}))


def _of_structs(types: Sequence[Any]) -> Schemas:
    schemas, components = schema_components(
        types, ref_template="#/components/schemas/{name}", schema_hook=schema_of_seconds
    )
    for one in _structs(types):
        if one.__name__ not in components:
            raise ValueError(f"two types are named {one.__name__}")
    return Schemas(dict(zip(types, schemas, strict=True)), components)


def _as_written(schemas: Schemas, types: Sequence[Any]) -> Schemas:
    """Adapts the schemas of responses: a field is always present unless it can be unset, and defaults do not matter."""
    for one in _structs(types):
        component = schemas.components[one.__name__]
        for schema in component["properties"].values():
            schema.pop("default", None)
        if not one.__struct_config__.omit_defaults:
            component["required"] = [
                field.encode_name for field in structs.fields(one) if UnsetType not in get_args(field.type)
            ]
    return schemas


def _structs(types: Iterable[Any]) -> list[type[Struct]]:
    """Returns all structs that these types contain."""
    found: dict[type[Struct], None] = {}
    waiting = list(types)
    while waiting:
        one = waiting.pop()
        if not (isinstance(one, type) and issubclass(one, Struct)):
            waiting.extend(get_args(one))
        elif one not in found:
            found[one] = None
            waiting.extend(field.type for field in structs.fields(one))
    return list(found)


_NAMED = frozenset({"properties", "$defs"})


def _for_generators(value: Any) -> Any:
    """Adapts a schema to client generators.

    These assume that a field with a default is always present, and that enumerations contain strings. Patterns are
    those of JavaScript.
    """
    if isinstance(value, list):
        return [_for_generators(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    if fields.get("enum") in ([True], [False]):
        return {"type": "boolean", "const": fields["enum"][0]}
    pattern = fields.get("pattern")
    if isinstance(pattern, str):
        fields["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
    return {
        name: _all_for_generators(one) if name in _NAMED else _for_generators(one)
        for name, one in fields.items()
        if name != "default"
    }


def _all_for_generators(schemas: dict[Any, Any]) -> dict[Any, Any]:
    return {name: _for_generators(one) for name, one in schemas.items()}
