"""The tools of a run as functions for code: their names and signatures, and the conversion of arguments and results.

search({query: "tea"})      TypeScript, JavaScript
search(query="tea")         Python
"""

from __future__ import annotations

import builtins
import json
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from weftline import prompts
from weftline.messages import joined_text
from weftline.sandbox.request import JS_WORDS
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.text.json_size import is_modest
from weftline.tools.base import ToolFailed, ToolOutput

_NOT_A_NAME = re.compile(r"\W", re.ASCII)
_OFTEN_USED = frozenset(
    {"Array", "BigInt", "Boolean", "Date", "Error", "JSON", "Map", "Math", "Number", "Object", "Promise", "RegExp"}
    | {"Set", "String", "Symbol", "TypeError", "Uint8Array", "console", "report", "default"}
)
"""Names that code in any language needs."""
_MAX_TYPE_CHARS = 2_000
"""A type that is longer than this is written as any object."""
_MAX_LEVELS = 8

Schema = Mapping[str, Any]


class CodeFunction(Struct, frozen=True):
    """A tool that code may call. `tool` is its name in the run, `name` the function's."""

    tool: str
    name: str
    description: str
    schema: dict[str, Any]

    @property
    def properties(self) -> dict[str, Schema]:
        found = self.schema.get("properties")
        return cast("dict[str, Schema]", found) if isinstance(found, dict) else {}

    @property
    def required(self) -> frozenset[str]:
        found = self.schema.get("required")
        return frozenset(cast("list[str]", found)) if isinstance(found, list) else frozenset()


def function_of(tool: str, *, name: str, description: str, parameters: bytes) -> CodeFunction:
    schema: object = msgspec.json.decode(parameters)
    given = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    whole = _inlined(given, cast("dict[str, Any]", given.get("$defs") or {}), 0)
    return CodeFunction(tool, name, description, cast("dict[str, Any]", whole))


def _inlined(schema: object, definitions: dict[str, Any], level: int) -> object:
    """Returns the schema with references replaced by their targets. A recursive reference becomes any value."""
    if isinstance(schema, list):
        return [_inlined(one, definitions, level) for one in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    given = cast("dict[str, Any]", schema)
    target = given.get("$ref")
    if isinstance(target, str):
        name = target.removeprefix("#/$defs/")
        if level >= _MAX_LEVELS or name not in definitions:
            return {}
        return _inlined(
            {**definitions[name], **{key: one for key, one in given.items() if key != "$ref"}}, definitions, level + 1
        )
    return {key: _inlined(one, definitions, level + 1) for key, one in given.items() if key != "$defs"}


def function_name(tool: str, taken: Mapping[str, object] | frozenset[str] = frozenset()) -> str:
    """Returns a name that is a valid variable in every language, and not a keyword or built-in name."""
    name = _NOT_A_NAME.sub("_", tool) or "_"
    if name[0].isdigit() or name in JS_WORDS | _OFTEN_USED or keyword.iskeyword(name) or hasattr(builtins, name):
        name = f"{name}_" if not name[0].isdigit() else f"_{name}"
    while name in taken:
        name += "_"
    return name


def written_args(function: CodeFunction, given: Sequence[object]) -> str:
    """Returns the arguments of a call as JSON. A mapping has them by name; others follow the order of the signature.

    Raises `ToolFailed` for invalid ones.
    """
    properties = list(function.properties)
    named: dict[str, object] = {}
    rest = list(given)
    if rest and isinstance(rest[-1], dict) and (len(rest) == 1 or not _takes_mapping(function, len(rest) - 1)):
        named = cast("dict[str, object]", rest.pop())
    if len(rest) > len(properties):
        raise ToolFailed(prompts.code.too_many_arguments(function.name, len(properties), given=len(rest)))
    for name, value in zip(properties, rest, strict=False):
        if name in named:
            raise ToolFailed(prompts.code.argument_twice(function.name, name))
        named[name] = value
    try:
        return canonical_value(_plain(named)).decode()
    except NotCanonical as error:
        raise ToolFailed(prompts.code.not_arguments(function.name, str(error))) from None


def _takes_mapping(function: CodeFunction, position: int) -> bool:
    schemas = list(function.properties.values())
    return position < len(schemas) and schemas[position].get("type") == "object"


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        raise ToolFailed(prompts.code.NO_BYTES)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_plain(one) for one in cast("list[object]", value)]
    return value


def value_of(output: ToolOutput) -> object:
    """Returns what code receives as a result: what the tool returned, as far as that is known.

    Of a tool that is not a function of ours only the text is known: it is an object or a list if it is one in JSON.
    """
    text = joined_text(output.parts)
    if (output.is_json or text[:1] in ("{", "[")) and is_modest(text):
        try:
            found: object = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
        return found
    return text


# Signatures


def typescript(function: CodeFunction) -> str:
    return f"{_js_doc(function)}function {function.name}(args{_optional(function)}: {_ts_args(function)}): Promise<any>"


