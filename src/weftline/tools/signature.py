"""Turns a Python signature into the schema that the model sees and the validator for its arguments.

It serves server tools and client tools, which differ in the type of context that a call gets.
Everything that needs pydantic happens in `Parameters.of`, which a tool calls on first use, not on import.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw

from weftline import prompts
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.tools.arguments import (
    MAX_ISSUES,
    InvalidArguments,
    Issue,
    NotInjected,
    StaleArguments,
    described,
    drop_nulls,
    in_words,
    is_injected,
    names_absent,
    object_args,
    path_in,
    pointer,
)
from weftline.tools.secret_types import refuse_secrets
from weftline.tools.stored_form import NotStored, StoredForm, validation_error
from weftline.tools.validation_work import TooMuchWork
from weftline.work.outcomes import is_interruption

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_log = logging.getLogger("weftline.tools")

_SECTION = re.compile(
    r"^(args|arguments|parameters|params|returns?|yields?|raises|examples?|notes?|warnings?|attributes|see also|todo"
    r"|references|keyword args|keyword arguments|other parameters):\s*$",
    re.IGNORECASE,
)
_ARGS_SECTIONS = frozenset({"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"})
_NOTHING: dict[str, object] = {}
_PARAMETER = re.compile(r"^(\w+)\s*(?:\([^)]*\)\s*)?:\s*(.*)$")


class Docstring(NamedTuple):
    """The parts of a docstring that a model reads: everything before its first section, and the description of each
    parameter.
    """

    description: str
    parameters: dict[str, str]

    @classmethod
    def parse(cls, text: str | None) -> Docstring:
        head: list[str] = []
        parameters: dict[str, list[str]] = {}
        section: str | None = None
        current: list[str] = []
        indent = 0
        for line in inspect.cleandoc(text or "").splitlines():
            stripped = line.strip()
            found = _SECTION.match(line)
            if found:
                section, indent = found.group(1).lower(), 0
                continue
            if section is None:
                head.append(line)
            elif section in _ARGS_SECTIONS and stripped:
                depth = len(line) - len(line.lstrip())
                indent = indent or depth
                named = _PARAMETER.match(stripped) if depth <= indent else None
                if named:
                    current = parameters[named.group(1)] = [named.group(2)]
                else:
                    current.append(stripped)
        return cls("\n".join(head).strip(), {name: " ".join(lines).strip() for name, lines in parameters.items()})


def checked_signature(fn: Callable[..., Any], *, name: str) -> inspect.Signature:
    """Returns the signature of a function that can be a tool.

    Raises:
        TypeError: if it cannot be called with named JSON arguments.
    """
    signature = inspect.signature(fn)
    for position, parameter in enumerate(signature.parameters.values()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise TypeError(f"tool {name!r}: {stars}{parameter.name} has no JSON Schema; name every parameter")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"tool {name!r}: parameter {parameter.name!r} is positional-only; arguments come by name")
        if position == 0 and parameter.name in ("self", "cls") and not inspect.ismethod(fn):
            raise TypeError(f"tool {name!r} looks like a method; make a tool of the bound method: tool(obj.{name})")
    return signature


def arguments_of(
    signature: inspect.Signature, hints: Mapping[str, Any] | None, context_type: type | tuple[type, ...]
) -> list[str]:
    """Returns the names of the arguments: all parameters but the context, as far as hints are known."""
    known = hints or {}
    return [name for name in signature.parameters if not _is_context(known.get(name, Any), context_type)]


def injected_of(signature: inspect.Signature, hints: Mapping[str, Any] | None) -> dict[str, bool]:
    """Returns the arguments that a run fills in, by name, and whether they are optional."""
    known = hints or {}
    return {
        name: one.default is not one.empty
        for name, one in signature.parameters.items()
        if is_injected(known.get(name, Any))
    }


def resolved_hints(fn: Callable[..., Any], local_names: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Returns the type hints of `fn`, or None while a name in them is not defined (yet)."""
    try:
        return get_type_hints(fn, localns=dict(local_names) if local_names else None, include_extras=True)
    except NameError:
        return None


