"""Functions of a folder: tools, hooks and effects. Tools and effects are named by their file.

    @define_tool(effect="read", uses=[])
    async def find_order(state: ThreadState, number: str) -> str:
        \"\"\"Finds an order by its number.\"\"\"

The first parameter is the thread's state, `ThreadState` for `async` functions and `SyncThreadState` for plain ones; the
others are the arguments, whose types are the schema that a model sees.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast, get_args, overload

from msgspec import Struct

from weftline.errors import Issue, invalid_field
from weftline.kernel.entries import STRICTNESS, Effect
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.threads.definitions.base import Checks, DefinitionError, Handler, PackedMetadata
from weftline.threads.definitions.models import as_tuple
from weftline.threads.definitions.prompts import VariableDefinition, check_variables
from weftline.threads.thread import SyncThreadState, ThreadState
from weftline.tools.arguments import InvalidArguments
from weftline.tools.signature import Docstring, Parameters, checked_signature, resolved_hints
from weftline.tools.validation_work import CPU_S, TooMuchWork, bounded

HookPoint: TypeAlias = Literal[
    "after_thread_created",
    "after_subagent_created",
    "after_system_message",
    "filter_messages",
    "prefilter_llm_history",
    "before_create_message",
    "after_create_message",
    "before_update_message",
    "after_update_message",
    "before_store_tool_result",
    "after_tool_call_success",
    "after_tool_call_failure",
]
HOOK_POINTS: tuple[HookPoint, ...] = get_args(HookPoint)
HOOK_TIMEOUT_S = 30.0
EFFECT_TIMEOUT_S = 600.0
_HOOK_ID = re.compile(r"[a-z][a-z0-9_]{0,127}")
STATES = (ThreadState, SyncThreadState)
"""The types of the parameter that takes the thread's state."""


class ToolDefinition(Struct, frozen=True, kw_only=True, dict=True, rename="camel"):
    """A tool of a folder. Its name is empty until its file, or a registry, names it."""

    execute: Handler
    name: str = ""
    description: str = ""
    effect: Effect = "once"
    uses: tuple[str, ...] | None = None
    """What it may call; None for everything, empty for nothing."""
    variables: tuple[VariableDefinition, ...] = ()
    reconcile: Handler | None = None
    confirm: str | Handler | None = None
    confirm_timeout_s: float | None = None
    approvers: tuple[str, ...] = ()
    in_doubt: Literal["report", "ask"] | None = None
    timeout_s: float | None = None
    concurrent: bool | None = None
    blocking: bool = True
    title: str = ""
    display_hint: str = ""
    args: Any = None
    """The type of the arguments, for a function that takes them all in one: `execute(state, args)`."""
    declares_effect: bool = False
    packed: PackedMetadata | None = None
    """The package that it is from; None for one of the folder itself."""

    def __post_init__(self) -> None:
        checks = Checks("tool", self.name or _name_of(self.execute), self.packed)
        if self.name:
            checks.callable_name(self.name)
        if check_function(self.execute, "execute", checks) and not self.description.strip():
            checks.problem("description", "is missing: give the function a docstring")
        if self.effect not in STRICTNESS:
            checks.choice(self.effect, "effect", STRICTNESS)
        elif (self.effect == "reconcile") != (self.reconcile is not None):
            checks.problem("reconcile", 'effect="reconcile" and a reconcile function go together')
        if self.uses is not None:
            checks.names(self.uses, "uses")
        for field in ("timeout_s", "confirm_timeout_s"):
            _check_seconds(getattr(self, field), field, checks)
        if self.in_doubt not in (None, "report", "ask"):
            checks.choice(self.in_doubt, "in_doubt", ("report", "ask"))
        if self.approvers and self.confirm is None:
            checks.problem("approvers", "needs confirm, which says what they are asked")
        if self.confirm is not None and not (isinstance(self.confirm, str) or callable(self.confirm)):
            checks.problem("confirm", f"must be a question or a function that returns it, not {self.confirm!r}")
        if self.args is not None and not isinstance(self.args, type):
            checks.problem("args", f"must be a type that describes an object, not {self.args!r}")
        check_variables(self.variables, checks)
        checks.done()

    @cached_property
    def parameters(self) -> Parameters:
        """The arguments: their schema, and how they are read. The thread's state is not among them.

        Raises:
            TypeError: if a type cannot be resolved or has no JSON Schema.
        """
        return parameters_of(self.execute, self.name or _name_of(self.execute), args=self.args)

    @property
    def takes_state(self) -> str | None:
        """The name of the parameter that takes the thread's state."""
        return self.parameters.context

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.execute(*args, **kwargs)


