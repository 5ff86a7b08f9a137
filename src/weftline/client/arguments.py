"""Turns a function's signature, a model class or a JSON Schema into a tool's parameters and a handler's arguments.

pydantic and the JSON Schema validator are imported when a tool is first offered or called, not before.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Protocol, cast

import msgspec

from weftline.client.errors import ToolError
from weftline.tools.arguments import MAX_ISSUES, InvalidArguments, Issue, described, pointer
from weftline.tools.schema import ArgsValidator
from weftline.tools.secret_types import refuse_secrets
from weftline.tools.signature import Docstring, Parameters, checked_signature, require_stable, resolved_hints
from weftline.tools.stored_form import StoredForm, validation_error


class ToolContext:
    """The context of a call, for handlers with a parameter of this type; the model does not see that parameter.

    `cancelled` turns true when the answer is no longer wanted: the run has ended or the call's time is up. A handler in
    a thread cannot be stopped, so a long one should check it now and then.
    """

    __slots__ = ("_cancelled", "_until", "name", "run_id", "session_id", "tool_use_id")

    def __init__(
        self, *, run_id: str, tool_use_id: str, name: str, session_id: str | None = None, timeout_s: float | None = None
    ) -> None:
        self.run_id = run_id
        self.session_id = session_id
        self.tool_use_id = tool_use_id
        self.name = name
        self._cancelled = threading.Event()
        self._until = None if timeout_s is None else monotonic() + timeout_s

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def seconds_left(self) -> float | None:
        """The time until the tool's `timeout_s` is over; None if it has none."""
        return None if self._until is None else max(0.0, self._until - monotonic())

    def cancel(self) -> None:
        self._cancelled.set()


class Arguments(Protocol):
    """One way to describe and check the arguments of a tool."""

    def schema(self) -> dict[str, Any]: ...

    def bind(self, args: dict[str, Any], context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments for the handler. Raises `ToolError` if they do not match."""
        ...


class SignatureArguments:
    """Named parameters with type hints. One of type `ToolContext` is filled in and hidden from the model."""

    def __init__(self, fn: Callable[..., Any], *, name: str, local_names: Mapping[str, Any] | None = None) -> None:
        self._fn = fn
        self._name = name
        self._signature = checked_signature(fn, name=name)
        # The type hints of a nested function may use types that only its enclosing scope knows, and only now.
        self._hints = resolved_hints(fn, local_names)
        self._built: Parameters | None = None

    def schema(self) -> dict[str, Any]:
        return msgspec.json.decode(self._parameters().schema)

    def bind(self, args: dict[str, Any], context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        parameters = self._parameters()
        try:
            keywords = parameters.keywords_of(msgspec.json.encode(args))
        except InvalidArguments as error:
            raise ToolError(error.message) from None
        if parameters.context is not None:
            keywords[parameters.context] = context
        return (), keywords

    def _parameters(self) -> Parameters:
        if self._built is None:
            hints = self._hints or resolved_hints(self._fn)
            if hints is None:
                raise TypeError(f"tool {self._name!r}: a type hint names something that is not defined")
            docs = Docstring.parse(inspect.getdoc(self._fn)).parameters
            self._built = Parameters.of(
                self._name, signature=self._signature, hints=hints, docs=docs, context_type=ToolContext
            )
        return self._built


class ModelArguments:
    """One parameter: an instance of a pydantic model."""

    def __init__(self, model: Any, *, name: str) -> None:
        self._model = model
        self._name = name
        self._form: StoredForm | None = None

    def schema(self) -> dict[str, Any]:
        refuse_secrets(self._model, where=f"tool {self._name!r}")
        return self._model.model_json_schema()

    def bind(self, args: dict[str, Any], context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._form = form = self._form or StoredForm(self._model)
        try:
            model = form.read(msgspec.json.encode(args))
            require_stable(model, form, name=self._name)
        except validation_error() as error:
            raise ToolError(_refusal(self._name, error)) from None
        except InvalidArguments as error:
            raise ToolError(error.message) from None
        return (model,), {}


class SchemaArguments:
    """One parameter: the arguments as a dict, checked against a JSON Schema."""

    def __init__(self, schema: Mapping[str, Any], *, name: str) -> None:
        self._schema = dict(schema)
        self._name = name

    def schema(self) -> dict[str, Any]:
        return self._schema

    def bind(self, args: dict[str, Any], context: ToolContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.check(args)
        return (args,), {}

    def check(self, args: dict[str, Any]) -> None:
        # A schema that cannot be compiled is not enforced.
        issues = ArgsValidator.of(msgspec.json.encode(self._schema)).validate(msgspec.json.encode(args))
        if issues:
            raise ToolError(described(self._name, issues))


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
    """Returns a handler's return value as the model reads it: text unchanged, None as empty, anything else as JSON."""
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
    found = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_ISSUES]
    return described(name, tuple(Issue(pointer(item["loc"]), item["msg"], item["type"]) for item in found))