class Parameters:
    """The parameters of one function: their schema, and the conversion of argument text to keyword arguments."""

    __slots__ = ("_fields", "_form", "_injected", "_name", "context", "schema")

    def __init__(
        self,
        name: str,
        *,
        model: type[BaseModel],
        fields: dict[str, str],
        schema: Raw,
        context: str | None,
        injected: Mapping[str, bool],
    ) -> None:
        self._name = name
        self._form = StoredForm(model)
        self._fields = fields
        self.schema = schema
        """JSON Schema of the arguments, without the context."""
        self.context = context
        """The name of the context parameter, if there is one."""
        self._injected = injected
        """The arguments that a run fills in, by name, and whether they are optional."""

    @classmethod
    def of(
        cls,
        name: str,
        *,
        signature: inspect.Signature,
        hints: dict[str, Any],
        docs: dict[str, str],
        context_type: type | tuple[type, ...],
        injectable: bool = False,
    ) -> Parameters:
        """Builds the model of a signature. The schema leaves out the parameter of type `context_type`, or one of these
        types, and those that a run fills in.

        Raises:
            TypeError: if a type hint has no JSON form or a secret in it, a default does not fit its type hint, or a run
                could not fill in an argument.
        """
        from pydantic import ConfigDict, Field, PydanticUserError, create_model
        from pydantic.errors import PydanticSchemaGenerationError
        from pydantic.json_schema import GenerateJsonSchema

        class UntitledSchema(GenerateJsonSchema):
            def field_title_should_be_set(self, schema: Any) -> bool:
                return False

        fields: dict[str, str] = {}
        definitions: dict[str, Any] = {}
        context: str | None = None
        injected = injected_of(signature, hints)
        if injected and not injectable:
            raise TypeError(f"tool {name!r}: only a tool of the server can have {next(iter(injected))!r} injected")
        for parameter in signature.parameters.values():
            hint = hints.get(parameter.name, Any)
            if _is_context(hint, context_type):
                if context is not None:
                    raise TypeError(f"tool {name!r}: only one parameter can take the {_first(context_type).__name__}")
                context = parameter.name
                continue
            refuse_secrets(hint, where=f"tool {name!r}: parameter {parameter.name!r}")
            # Our own field names with theirs as aliases, since pydantic reserves names such as `copy` and `_x`.
            field = f"p{len(fields)}"
            fields[field] = parameter.name
            extra: dict[str, Any] = {"alias": parameter.name}
            if docs.get(parameter.name) and not _has_description(hint):
                extra["description"] = docs[parameter.name]
            if parameter.default is not parameter.empty:
                hint = _with_default(name, parameter, hint)
                extra |= {"default": parameter.default, "validate_default": True}
            definitions[field] = (hint, Field(**extra))
        config = ConfigDict(extra="forbid", allow_inf_nan=False)
        try:
            model = create_model(name, __config__=config, **definitions)
            public = model
            if injected:
                seen = {field: one for field, one in definitions.items() if fields[field] not in injected}
                public = create_model(name, __config__=config, **seen)
            schema = public.model_json_schema(schema_generator=UntitledSchema)
        except (PydanticUserError, PydanticSchemaGenerationError, NameError) as error:
            reason = str(error).splitlines()[0].partition(". ")[0].rstrip(".")
            raise TypeError(f"tool {name!r}: a type hint has no JSON Schema: {reason}") from error
        schema.pop("title", None)
        schema.setdefault("properties", {})
        return cls(
            name,
            model=model,
            fields=fields,
            schema=Raw(msgspec.json.encode(schema)),
            context=context,
            injected=injected,
        )

    def final_args(self, text: str, injected: Mapping[str, object] = _NOTHING) -> bytes:
        """Returns canonical argument bytes: coerced to the declared types, with defaults and what the run fills in.
        Nulls are left out of them where only another value, or none, is allowed.

        They pass the same validators again before the function is called, and must not change, as the function has to
        receive what the log says, and that has to be what the model asked for.

        Raises:
            InvalidArguments: if the text is not a JSON object or does not fit, or if its validators change what they
                have returned.
            NotInjected: if what the run fills in is missing, or does not fit.
            TooMuchWork: if they take too long to validate.
        """
        value, data = object_args(text)
        if self._injected:
            value = self._filled(value, injected)
            data = canonical_value(value)
        try:
            return self._form.of(self._form.read(data), written=data)
        except validation_error() as error:
            issues = self._issues(error, data, value)
            for one in issues:
                if (field := one.path[1:].partition("/")[0]) in self._injected:
                    raise NotInjected(self._name, field, one.message) from None
            if drop_nulls(value, [one for one in issues if one.constraint != "extra_forbidden"]):
                data = canonical_value(value)
                with suppress(validation_error(), NotCanonical, RecursionError):
                    return self._form.of(self._form.read(data), written=data)
            raise InvalidArguments(described(self._name, issues), issues) from None
        except (NotCanonical, RecursionError) as error:
            issue = Issue("", str(error), "json")
            raise InvalidArguments(described(self._name, (issue,)), (issue,)) from None
        except NotStored as error:
            raise not_stored(self._name, error) from error

    def _filled(self, written: dict[str, object], injected: Mapping[str, object]) -> dict[str, object]:
        """Fills in what the run provides, and ignores what a model wrote under those names."""
        filled = {name: value for name, value in written.items() if name not in self._injected}
        for name, optional in self._injected.items():
            if name in injected:
                filled[name] = injected[name]
            elif not optional:
                raise NotInjected(self._name, name)
        return filled

    def keywords(self, args: bytes) -> dict[str, Any]:
        """Returns the keyword arguments of `args`, which are final, as Python objects of the declared types.

        Raises:
            StaleArguments: if the function would not get what the log says. An earlier version of it made these
                arguments (`final_args`); they no longer fit this one, or its validators change them.
            TooMuchWork: if they take too long to validate.
        """
        try:
            model = self._form.read(args)
            same = self._form.gives_back(model, args)
        except validation_error() as error:
            issues = self._issues(error, args, object_args(args.decode())[0])
            raise self._stale(prompts.calls.no_longer_fit(self._name, in_words(issues)), issues) from None
        except TooMuchWork:
            raise
        except BaseException as error:  # raised by the tool's own code
            if is_interruption(error):
                raise
            problem = str(error) or type(error).__name__
            raise self._stale(prompts.calls.no_longer_fit(self._name, [problem]), cause=error) from error
        if not same:
            raise self._stale(prompts.calls.changed_since_asked(self._name))
        return self._named(model)

    def _stale(
        self, text: str, issues: tuple[Issue, ...] = (), *, cause: BaseException | None = None
    ) -> StaleArguments:
        _log.warning(
            "the tool %s no longer takes the arguments of a call, and is not called with them",
            self._name,
            exc_info=cause,
        )
        return StaleArguments(text, issues)

    def keywords_of(self, args: bytes) -> dict[str, Any]:
        """Like `keywords`, for arguments as the model wrote them, without `final_args`.

        Raises:
            InvalidArguments: if they do not fit, or as `require_stable` does.
        """
        try:
            model = self._form.read(args)
        except validation_error() as error:
            issues = self._issues(error, args, object_args(args.decode())[0])
            raise InvalidArguments(described(self._name, issues), issues) from None
        require_stable(model, self._form, name=self._name)
        return self._named(model)

    def _issues(self, error: ValidationError, data: bytes, args: dict[str, object]) -> tuple[Issue, ...]:
        found = self._form.listed(error, data)
        if found is None:
            return (Issue("", prompts.calls.TOO_MUCH_TO_LIST, "work"),)
        issues: list[Issue] = []
        for item in found[:MAX_ISSUES]:
            path = path_in(args, item["loc"], names_absent=names_absent(item["type"]))
            issues.append(Issue(pointer(path), item["msg"], item["type"]))
        return tuple(issues)

    def _named(self, model: BaseModel) -> dict[str, Any]:
        values = model.__dict__
        return {name: values[field] for field, name in self._fields.items()}


