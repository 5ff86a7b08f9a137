"""The type of an agent's answer: its schema for the model, and parsing the answer into a value."""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar, cast

from msgspec import Raw
from msgspec.json import encode

from weftline import prompts
from weftline.messages import OutputSchema
from weftline.text.display import after_fence, without_fence
from weftline.tools.counted_type import CountedType, problems_of
from weftline.tools.validation_work import TooMuchWork

T = TypeVar("T")

_WRAPPED = "value"
"""The field that wraps any type that is not an object, as models answer with objects."""


class OutputType(Generic[T]):
    """An output type: any type that pydantic supports. Pydantic is imported when the first one is created."""

    def __init__(self, kind: type[T] | Any) -> None:
        from pydantic import TypeAdapter

        self.kind = kind
        adapter: TypeAdapter[T] = TypeAdapter(kind)
        self._type = CountedType(adapter)
        schema = adapter.json_schema()
        self._wrapped = schema.get("type") != "object" or "properties" not in schema
        if self._wrapped:
            definitions = schema.pop("$defs", None)
            schema = {
                "type": "object",
                "properties": {_WRAPPED: schema},
                "required": [_WRAPPED],
                "additionalProperties": False,
            }
            if definitions:
                schema["$defs"] = definitions
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", getattr(kind, "__name__", ""))[:64] or "answer"
        self.schema = OutputSchema(name, Raw(encode(schema)))

    def problem(self, result: str) -> str:
        """Returns why a tool's result is not a valid answer of this type; empty if it is valid."""
        from pydantic import ValidationError
        from pydantic_core import from_json

        try:
            value: Any = from_json(result)
        except ValueError:
            value = result
        try:
            self._type.read(encode(value))
        except ValidationError as error:
            return "; ".join([message for _, message in problems_of(error)[:3]])
        except TooMuchWork as error:
            return str(error)
        return ""

    def parse(self, text: str) -> T:
        """Parses the answer. Raises `ValueError`, with a text for the model, if it does not match the type."""
        from pydantic import ValidationError
        from pydantic_core import from_json

        try:
            value = from_json(without_fence(text))
            if self._wrapped:
                if not isinstance(value, dict) or _WRAPPED not in value:
                    raise ValueError(prompts.turns.answer_invalid([f"/{_WRAPPED}: is missing"]))
                value = cast("dict[str, Any]", value)[_WRAPPED]
            # Validated as JSON, in which dates, decimals and the like are strings and numbers.
            return self._type.read(encode(value))
        except ValidationError as error:
            problems = [f"/{'/'.join(map(str, steps))}: {message}" for steps, message in problems_of(error)[:5]]
            raise ValueError(prompts.turns.answer_invalid(problems)) from error
        except TooMuchWork as error:
            raise ValueError(prompts.turns.answer_invalid([f"/: {error}"])) from None

    def partial(self, text: str) -> object:
        """Parses an answer that is still being written, without validation.

        Returns None if nothing can be parsed yet.
        """
        from pydantic_core import from_json

        try:
            value: object = from_json(after_fence(text), allow_partial=True)
        except ValueError:
            return None
        if self._wrapped:
            return cast("dict[str, object]", value).get(_WRAPPED) if isinstance(value, dict) else None
        return value