def python(function: CodeFunction) -> str:
    required = function.required
    parts = [
        f"{name}: {_py(schema, 0)}" + ("" if name in required else f" = {_py_default(schema)}")
        for name, schema in sorted(function.properties.items(), key=lambda item: item[0] not in required)
        if name.isidentifier() and not keyword.iskeyword(name)
    ]
    inside = f"*, {', '.join(parts)}" if parts else ""
    doc = "".join([f"\n    # {line}".rstrip() for line in _lines(function, python=True)])
    return f"async def {function.name}({inside}) -> Any: ...{doc}"


def _optional(function: CodeFunction) -> str:
    return "" if function.required else "?"


def _js_doc(function: CodeFunction) -> str:
    lines = _lines(function, python=False)
    if not lines:
        return ""
    return "/** " + "\n * ".join([line.replace("*/", "* /") for line in lines]) + " */\n"


def _lines(function: CodeFunction, *, python: bool) -> list[str]:
    lines = [line.rstrip() for line in function.description.strip().split("\n")] if function.description else []
    for name, schema in function.properties.items():
        described = schema.get("description")
        if isinstance(described, str) and described:
            text = " ".join(described.split())
            lines.append(f"{name}: {text}" if python else f"@param args.{name} {text}")
    return lines


def _ts_args(function: CodeFunction) -> str:
    return _ts(function.schema, 0) if function.properties else "{}"


def _ts(schema: object, level: int) -> str:
    text = _ts_type(schema, level)
    return text if len(text) <= _MAX_TYPE_CHARS else "any"


def _ts_type(schema: object, level: int) -> str:
    if not isinstance(schema, dict) or level > _MAX_LEVELS:
        return "any"
    given = cast("dict[str, Any]", schema)
    if (values := _literals(given)) is not None:
        return " | ".join([json.dumps(value, ensure_ascii=False) for value in values])
    for word in ("anyOf", "oneOf"):
        if isinstance(given.get(word), list):
            return _union([_ts(one, level + 1) for one in given[word]])
    kind = given.get("type")
    if isinstance(kind, list):
        return _union([_ts({**given, "type": one}, level) for one in cast("list[str]", kind)])
    match kind:
        case "string" | "boolean" | "null":
            return kind
        case "integer" | "number":
            return "number"
        case "array":
            item = _ts(given.get("items"), level + 1)
            return f"({item})[]" if " " in item and not item.startswith("{") else f"{item}[]"
        case "object":
            return _ts_object(given, level)
        case _:
            return _ts_object(given, level) if "properties" in given else "any"


def _ts_object(schema: dict[str, Any], level: int) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        more = schema.get("additionalProperties")
        return (
            f"Record<string, {_ts(cast(object, more), level + 1)}>" if isinstance(more, dict) else "Record<string, any>"
        )
    required = cast("list[str]", schema.get("required") or [])
    parts = [
        f"{name if name.isidentifier() else json.dumps(name)}{'' if name in required else '?'}: {_ts(one, level + 1)}"
        for name, one in cast("dict[str, Any]", properties).items()
    ]
    return "{" + "; ".join(parts) + "}"


def _py(schema: object, level: int) -> str:
    text = _py_type(schema, level)
    return text if len(text) <= _MAX_TYPE_CHARS else "Any"


def _py_type(schema: object, level: int) -> str:
    if not isinstance(schema, dict) or level > _MAX_LEVELS:
        return "Any"
    given = cast("dict[str, Any]", schema)
    if (values := _literals(given)) is not None:
        return f"Literal[{', '.join([repr(value) for value in values])}]"
    for word in ("anyOf", "oneOf"):
        if isinstance(given.get(word), list):
            return _union([_py(one, level + 1) for one in given[word]])
    kind = given.get("type")
    if isinstance(kind, list):
        return _union([_py({**given, "type": one}, level) for one in cast("list[str]", kind)])
    match kind:
        case "string":
            return "str"
        case "boolean":
            return "bool"
        case "null":
            return "None"
        case "integer":
            return "int"
        case "number":
            return "float"
        case "array":
            return f"list[{_py(given.get('items'), level + 1)}]"
        case "object":
            return _py_object(given, level)
        case _:
            return _py_object(given, level) if "properties" in given else "Any"


def _py_object(schema: dict[str, Any], level: int) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        more: object = schema.get("additionalProperties")
        return f"dict[str, {_py(cast(object, more), level + 1) if isinstance(more, dict) else 'Any'}]"
    parts = [f"{json.dumps(name)}: {_py(one, level + 1)}" for name, one in cast("dict[str, Any]", properties).items()]
    return "{" + ", ".join(parts) + "}"


def _py_default(schema: Schema) -> str:
    return repr(schema["default"]) if "default" in schema and len(repr(schema["default"])) < 80 else "..."


def _literals(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return cast("list[Any]", values) if isinstance(values, list) and values else None


def _union(parts: list[str]) -> str:
    return " | ".join(dict.fromkeys(parts)) or "any"