def require_stable(model: BaseModel, form: StoredForm, *, name: str) -> None:
    """Refuses arguments that the tool's validators would change again.

    Values that cannot be stored, or not read back, are accepted, since they will not be read again.

    Raises:
        InvalidArguments: if validating them again gives other arguments.
    """
    try:
        form.of(model)
    except NotStored as error:
        raise not_stored(name, error) from error
    except (NotCanonical, RecursionError):
        pass


def not_stored(name: str, error: NotStored) -> InvalidArguments:
    names = ", ".join(error.names) or "an argument"
    _log.error("the tool %s cannot be called: %s cannot be stored and read back: %s", name, names, error)
    issues = tuple([Issue(pointer([one]), prompts.calls.NOT_STORED, "stored") for one in error.names or [""]])
    return InvalidArguments(prompts.calls.cannot_be_stored(name, error.names), issues)


def _first(types: type | tuple[type, ...]) -> type:
    return types[0] if isinstance(types, tuple) else types


def _is_context(hint: Any, context_type: type | tuple[type, ...]) -> bool:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    types = context_type if isinstance(context_type, tuple) else (context_type,)
    if any(hint is one or get_origin(hint) is one for one in types):
        return True
    members = set(get_args(hint))
    return type(None) in members and len(members) == 2 and _is_context((members - {type(None)}).pop(), context_type)


def _has_description(hint: Any) -> bool:
    if get_origin(hint) is not Annotated:
        return False
    return any(getattr(item, "description", None) for item in get_args(hint)[1:])


def _with_default(name: str, parameter: inspect.Parameter, hint: Any) -> Any:
    """Returns the hint, with None added if that is the default. Checks that the default fits."""
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic.fields import FieldInfo

    if isinstance(parameter.default, FieldInfo):
        raise TypeError(f"tool {name!r}: write Annotated[…, Field(…)] for parameter {parameter.name!r}, not a default")
    if parameter.default is None:
        return Optional[hint]  # noqa: UP045  `hint | None` fails for hints that are strings or special forms
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint)
    except PydanticUserError:
        return hint  # reported with the other parameters
    try:
        adapter.dump_python(adapter.validate_python(parameter.default), mode="json", warnings=False)
    except ValueError:  # for what JSON cannot hold, too
        problem = f"tool {name!r}: the default of parameter {parameter.name!r} does not fit its type"
        raise TypeError(problem) from None
    return hint