class HookDefinition(Struct, frozen=True, kw_only=True, rename="camel"):
    """A hook of a folder: code at one of twelve points, for the prompts and agents that list its id."""

    hook: HookPoint
    id: str
    execute: Handler
    timeout_s: float = HOOK_TIMEOUT_S
    packed: PackedMetadata | None = None
    """The package that it is from; None for one of the folder itself."""

    def __post_init__(self) -> None:
        checks = Checks("hook", self.id, self.packed)
        checks.choice(self.hook, "hook", HOOK_POINTS)
        own = self.id if self.packed is None else self.packed.own(self.id)
        if not isinstance(own, str) or not _HOOK_ID.fullmatch(own):
            checks.problem("id", f"{self.id!r} must be lower case letters, digits and _, beginning with a letter")
        check_function(self.execute, "execute", checks)
        _check_seconds(self.timeout_s, "timeout_s", checks)
        checks.done()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.execute(*args, **kwargs)


class EffectDefinition(Struct, frozen=True, kw_only=True, dict=True, rename="camel"):
    """An effect of a folder: code that a thread schedules. Its name is empty until its file or a registry names it."""

    handler: Handler
    name: str = ""
    description: str = ""
    timeout_s: float = EFFECT_TIMEOUT_S
    packed: PackedMetadata | None = None
    """The package that it is from; None for one of the folder itself."""

    def __post_init__(self) -> None:
        checks = Checks("effect", self.name or _name_of(self.handler), self.packed)
        if self.name:
            checks.name(self.name)
        if check_function(self.handler, "handler", checks) and not self.description.strip():
            checks.problem("description", "is missing: give the function a docstring")
        _check_seconds(self.timeout_s, "timeout_s", checks)
        checks.done()

    @cached_property
    def parameters(self) -> Parameters:
        """The arguments, as a tool's."""
        return parameters_of(self.handler, self.name or _name_of(self.handler))

    async def final_args(self, args: Mapping[str, Any] | None) -> bytes:
        """Returns the JSON of arguments as the handler is given them. Raises `InvalidRequest` if they do not fit."""
        try:
            text = canonical_value(dict(args or {})).decode()
        except (NotCanonical, TypeError, ValueError) as error:
            raise invalid_field("args", f"the arguments of {self.name!r} are not JSON: {error}.") from None
        try:
            return await bounded(lambda: self.parameters.final_args(text), size=len(text), cpu_s=CPU_S)
        except (InvalidArguments, TooMuchWork) as error:
            raise invalid_field("args", f"the effect {self.name!r} does not take them: {error}") from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)


Decorates: TypeAlias = Callable[[Handler], ToolDefinition]


@overload
def define_tool(fn: Handler, /) -> ToolDefinition: ...
@overload
def define_tool(description: str, args: type | None, fn: Handler, /) -> ToolDefinition: ...
@overload
def define_tool(
    *,
    name: str = "",
    description: str = "",
    effect: Effect | None = None,
    uses: Iterable[str] | None = None,
    variables: Iterable[VariableDefinition] = (),
    reconcile: Handler | None = None,
    confirm: str | Callable[..., str | None] | None = None,
    confirm_timeout_s: float | None = None,
    approvers: Iterable[str] = (),
    in_doubt: Literal["report", "ask"] | None = None,
    timeout_s: float | None = None,
    concurrent: bool | None = None,
    blocking: bool = True,
    title: str = "",
    display_hint: str = "",
    args: type | None = None,
    tenvs: Mapping[str, str] | None = None,
) -> Decorates: ...
@overload
def define_tool(
    *, execute: Handler, description: str = "", args: type | None = None, name: str = "", effect: Effect | None = None
) -> ToolDefinition: ...
def define_tool(*given: Any, execute: Handler | None = None, **options: Any) -> Any:
    """Turns a function into a tool of a folder. The schema comes from its types, the description from its docstring.

    Args:
        name: In a folder it is that of the file; this is for tools in code.
        effect: Whether it may run again after a crash, as for `weftline.tool`: `read`, `idempotent`, `reconcile` or
            `once`, which is the default.
        uses: The tools, prompts and agents that it may call; nothing limits it if this is not given.
        variables: What it needs of the environment.
        confirm: What a person is asked before each call: `"Pay {cents} cents?"`.
        args: The type of the arguments, for a function that takes them in one: `execute(state, args)`.

    Raises:
        DefinitionError: if an option is wrong; all of them are named.
    """
    if len(given) == 1 and not options and execute is None and callable(given[0]):
        return _tool(given[0], {})
    if len(given) in (2, 3) and isinstance(given[0], str):
        warnings.warn("define_tool(description, args, fn) is deprecated: decorate fn", DeprecationWarning, stacklevel=2)
        args = given[1] if len(given) == 3 else None
        return _tool(given[-1], {**options, "description": given[0], "args": args})
    if given:
        raise DefinitionError("tool", [Issue("execute", f"must be a function, not {given[0]!r}")])
    if execute is not None:
        return _tool(execute, options)

    def made(fn: Handler) -> ToolDefinition:
        return _tool(fn, options)

    return made


