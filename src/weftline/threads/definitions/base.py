"""What all definitions have in common: how their own fields are checked, their names and their JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct

from weftline.errors import Issue, WeftlineError
from weftline.text.suggestions import did_you_mean

Kind: TypeAlias = Literal["model", "prompt", "agent", "tool", "hook", "effect", "endpoint", "controller"]
"""What a definition is."""
EnvType: TypeAlias = Literal["text", "secret"]

T = TypeVar("T")

RESERVED_TOOLS = ("subagent_create", "subagent_message")
EXTERNAL = ("provider:", "mcp:")
"""Tools that no folder defines: of the model's own API, and of an MCP server."""
PACKAGE_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_NAME = re.compile(r"[^\s/:][^/:\n]{0,127}")
_REFERENCE = re.compile(rf"(?:{PACKAGE_ID.pattern}/)?{_NAME.pattern}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class PackedMetadata(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Which package a definition is from. Whatever else names the definition says `package_id/name`."""

    package_id: str
    version: str = ""
    exposed: bool = False
    """Whether it can be seen from outside of its package, which only agents can."""

    def own(self, name: object) -> object:
        """Returns a name without the package."""
        return name.removeprefix(f"{self.package_id}/") if isinstance(name, str) else name


class DefinitionError(WeftlineError):
    """Definitions that are wrong. `issues` has them all, by field."""

    default_code = "bad_definition"

    def __init__(self, about: str, issues: Iterable[Issue]) -> None:
        self.issues = tuple(issues)
        self.about = about
        super().__init__("; ".join([f"{about}: {one.path}: {one.message}" for one in self.issues]))


class Checks:
    """Collects what is wrong with the fields of one definition, so that all of it is reported at once."""

    def __init__(self, kind: Kind, name: object, packed: PackedMetadata | None = None) -> None:
        self.about = f"{kind} {name!r}" if not isinstance(name, str) else f'{kind} "{name}"' if name else kind
        self.issues: list[Issue] = []
        self._packed = packed

    def problem(self, path: str, message: str) -> None:
        self.issues.append(Issue(path, message))

    def done(self) -> None:
        """Raises `DefinitionError` if there is a problem."""
        if self.issues:
            raise DefinitionError(self.about, self.issues)

    def name(self, value: object, path: str = "name") -> None:
        own = path == "name"
        if self._packed is not None and own:
            value = self._packed.own(value)
        if not isinstance(value, str):
            self.problem(path, f"must be a name, not {_shown(value)}")
        elif not value.strip():
            self.problem(path, "is missing")
        elif not (_NAME if own else _REFERENCE).fullmatch(value):
            self.problem(path, f"{value!r} must be 1 to 128 characters without / and :")

    def callable_name(self, value: object) -> None:
        """The name of what models may call: prompts and agents are named as tools are."""
        if self._packed is not None:
            value = self._packed.own(value)
        if not isinstance(value, str) or not value.strip():
            self.name(value)
        elif problem := tool_name_problem(value):
            self.problem("name", problem)

    def text(self, value: object, path: str) -> None:
        if not isinstance(value, str) or not value.strip():
            self.problem(path, "is missing" if value in ("", None) else f"must be text, not {_shown(value)}")

    def choice(self, value: object, path: str, known: Iterable[str]) -> None:
        known = list(known)
        if value not in known:
            near = did_you_mean(value, known) if isinstance(value, str) else ""
            among = ", ".join(repr(one) for one in known)
            self.problem(
                path, f"{value!r} is not one of {among}.{near}" if near else f"{value!r} is not one of {among}"
            )

    def whole(self, value: object, path: str, *, least: int = 0, most: int | None = None) -> None:
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or value < least
            or (most is not None and value > most)
        ):
            upto = f"from {least} to {most}" if most is not None else f"of at least {least}"
            self.problem(path, f"must be a whole number {upto}, not {_shown(value)}")

    def flag(self, value: object, path: str) -> None:
        if not isinstance(value, bool):
            self.problem(path, f"must be True or False, not {_shown(value)}")

    def names(self, values: object, path: str) -> None:
        """A list of names; a single string is a usual mistake."""
        if isinstance(values, str) or not isinstance(values, Iterable):
            self.problem(path, f"must be a list of names, not {_shown(values)}")
            return
        for index, one in enumerate(cast("Iterable[object]", values)):
            if not isinstance(one, str) or not one.strip():
                self.problem(f"{path}[{index}]", f"must be a name, not {_shown(one)}")

    def env(self, values: object, path: str = "env") -> None:
        if not isinstance(values, Mapping):
            self.problem(path, f"must be a mapping of names to texts, not {_shown(values)}")
            return
        for key, value in cast("Mapping[object, object]", values).items():
            if not isinstance(key, str) or not _VARIABLE.fullmatch(key):
                self.problem(path, f"{key!r} is not the name of a variable: letters, digits and _")
            elif not isinstance(value, str):
                self.problem(f"{path}.{key}", f"must be text, not {_shown(value)}")

    def variable(self, value: object, path: str) -> None:
        if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
            self.problem(path, f"{value!r} is not the name of a variable: letters, digits and _")

    def options(self, values: object, path: str) -> None:
        given = cast("Mapping[object, object]", values) if isinstance(values, Mapping) else {0: 0}
        if not all(isinstance(key, str) for key in given):
            self.problem(path, f"must be a mapping of names to values, not {_shown(cast(object, values))}")

    def instances(self, values: object, path: str, wanted: type | tuple[type, ...], what: str) -> None:
        if isinstance(values, str) or not isinstance(values, Iterable):
            self.problem(path, f"must be a list of {what}, not {_shown(values)}")
            return
        for index, one in enumerate(cast("Iterable[object]", values)):
            if not isinstance(one, wanted):
                self.problem(f"{path}[{index}]", f"must be a {what}, not {_shown(one)}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else type(value).__name__


def tool_name_problem(name: str) -> str:
    """Returns what is wrong with the name of a tool; empty if nothing is."""
    for prefix in EXTERNAL:
        if name.startswith(prefix):
            return f"{name!r} begins with {prefix!r}, which names a tool that is defined elsewhere"
    if name in RESERVED_TOOLS:
        return f"{name!r} is reserved"
    if not _TOOL_NAME.fullmatch(name):
        return f"{name!r} must begin with a letter or _ and have at most 64 letters, digits, _ and -"
    return ""


def validate_tool_name(name: str) -> None:
    """Raises `DefinitionError` unless a tool may have this name."""
    if problem := tool_name_problem(name):
        raise DefinitionError("tool", [Issue("name", problem)])


def alias_of(name: str) -> str:
    """Returns the name that models, the wire and events have for a callable: letters, digits and `_` only."""
    return name.replace("/", "__").replace("-", "_")


def to_json(definition: Struct) -> dict[str, Any]:
    """Returns a definition as plain JSON values, in the thread specification's spelling."""
    return msgspec.to_builtins(definition, enc_hook=_of_code, str_keys=True)


def from_json(value: Mapping[str, Any], type: type[T]) -> T:
    """Reads a definition from plain JSON values.

    Raises:
        DefinitionError: if a field is unknown, missing or wrong.
    """
    try:
        return msgspec.convert(value, type, str_keys=True)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, DefinitionError):
            raise error.__cause__ from None
        reason, _, path = str(error).partition(" - at `$.")
        name = value.get("name", value.get("id", ""))
        kind = type.__name__.removesuffix("Definition").lower()
        raise DefinitionError(f'{kind} "{name}"', [Issue(path.rstrip("`") or "definition", reason)]) from None


def _of_code(value: object) -> object:
    if isinstance(value, type):
        return schema_of(value)
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return f"{getattr(value, '__module__', '')}:{name}"
    raise NotImplementedError


def schema_of(value: Mapping[str, Any] | type) -> dict[str, Any]:
    """Returns the JSON Schema that `value` is, or that describes the type `value`."""
    if isinstance(value, Mapping):
        return dict(value)
    from pydantic import TypeAdapter

    return TypeAdapter(value).json_schema()


def is_callable_with_name(value: object) -> bool:
    return callable(value) and isinstance(getattr(value, "__name__", None), str)


Handler: TypeAlias = Callable[..., Any]
