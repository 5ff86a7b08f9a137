"""Structured output: a Python type as the schema of a run's answer, and parsing the answer into that type."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from weftline.client.errors import ParseError
from weftline.client.results import RunResult
from weftline.wire.limits import DEFAULT_SCHEMA_NAME

T = TypeVar("T")


def parse_output(result: RunResult | str, output_type: type[T]) -> T:
    """Parses the final text of a run as `output_type`: a pydantic model, a msgspec struct, or any type of pydantic's.

    Raises:
        ParseError: if the text is not JSON or does not match; its `text` is the text.
    """
    text = result if isinstance(result, str) else result.text
    if _is_struct(output_type):
        try:
            return msgspec.json.decode(text, type=output_type)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ParseError(f"the answer is not a {output_type.__name__}: {error}", text=text) from error
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(output_type).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = "/".join(map(str, first["loc"])) or "(root)"
        raise ParseError(f"the answer does not match: {place}: {first['msg']}", text=text) from error


def schema_of(output_type: Any) -> dict[str, Any]:
    """Returns the `outputSchema` of a type."""
    if _is_struct(output_type):
        schemas, parts = msgspec.json.schema_components([output_type], ref_template="#/$defs/{name}")
        root = parts.get(output_type.__name__, schemas[0])
        schema = {**root, "$defs": parts} if len(parts) > 1 else root
    else:
        from pydantic import TypeAdapter

        adapter: TypeAdapter[Any] = TypeAdapter(output_type)
        schema = adapter.json_schema()
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", getattr(output_type, "__name__", ""))[:64] or DEFAULT_SCHEMA_NAME
    return {"name": name, "schema": schema}


def _is_struct(output_type: Any) -> bool:
    return isinstance(output_type, type) and issubclass(output_type, msgspec.Struct)
