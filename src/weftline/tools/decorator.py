"""The decorator that makes tools of Python functions.

@weftline.tool(effect="read")
async def weather(city: str, days: int = 1) -> dict[str, object]:
    \"\"\"Forecast for a city.

    Args:
        city: Name of the city, in English.
        days: How many days ahead.
    \"\"\"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any, Concatenate, Literal, Protocol, TypeVar, overload

from weftline.errors import short_traceback
from weftline.kernel.entries import Effect
from weftline.text.suggestions import did_you_mean, our_name
from weftline.tools.base import Paging, ToolContext
from weftline.tools.function import FunctionTool, P, R

W = TypeVar("W")


class Decorates(Protocol):
    """Turns a function into a tool, for agents with the deps of its context."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[ToolContext[W], P], R], /
    ) -> FunctionTool[Concatenate[ToolContext[W], P], R, W]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> FunctionTool[P, R, object]: ...


@overload
def tool(fn: Callable[Concatenate[ToolContext[W], P], R], /) -> FunctionTool[Concatenate[ToolContext[W], P], R, W]: ...
@overload
def tool(fn: Callable[P, R], /) -> FunctionTool[P, R, object]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | None = None,
    concurrent: bool | None = None,
    timeout_s: float | None = None,
    blocking: bool = True,
    reconcile: Callable[..., Any] | None = None,
    confirm: str | Callable[..., str | None] | None = None,
    confirm_timeout_s: float | None = None,
    approvers: Iterable[str] | None = None,
    in_doubt: Literal["report", "ask"] | None = None,
    tags: Iterable[str] = (),
    bookkeeping: bool = False,
    terminal: bool = False,
    example: Mapping[str, Any] | None = None,
    reminder: str = "",
    bounded: bool | Paging = False,
    external: bool = False,
    title: str = "",
    display_hint: str = "",
) -> Decorates: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | None = None,
    concurrent: bool | None = None,
    timeout_s: float | None = None,
    blocking: bool = True,
    reconcile: Callable[..., Any] | None = None,
    confirm: str | Callable[..., str | None] | None = None,
    confirm_timeout_s: float | None = None,
    approvers: Iterable[str] | None = None,
    in_doubt: Literal["report", "ask"] | None = None,
    tags: Iterable[str] = (),
    bookkeeping: bool = False,
    terminal: bool = False,
    example: Mapping[str, Any] | None = None,
    reminder: str = "",
    bounded: bool | Paging = False,
    external: bool = False,
    title: str = "",
    display_hint: str = "",
    **unknown: Any,
) -> Any:
    """Turns a function into a tool. The schema comes from its type hints, the descriptions from its docstring.

    A parameter with the type hint `ToolContext` is filled in by the runtime and hidden from the model. Plain functions
    run in a thread, `async` ones on the event loop.

    Args:
        fn: The function, if the decorator is used without parentheses.
        name: What the model calls it; the function's name by default.
        description: What the model reads; by default the docstring up to its first section.
        effect: Whether it may run again after a crash: `read`, `idempotent`, `reconcile` or `once`. The default is
            `once`, or `reconcile` if that function is given.
        concurrent: Whether it may run alongside the other calls of its turn. By default it may if its effect is `read`.
        timeout_s: Seconds after which a call is given up; the runtime's default if not given.
        blocking: False for a plain function quick enough to run on the event loop without a thread.
        reconcile: Asked after a crash whether a call that had started took place. It takes the tool's arguments that it
            names, and the `ToolContext` as `context`, and returns `Happened(result)`, `WillNotHappen()` or
            `Unknown()`.
        confirm: What a person is asked before each call, with the arguments in braces: `"Pay {amount} to {payee}?"`. Or
            a function that takes those of the tool's arguments that it names and returns the question, or None if the
            call may begin at once.
        confirm_timeout_s: Seconds after which an unanswered question counts as a no; by default the run's limit.
        approvers: Who may decide, by the names in the log: `user:…`, `key:…`, `operator:…`, or a hook as
            `hook:…`; anybody by default.
        in_doubt: What happens if a crash cuts a call off and its outcome is unknown: the model is told (`report`), or a
            person is asked (`ask`). By default the run's setting.
        tags: For the filters of a policy, such as `costly`.
        bookkeeping: Exempts its calls from the caps of a policy; they may finish in the grace after a time budget.
        terminal: Whether the run ends, without an answer, after a successful call.
        example: The arguments of a correct call, shown to the model after one that did not fit.
        external: Whether its calls are executed outside: the function is never called, and results that are provided
            must fit its return type.
        title: What people call it; its name in words by default.
        display_hint: What people read about a call in progress, with the arguments in braces: `"Looking for {name}"`.
            The title by default.
        reminder: A reminder for the model when it reads a result, in that request only.
        bounded: Whether results are part of something larger: the function returns `Bounded(…)`. With
            `Paging("cursor")` the argument of that name takes the cursor of a result that was cut.

    Raises:
        TypeError: if the function cannot be called with named JSON arguments.
        ValueError: if an option has a value that is not allowed.
    """

    for option in unknown:
        with short_traceback:
            near = did_you_mean(
                option, [name for name, of in signature(tool).parameters.items() if of.kind is of.KEYWORD_ONLY]
            )
            raise TypeError(our_name("tool", option) or f"a tool has no option {option!r}.{near}")

    def made(function: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(
            function,
            name=name,
            description=description,
            effect=effect,
            concurrent=concurrent,
            timeout_s=timeout_s,
            blocking=blocking,
            reconcile=reconcile,
            confirm=confirm,
            confirm_timeout_s=confirm_timeout_s,
            approvers=approvers,
            in_doubt=in_doubt,
            tags=tags,
            bookkeeping=bookkeeping,
            terminal=terminal,
            example=example,
            reminder=reminder,
            bounded=bounded,
            external=external,
            title=title,
            display_hint=display_hint,
        )

    return made if fn is None else made(fn)
