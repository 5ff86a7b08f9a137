"""A Python function as a tool: what the decorator `weftline.tool` makes of it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from functools import cached_property, update_wrapper
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from weftline import prompts
from weftline.failure import Failure
from weftline.kernel.bodies import Peer
from weftline.kernel.entries import STRICTNESS, Effect
from weftline.providers.base import ToolSpec
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.tools.arguments import ALWAYS_KNOWN, InvalidArguments, Issue, StaleArguments, described
from weftline.tools.asking import Ask, checked_approvers, checked_confirm, checked_template, rendered, require_arguments
from weftline.tools.base import (
    ClientKind,
    Happened,
    Paging,
    Reconciled,
    ToolContext,
    ToolFailed,
    ToolOutput,
    ToolQuestion,
    Traits,
    Unknown,
    WillNotHappen,
)
from weftline.tools.counted_type import ReturnType
from weftline.tools.results import error_of, output_of, question_of, stale_output
from weftline.tools.signature import Docstring, Parameters, arguments_of, checked_signature, injected_of, resolved_hints
from weftline.tools.validation_work import CPU_S, TooMuchWork, bounded, on_loop
from weftline.tools.workers import NoThread, shared_workers
from weftline.trace_context import fields
from weftline.work.outcomes import as_errors, attempt

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
    D = TypeVar("D", default=Any, contravariant=True)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")
    D = TypeVar("D", contravariant=True)

_NAME = re.compile(r"[a-zA-Z0-9_]{1,64}")
_log = logging.getLogger("weftline.tools")
_BETWEEN = (__name__, "weftline.tools.decorator")
"""The modules between a function and the names around its definition."""


class FunctionTool(Generic[P, R, D]):
    """A function that a model can call; calling the object calls the function itself. Made by `tool`.

    `D` is the type of deps that it requires, taken from its context: `ToolContext[Database]`.
    """

    if not TYPE_CHECKING:
        # Python 3.11 and 3.12 have no defaults for type parameters: this lets `FunctionTool[…]` with fewer be
        # evaluated.
        __class_getitem__ = classmethod(GenericAlias)

    client: ClientKind | None = None
    peer: Peer | None = None
    __name__: str

    def __init__(
        self,
        fn: Callable[P, R],
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
    ) -> None:
        if not inspect.isroutine(fn):
            raise TypeError(f"a tool is made from a function, not from {type(fn).__name__}")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(f"tool {fn.__name__!r} is a generator; a tool returns one result")
        self.name: str = fn.__name__ if name is None else name
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"tool name {self.name!r} must be 1 to 64 of the characters a-z, A-Z, 0-9 and _")
        if external:
            _require_external(self.name, reconcile=reconcile, timeout_s=timeout_s)
            effect, concurrent = effect or "idempotent", True
            self.client = "local"
        self.effect: Effect = _checked_effect(self.name, effect, reconcile)
        if timeout_s is not None and not 0 < timeout_s < float("inf"):
            raise ValueError(f"tool {self.name!r}: timeout_s must be a positive number of seconds, not {timeout_s!r}")
        if confirm_timeout_s is not None and not 0 < confirm_timeout_s < float("inf"):
            raise ValueError(f"tool {self.name!r}: confirm_timeout_s must be positive, not {confirm_timeout_s!r}")
        self._confirm = checked_confirm(confirm, tool=self.name)
        self._confirm_timeout_s = confirm_timeout_s
        self._approvers = checked_approvers(approvers, where=f"tool {self.name!r}")
        if self._approvers and confirm is None:
            raise ValueError(f"tool {self.name!r}: approvers needs confirm, which says what they are asked")
        if in_doubt not in (None, "report", "ask"):
            raise ValueError(f"tool {self.name!r}: in_doubt is 'report' or 'ask', not {in_doubt!r}")
        if isinstance(tags, str):
            raise ValueError(f"tool {self.name!r}: tags must be a list, not a string")
        own = (reconcile, self._confirm)
        self.traits = Traits(
            title=title,
            display_hint=checked_template(display_hint, tool=self.name, what="display_hint") if display_hint else "",
            tags=frozenset(tags),
            bookkeeping=bool(bookkeeping),
            terminal=bool(terminal),
            in_doubt=in_doubt,
            bounded=bounded,
            example=_checked_example(self.name, example),
            reminder=reminder,
            asks=_asks(self._confirm, self._approvers),
            functions=(fn, *[one for one in own if one is not None and not isinstance(one, str)]),
        )
        self.concurrent: bool = self.effect == "read" if concurrent is None else concurrent
        self.timeout_s = timeout_s
        self._fn = fn
        self._signature = checked_signature(fn, name=self.name)
        self._in_thread = blocking and not inspect.iscoroutinefunction(fn)
        self._docs = Docstring.parse(fn.__doc__)
        self.description = self._docs.description if description is None else description
        self._reconcile = reconcile
        # Functions defined inside others may use types that only their enclosing scope knows, and only now.
        self._hints = resolved_hints(fn, _names_around(fn))
        if isinstance(confirm, str):
            require_arguments(confirm, arguments_of(self._signature, self._hints, ToolContext), tool=self.name)
        if display_hint:
            known = arguments_of(self._signature, self._hints, ToolContext)
            require_arguments(display_hint, known, tool=self.name, what="display_hint")
        if isinstance(bounded, Paging) and bounded.cursor not in arguments_of(
            self._signature, self._hints, ToolContext
        ):
            raise ValueError(f"tool {self.name!r} has no argument {bounded.cursor!r} for the cursor")
        self._parameters: Parameters | None = None
        self._spec: ToolSpec | None = None
        self._returns: ReturnType | None = None
        self._values: Mapping[str, object] = {}
        """The values that the run of one call fills in."""
        update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<FunctionTool {self.name} effect={self.effect}>"

    @property
    def parameters(self) -> Parameters:
        """The parameters, computed on first use.

        Raises:
            TypeError: if a type hint cannot be resolved or has no JSON Schema.
        """
        if self._parameters is None:
            hints = self._hints or resolved_hints(self._fn)
            if hints is None:
                raise TypeError(f"tool {self.name!r}: a type hint names something that is not defined")
            self._parameters = Parameters.of(
                self.name,
                signature=self._signature,
                hints=hints,
                docs=self._docs.parameters,
                context_type=ToolContext,
                injectable=True,
            )
        return self._parameters

    @property
    def spec(self) -> ToolSpec:
        if self._spec is None:
            self._spec = ToolSpec(self.name, self.description, self.parameters.schema)
        return self._spec

    @cached_property
    def injected(self) -> tuple[str, ...]:
        """The arguments that a run fills in."""
        return tuple(injected_of(self._signature, self._hints or resolved_hints(self._fn)))

    @cached_property
    def required_labels(self) -> frozenset[str]:
        """The labels that a run needs for calls of this tool."""
        found = injected_of(self._signature, self._hints or resolved_hints(self._fn))
        return frozenset([name for name, optional in found.items() if not optional]) - ALWAYS_KNOWN

    def injecting(self, values: Mapping[str, object]) -> FunctionTool[P, R, D]:
        """Returns a copy of the tool for one call, with the values of its run."""
        bound = copy(self)
        bound._values = values
        return bound

    async def prepare(self, args: str) -> bytes:
        parameters = self.parameters
        try:
            return await bounded(lambda: parameters.final_args(args, self._values), size=len(args), cpu_s=CPU_S)
        except TooMuchWork as error:
            issues = (Issue("", str(error), "work"),)
            raise InvalidArguments(described(self.name, issues), issues) from None

    async def invoke(self, args: bytes, context: ToolContext[D]) -> ToolOutput:
        if self.client is not None:
            raise RuntimeError(f"{self.name} is executed outside and cannot be invoked here")
        try:
            call = await bounded(lambda: self._bound(self._fn, args, context), size=len(args))
        except StaleArguments as error:
            return stale_output(error)
        except TooMuchWork as error:
            return stale_output(StaleArguments(prompts.calls.no_longer_fit(self.name, [str(error)])))
        if not self._in_thread:
            return await self._outcome(call, context)
        try:
            result = await shared_workers().run(lambda: self._outcome_in_thread(call, context), tool=self)
        except NoThread:
            raise  # more is to be said about it than that it failed
        except ToolFailed as error:
            return error_of(error)
        except asyncio.CancelledError:
            _notify_cancelled(context)
            raise
        # A synchronous function may return a coroutine, which belongs on the loop.
        return result if isinstance(result, ToolOutput) else await self._outcome(lambda: result, context)

    def result_problem(self, value: object) -> str:
        """Returns what is wrong with a value that is provided as the function's result; empty if nothing is."""
        with as_errors():  # its validators may be the author's own
            return self._return_type.problem(value)

    @property
    def has_result_type(self) -> bool:
        """True if the function declares a return type that values can be checked against."""
        return self._return_type.known

    @property
    def _return_type(self) -> ReturnType:
        if self._returns is None:
            hints = self._hints or resolved_hints(self._fn) or {}
            self._returns = ReturnType(hints.get("return", Any))
        return self._returns

    def asks_people(self, args: bytes) -> Ask | None:
        """Returns what a person is asked before a call with these arguments begins; None if nobody is asked."""
        confirm = self._confirm
        if confirm is None:
            return None
        question = rendered(confirm, args) if isinstance(confirm, str) else self._question(confirm, args)
        if question is None:
            return None
        return Ask(question, timeout_s=self._confirm_timeout_s, approvers=self._approvers)

    def _question(self, confirm: Callable[..., str | None], args: bytes) -> str | None:
        taken = inspect.signature(confirm).parameters
        with on_loop():
            given = {name: value for name, value in self.parameters.keywords(args).items() if name in taken}
        question = cast(object, confirm(**given))
        if question is not None and not isinstance(question, str):
            raise TypeError(f"confirm of tool {self.name!r} returned {type(question).__name__}, not a string or None")
        return question or None

    async def reconcile(self, args: bytes, context: ToolContext[D]) -> Reconciled:
        if self._reconcile is None:
            return Unknown()
        reconcile, answer = self._reconcile, cast(object, None)
        failed = ("reconcile of tool %s failed; the call stays in doubt", self.name)
        try:
            with attempt(_log, *failed, but=(StaleArguments,), or_cancelled=True) as asking:
                bound = await bounded(lambda: self._bound(reconcile, args, context), size=len(args))
                if inspect.iscoroutinefunction(reconcile):
                    answer = await bound()
                else:
                    answer = await shared_workers().run(bound)
                    if inspect.isawaitable(answer):
                        answer = await answer
        except StaleArguments:
            return Unknown()  # it has been logged
        if asking.error is not None:
            return Unknown()
        if isinstance(answer, Happened | WillNotHappen | Unknown):
            return answer
        _log.error(
            "reconcile of tool %s returned %.100r, which is not Happened(…), WillNotHappen() or Unknown();"
            " the call stays in doubt",
            self.name,
            answer,
        )
        return Unknown()

    def _bound(self, fn: Callable[..., Any], args: bytes, context: ToolContext[Any]) -> Callable[[], Any]:
        """Binds `fn` to its arguments: all of them for the tool itself, only those it names for `reconcile`."""
        parameters = self.parameters
        keywords = parameters.keywords(args)
        own = parameters.context
        if fn is not self._fn:
            taken = inspect.signature(fn).parameters
            keywords = {name: value for name, value in keywords.items() if name in taken}
            own = next((name for name in ("context", own) if name in taken), None)
        if own is not None:
            keywords[own] = self._given(context)
        return lambda: fn(**keywords)

    def _given(self, context: ToolContext[Any]) -> object:
        """Returns what the function gets for its context."""
        return context

    async def _outcome(self, call: Callable[[], Any], context: ToolContext[Any]) -> ToolOutput:
        value: Any = None
        with attempt(or_cancelled=True) as calling:
            value = call()
            if inspect.isawaitable(value):
                value = await value
        if calling.error is not None:
            return self._failed(calling.error, context)
        return output_of(value, tool_name=self.name)

    def _outcome_in_thread(self, call: Callable[[], Any], context: ToolContext[Any]) -> ToolOutput | Awaitable[Any]:
        try:
            value = call()
        except BaseException as error:
            return self._failed(error, context)
        return value if inspect.isawaitable(value) else output_of(value, tool_name=self.name)

    def _failed(self, error: BaseException, context: ToolContext[Any]) -> ToolOutput:
        """Returns the error for the model; only the log says where it happened. `ToolFailed` is not logged."""
        try:
            if isinstance(error, ToolQuestion):
                return self._asking(error)
            if not isinstance(error, ToolFailed):
                extra = fields(run=context.run_id, tool=self.name, call=context.call_id)
                _log.error("run %s: the tool %s failed", context.run_id, self.name, exc_info=error, extra=extra)
            return error_of(error)
        except Exception:  # of a class that does not even let others see its attributes
            _log.exception("run %s: the error of tool %s cannot be described", context.run_id, self.name)
            return ToolOutput.of(type(error).__name__, is_error=True)

    def _asking(self, question: ToolQuestion) -> ToolOutput:
        """Returns the question, or an error if one of its options would not be a valid result."""
        for option in question.options:
            if problem := self.result_problem([option] if question.multiple else option):
                text = prompts.calls.options_do_not_fit(self.name, option, problem)
                _log.error("the tool %s asks a question that nobody can answer: %r: %s", self.name, option, problem)
                return ToolOutput.of(text, is_error=True, failure=Failure(text, "malformed_result"))
        return question_of(question)