def _tool(fn: object, options: Mapping[str, Any]) -> ToolDefinition:
    known = {"declares_effect", "execute", "packed"}
    allowed = {one for one in ToolDefinition.__struct_fields__ if one not in known} | {"tenvs"}
    options = dict(options)
    for option in options.keys() - allowed:
        from weftline.text.suggestions import did_you_mean

        raise TypeError(f"a tool has no option {option!r}.{did_you_mean(option, allowed - {'tenvs'})}")
    variables = as_tuple(options.pop("variables", ()))
    if (tenvs := options.pop("tenvs", None)) is not None:
        warnings.warn("tenvs is deprecated: write variables", DeprecationWarning, stacklevel=3)
        types = cast("Mapping[str, Any]", tenvs)
        variables += tuple([VariableDefinition(one, type="secret", required=True) for one in types])
    effect = options.pop("effect", None)
    reconcile = options.get("reconcile")
    for field in ("uses", "approvers"):
        if options.get(field) is not None:
            options[field] = as_tuple(options[field])
    if not options.get("description"):
        options["description"] = Docstring.parse(getattr(fn, "__doc__", None)).description if callable(fn) else ""
    return ToolDefinition(
        execute=cast(Handler, fn),
        effect=effect or ("once" if reconcile is None else "reconcile"),
        declares_effect=effect is not None or reconcile is not None,
        variables=variables,
        **options,
    )


def define_hook(hook: HookPoint, *, id: str, execute: Handler | None = None, timeout_s: float = HOOK_TIMEOUT_S) -> Any:
    """Turns a function into a hook at this point, for the prompts and agents that list its `id`.

    It is given up after `timeout_s` seconds; then, and if it raises, the run goes on with what the hook was given.

    Raises:
        DefinitionError: if the point is unknown, or the id is not snake_case.
    """
    if execute is not None:
        return HookDefinition(hook=hook, id=id, execute=execute, timeout_s=timeout_s)

    def made(fn: Handler) -> HookDefinition:
        return HookDefinition(hook=hook, id=id, execute=fn, timeout_s=timeout_s)

    return made


@overload
def define_effect(fn: Handler, /) -> EffectDefinition: ...
@overload
def define_effect(
    *, name: str = "", description: str = "", timeout_s: float = EFFECT_TIMEOUT_S
) -> Callable[[Handler], EffectDefinition]: ...
def define_effect(
    fn: Handler | None = None, /, *, name: str = "", description: str = "", timeout_s: float = EFFECT_TIMEOUT_S
) -> Any:
    """Turns a function into an effect: what a thread schedules, and no model reads.

    After a crash it may run again, so it should be idempotent. It is given up after `timeout_s` seconds.

    Raises:
        DefinitionError: if there is no description, or it is not a function.
    """

    def made(handler: Handler) -> EffectDefinition:
        text = description or Docstring.parse(getattr(handler, "__doc__", None)).description
        return EffectDefinition(handler=handler, name=name, description=text, timeout_s=timeout_s)

    return made if fn is None else made(fn)


def check_function(fn: object, path: str, checks: Checks) -> bool:
    """Checks that this is a function, and returns whether it is."""
    if not callable(fn) or isinstance(fn, type):
        checks.problem(path, f"must be a function, not {fn!r}")
        return False
    if inspect.isgeneratorfunction(fn):
        checks.problem(path, "is a generator; it must return one result")
        return False
    return True


def parameters_of(fn: Handler, name: str, *, args: type | None = None) -> Parameters:
    """Returns the arguments of a function without the one that takes the thread's state.

    With `args`, they are the fields of that type, whose value the function takes after the state.
    """
    described = fn if args is None else args
    hints = resolved_hints(described)
    if hints is None:
        raise TypeError(f"tool {name!r}: a type hint names something that is not defined")
    return Parameters.of(
        name,
        signature=checked_signature(described, name=name),
        hints=hints,
        docs=Docstring.parse(fn.__doc__).parameters,
        context_type=STATES,
    )


def _name_of(fn: object) -> str:
    name = getattr(fn, "__name__", "")
    return name if isinstance(name, str) else ""


def _check_seconds(value: object, path: str, checks: Checks) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        checks.problem(path, f"must be a positive number of seconds, not {value!r}")
