"""The type that a tool's function returns, for results that somebody else gives in its place."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from weftline.canonical import canonical_value
from weftline.tools.base import ToolOutput


class ReturnType:
    """What pydantic makes of a return hint. A hint that it does not know, or that is for parts, takes anything."""

    def __init__(self, hint: Any) -> None:
        from pydantic import PydanticUserError, TypeAdapter
        from pydantic.errors import PydanticSchemaGenerationError

        self._adapter: TypeAdapter[Any] | None = None
        if hint is Any or hint is ToolOutput:
            return
        try:
            self._adapter = TypeAdapter(hint)
        except (PydanticUserError, PydanticSchemaGenerationError):
            pass

    @property
    def known(self) -> bool:
        """Whether it takes only some values."""
        return self._adapter is not None

    def fault(self, value: object) -> str:
        """What is wrong with a JSON value as a result; "" if nothing is.

        A text may be the JSON of a result: whoever writes a message, or chooses an option, has only texts.
        """
        from pydantic import ValidationError

        if self._adapter is None:
            return ""
        try:
            self._adapter.validate_json(canonical_value(value), strict=True)
        except ValidationError as error:
            if isinstance(value, str):
                with suppress(ValidationError):
                    self._adapter.validate_json(value, strict=True)
                    return ""
            found = error.errors(include_url=False, include_context=False, include_input=False)[:3]
            where = [".".join(map(str, one["loc"])) for one in found]
            return "; ".join(
                [f"{at}: {one['msg']}" if at else one["msg"] for at, one in zip(where, found, strict=True)]
            )
        return ""