def labels_needed(tool: object) -> frozenset[str]:
    """Returns the labels that a run needs for calls of the tool."""
    return tool.required_labels if isinstance(tool, FunctionTool) else frozenset()


def _asks(confirm: object, approvers: Iterable[str]) -> tuple[str, ...]:
    if confirm is None:
        return ()
    return (confirm if isinstance(confirm, str) else "by code", *sorted(approvers))


def _checked_example(name: str, example: object) -> dict[str, Any] | None:
    if example is None:
        return None
    try:
        canonical_value(dict(cast("Mapping[str, Any]", example)))
    except (NotCanonical, TypeError, ValueError) as error:
        raise ValueError(f"tool {name!r}: example must be a dict of arguments that JSON can hold: {error}") from None
    return dict(cast("Mapping[str, Any]", example))


def _require_external(name: str, *, reconcile: object, timeout_s: float | None) -> None:
    if reconcile is not None:
        raise ValueError(f"tool {name!r}: an external call is never reconciled; leave reconcile out")
    if timeout_s is not None:
        raise ValueError(f"tool {name!r}: the run's timeout applies to an external call; leave timeout_s out")


def _checked_effect(name: str, effect: Effect | None, reconcile: Callable[..., Any] | None) -> Effect:
    if effect is None:
        return "once" if reconcile is None else "reconcile"
    if effect not in STRICTNESS:
        raise ValueError(f"tool {name!r}: effect {effect!r} is not one of {', '.join(STRICTNESS)}")
    if (effect == "reconcile") != (reconcile is not None):
        raise ValueError(f'tool {name!r}: effect="reconcile" and a reconcile function go together')
    return effect


def _names_around(fn: Callable[..., Any]) -> dict[str, Any] | None:
    if "<locals>" not in getattr(fn, "__qualname__", ""):
        return None
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return None if frame is None else dict(frame.f_locals)


def _notify_cancelled(context: ToolContext[Any]) -> None:
    while context.on_cancel:
        callback = context.on_cancel.pop()
        with attempt(_log, "an on_cancel callback of tool %s failed", context.tool_name):
            callback()
