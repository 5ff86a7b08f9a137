"""From a function's signature, a model class or a JSON Schema to what the server is told and what a handler is given.

pydantic and the JSON Schema validator are imported when a tool is first offered or called, not before.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast, get_type_hints

import msgspec

from weftline.client.context import ToolContext
from weftline.client.errors import ToolError

_SECTION = re.compile(r"^(\w[\w ]*):\s*$")
_ARGS = frozenset({"args", "arguments", "parameters", "params"})
_PARAMETER = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


class Arguments(Protocol):
    """One way to describe and to check the arguments of a tool."""

    def schema(self) -> dict[str, Any]: ...

    def bind(self, args: dict[str, Any], context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the handler with. Raises `ToolError` when the arguments do not fit."""
        ...


class SignatureArguments:
    """Named parameters with type hints; one that is hinted `ToolContext` is filled in and not shown to the model."""

    def __init__(self, fn: Callable[..., Any], *, name: str, local_names: Mapping[str, Any] | None = None) -> None:
        self._fn = fn
        self._name = name
        self._local_names = None if local_names is None else dict(local_names)
        self._model: Any = None
        self._fields: dict[str, str] = {}
        self._context: str | None = None
        for position, parameter in enumerate(inspect.signature(fn).parameters.values()):
            if position == 0 and parameter.name in ("self", "cls"):
                raise TypeError(f"tool {name!r} looks like a method; make a tool of the bound method: tool(obj.{name})")
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise TypeError(f"tool {name!r}: parameter {parameter.name!r} cannot be given by name")

    def schema(self) -> dict[str, Any]:
        from pydantic.json_schema import GenerateJsonSchema

        class Untitled(GenerateJsonSchema):
            def field_title_should_be_set(self, schema: Any) -> bool:
                return False

        schema: dict[str, Any] = self._built().model_json_schema(schema_generator=Untitled)
        schema.pop("title", None)
        schema.setdefault("properties", {})
        return schema

    def bind(self, args: dict[str, Any], context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        from pydantic import ValidationError

        model = self._built()
        try:
            values: dict[str, Any] = model.model_validate(args).__dict__
        except ValidationError as error:
            raise ToolError(_refusal(self._name, error)) from None
        keywords = {name: values[field] for field, name in self._fields.items()}
        if self._context is not None:
            keywords[self._context] = context
        return (), keywords

    def _built(self) -> Any:
        if self._model is not None:
            return self._model
        from pydantic import ConfigDict, Field, create_model

        try:
            hints = get_type_hints(self._fn, localns=self._local_names, include_extras=True)
        except NameError as error:
            raise TypeError(f"tool {self._name!r}: a type hint cannot be resolved: {error}") from error
        docs = parse_docstring(inspect.getdoc(self._fn))[1]
        definitions: dict[str, Any] = {}
        fields: dict[str, str] = {}
        for parameter in inspect.signature(self._fn).parameters.values():
            hint = hints.get(parameter.name, Any)
            if hint is ToolContext:
                self._context = parameter.name
                continue
            # A field name of our own: pydantic keeps some names, such as `copy`, for itself.
            field = f"p{len(fields)}"
            fields[field] = parameter.name
            default = ... if parameter.default is parameter.empty else parameter.default
            described = getattr(hint, "__metadata__", None) is not None and any(
                getattr(item, "description", None) for item in hint.__metadata__
            )
            description = None if described else docs.get(parameter.name)
            about = {"alias": parameter.name, **({} if description is None else {"description": description})}
            definitions[field] = (hint, cast("Any", Field)(default, **about))
        self._fields = fields
        self._model = create_model(self._name, __config__=ConfigDict(extra="forbid"), **definitions)
        return self._model


class ModelArguments:
    """One parameter: an instance of a pydantic model."""

    def __init__(self, model: Any, *, name: str) -> None:
        self._model = model
        self._name = name

    def schema(self) -> dict[str, Any]:
        return self._model.model_json_schema()

    def bind(self, args: dict[str, Any], context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        from pydantic import ValidationError

        try:
            return (self._model.model_validate(args),), {}
        except ValidationError as error:
            raise ToolError(_refusal(self._name, error)) from None


class SchemaArguments:
    """One parameter: the arguments as a dict, checked against a JSON Schema."""

    def __init__(self, schema: Mapping[str, Any], *, name: str) -> None:
        self._schema = dict(schema)
        self._name = name
        self._validator: Any = None

    def schema(self) -> dict[str, Any]:
        return self._schema

    def bind(self, args: dict[str, Any], context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.check(args)
        return (args,), {}

    def check(self, args: dict[str, Any]) -> None:
        import jsonschema_rs

        if self._validator is None:
            try:
                self._validator = jsonschema_rs.validator_for(self._schema, offline=True)
            except (ValueError, TypeError):
                self._validator = False  # a schema that nobody can compile binds nobody
        if self._validator is False or self._validator.is_valid(args):
            return
        problems = [
            f"{'/'.join(map(str, error.instance_path)) or '(root)'}: {error.message}"
            for error, _ in zip(self._validator.iter_errors(args), range(10), strict=False)
        ]
        raise ToolError(f"The arguments do not fit the tool {self._name}: {'; '.join(problems)}")


def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """What stands before the first section, and what its `Args:` section says of each parameter."""
    head: list[str] = []
    parameters: dict[str, str] = {}
    section, current = "", ""
    for line in (text or "").splitlines():
        found = _SECTION.match(line)
        if found:
            section, current = found.group(1).lower(), ""
        elif not section:
            head.append(line)
        elif section in _ARGS and line.strip():
            named = _PARAMETER.match(line.strip())
            if named and (not current or len(line) - len(line.lstrip()) <= 4):
                current = named.group(1)
                parameters[current] = named.group(2)
            elif current:
                parameters[current] += " " + line.strip()
    return "\n".join(head).strip(), parameters


def arguments_of(
    parameters: object, fn: Callable[..., Any], *, name: str, local_names: Mapping[str, Any] | None = None
) -> Arguments:
    if parameters is None:
        return SignatureArguments(fn, name=name, local_names=local_names)
    if isinstance(parameters, Mapping):
        return SchemaArguments(cast("Mapping[str, Any]", parameters), name=name)
    if hasattr(parameters, "model_json_schema"):
        return ModelArguments(parameters, name=name)
    raise TypeError(f"tool {name!r}: parameters must be a JSON Schema or a pydantic model class")


def as_text(value: object) -> str:
    """A handler's value as the model reads it: text as it is, nothing as nothing, everything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, enc_hook=_jsonable).decode()


def _jsonable(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


def _refusal(name: str, error: Any) -> str:
    listed = "; ".join(
        f"{'/'.join(map(str, item['loc'])) or '(root)'}: {item['msg']}"
        for item in error.errors(include_url=False, include_context=False, include_input=False)[:10]
    )
    return f"The arguments do not fit the tool {name}: {listed}"
