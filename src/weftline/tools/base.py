"""The interface between tools of any kind and the runtime.

A tool has a model-facing spec and a declared effect. `prepare` turns the model's argument text into the final,
canonical argument bytes. Nothing changes them after that: approval, digest, idempotency key and execution all use
exactly those bytes. Server tools are then invoked here; client tools are offered to the client over the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from msgspec import Struct, field
from msgspec.structs import replace

from weftline import reminders
from weftline.failure import Bounds, Failure, FailureKind, Hint, Recovery, ServerData, Telemetry, recovery_problem
from weftline.kernel.bodies import AskBody, Peer
from weftline.kernel.entries import Effect
from weftline.messages import Text, UserPart, joined_text
from weftline.providers.base import ToolSpec
from weftline.reminders import Reminder
from weftline.text.characters import storable
from weftline.text.display import titled

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Deps = TypeVar("Deps", default=object, covariant=True)
    Wanted = TypeVar("Wanted", default=object, contravariant=True)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps", covariant=True)
    Wanted = TypeVar("Wanted", contravariant=True)

ClientKind: TypeAlias = Literal["local", "a2a_local", "mcp_local"]


class ToolFailed(Exception):
    """A tool failed in a way that the model should read; the message is the result's text.

    Args:
        kind: What went wrong; by default the tool understood the call and refused it (`domain_rejection`).
        recovery: What follows: `correct_call` (the tool stays), `replan` (it is not offered in the next turn) or
            `finish` (the run is brought to its end). By default `correct_call` for the kinds `invalid_call` and
            `domain_rejection`, and `replan` for all others.
        hint: What would help the model to do better.

    Raises:
        ValueError: for any other value, and for `correct_call` with a kind of failure that no other call could avoid.

    If a terminal tool returns a `ToolFailed` instead of raising it, the run ends with it; in a subagent it becomes the
    result of the call.
    """

    def __init__(
        self,
        *args: object,
        kind: FailureKind = "domain_rejection",
        recovery: Recovery | None = None,
        hint: Hint | None = None,
    ) -> None:
        super().__init__(*args)
        for name, value, words in (("kind", kind, FailureKind), ("recovery", recovery, Recovery)):
            if value is not None and value not in get_args(words):
                raise ValueError(f"{name} must be one of {', '.join(get_args(words))}, not {value!r}")
        if problem := recovery_problem(kind, recovery):
            raise ValueError(problem)
        if hint is not None and not isinstance(hint, Hint):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"hint must be a Hint, not {type(hint).__name__}")
        self.kind: FailureKind = kind
        self.recovery: Recovery | None = recovery
        self.hint = hint


class ToolInDoubt(ToolFailed):
    """The call may or may not have taken effect: it started, and its outcome is unknown. The message is the result's
    text.

    Unless the tool's effect is `read` or `idempotent`, the call is closed as in doubt and not executed again.
    """


class ToolQuestion(Exception):
    """Raised by a tool to ask a person. The answer becomes the result of the call.

    The tool is not called again. The answer must fit the function's return type.

    Args:
        question: What the person is asked.
        options: The options to choose from; without any, the answer is free text.
        multiple: Whether several options may be chosen; the answer is then a list.
        timeout_s: How long the person has to answer; by default the run's limit.
    """

    def __init__(
        self, question: str, *, options: Sequence[str] = (), multiple: bool = False, timeout_s: float | None = None
    ) -> None:
        if not isinstance(question, str) or not question.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("a ToolQuestion needs a question")
        if timeout_s is not None and not 0 < timeout_s < float("inf"):
            raise ValueError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")
        if isinstance(options, str):
            raise TypeError(f"options must be a sequence of strings, not the string {options!r}")
        super().__init__(question)
        self.question = question
        self.options = tuple([str(one) for one in options])
        self.multiple = multiple
        self.timeout_s = timeout_s


class ToolProgress(Struct, frozen=True, omit_defaults=True):
    """The progress of a call, in units of the tool's choice."""

    progress: float
    total: float | None = None
    message: str = ""


def _discard_progress(progress: ToolProgress) -> None:
    """Default for a call that nobody follows."""


def _discard(kind: str, data: object) -> None:
    """Default for a call that nobody follows."""


class Diverged(Exception):
    """A repeated call asks for other calls than the first time."""


class FurtherCalls(Protocol):
    """Lets a call make further calls of the run's tools, through the same pipeline as the model's calls.

    A call that may be repeated (`read`, `idempotent`) is interrupted while the run waits for somebody, and executed
    again from the start, as after a crash. Its earlier calls are then answered from the log, so it must make the same
    ones again.
    """

    @property
    def clock_ms(self) -> int:
        """The time when the call first began, in milliseconds. It is the same each time the call is repeated."""
        ...

    async def ask(self, tool: str, args: str) -> ToolOutput:
        """Makes a call of `tool` with these arguments, a JSON object, and returns its result. Raises `Diverged`."""
        ...

    async def settled(self) -> None:
        """Waits until all further calls have a result."""
        ...

    def hold(self) -> None:
        """Stops the clock of a call that waits for a slot, before it makes further calls. `limit` starts it again."""
        ...

    def limit(self, expired: Callable[[], None]) -> None:
        """Calls `expired` when the call has used up its time, not counting the calls that it waits for."""
        ...


class ToolContext(Struct, Generic[Deps]):
    """The call that a server tool is executing, as the tool sees it.

    `idempotency_key` is the same whenever this call is repeated after a crash; pass it to whatever the tool talks to.
    """

    run_id: str
    call_id: str
    idempotency_key: str
    tool_name: str
    workspace: str
    turn: int = 0
    attempt: int = 1
    thread_id: str | None = None
    agent_id: str | None = None
    metadata: dict[str, Any] = {}
    labels: dict[str, str] = {}
    """The run's labels, and those that a policy engine added."""
    parent_call: str | None = None
    """The id of the call that made this one, if it was not the model."""
    traceparent: str | None = None
    """The call's span in W3C Trace Context, for requests that the tool makes; None if the run has no trace."""
    toolset: str = ""
    """The name of the toolset that the tool belongs to, if it has one."""
    on_cancel: list[Callable[[], None]] = []
    """Called when the run is cancelled or the call times out, for tools that run in a thread."""
    on_progress: Callable[[ToolProgress], None] = _discard_progress
    """Reports the call's progress to those who follow the run."""
    emit: Callable[[str, object], None] = _discard
    """Adds a note to the run's log: a kind, and data that JSON can represent."""
    state: MutableMapping[str, Any] = {}
    """State that the tools of this run share between calls: JSON values by key.

    Changes are stored with the call's result, so they survive a crash; those of a call without a result are lost.
    """
    deps: Deps = None  # type: ignore[assignment]
    """The deps of the agent's own code for this run."""
    further: FurtherCalls | None = None
    """Set for tools that may make further calls (`Traits.host`)."""
    telemetry: Telemetry | None = None
    """What the call used, if the tool knows: set it before you return."""
    server_data: list[ServerData] = []
    """Data for others than the model: add to it. It is stored with the result."""

    def remind(self, reminder: Reminder) -> None:
        """Reminds the model from the next turn on; stored like `state`.

        A reminder with the same id is replaced and keeps its counters. Raises `ValueError` if there are too many.
        """
        reminders.add(self.state, reminder, since=self.turn + 1)

    def end_reminder(self, id: str) -> None:
        """Ends a reminder."""
        reminders.remove(self.state, id, since=self.turn + 1)


class ToolOutput(Struct, frozen=True, omit_defaults=True):
    """The result of a call, as the model reads it."""

    parts: tuple[UserPart, ...]
    is_error: bool = False
    in_doubt: bool = False
    """Whether it is unknown if the call took effect. Such a result is an error, too."""
    failure: Failure | None = None
    """For an error: what is known besides its text."""
    telemetry: Telemetry | None = None
    """What the call used, if its tool knows better than the runtime."""
    bounds: Bounds | None = None
    """For a tool declared `bounded`: which part of the whole this is."""
    server_data: tuple[ServerData, ...] = ()
    """Data that no model reads."""
    final: bool = False
    """For an error that was returned rather than raised: if the tool is terminal, it ends the run."""
    not_run: bool = False
    """For an error: whether the tool did nothing at all, because it cannot make this call as it was asked for."""
    asks: AskBody | None = None
    """What a person is asked instead of this result; see `ToolQuestion`."""
    asks_for_s: float | None = None
    """How long the person has to answer."""
    is_json: bool = False
    """Whether the text is the JSON of a value that is not a text. Code that made the call gets the value."""

    @classmethod
    def of(
        cls,
        text: str,
        *,
        is_error: bool = False,
        in_doubt: bool = False,
        not_run: bool = False,
        failure: Failure | None = None,
    ) -> ToolOutput:
        return cls((Text(text),), is_error or in_doubt or not_run, in_doubt, failure, not_run=not_run)

    @property
    def text(self) -> str:
        """The texts of its parts, joined."""
        return joined_text(self.parts)

    def whole(self) -> ToolOutput:
        """Returns this output with text that can be stored: an unpaired surrogate becomes U+FFFD."""
        parts = [Text(storable(part.text)) if isinstance(part, Text) else part for part in self.parts]
        return replace(self, parts=tuple(parts))


class Happened(Struct, frozen=True):
    """The call took place. `result` is what it would have returned: anything that a tool may return."""

    result: object


class WillNotHappen(Struct, frozen=True):
    """The call did not take place, and the tool has made sure that it never will. It is executed again."""


class Unknown(Struct, frozen=True):
    """The call may or may not have taken place: it is closed as in doubt."""


Reconciled: TypeAlias = Happened | WillNotHappen | Unknown
"""The return type of a `reconcile` function."""


class Paging(Struct, frozen=True):
    """Continuation of a tool after a partial result: the argument for the cursor, and the field that returns it."""

    cursor: str
    next_cursor: str = "next_cursor"


class ToolsetCall(Struct, kw_only=True):
    """A call of a tool of the toolset."""

    run_id: str
    thread_id: str | None = None
    turn_id: str
    call_id: str
    parent_call: str | None = None
    """The call that made this one, if it was not the model."""
    tool: str
    toolset: str
    args: str
    """JSON: as the model wrote it for `adapt`, and final for the others."""
    server_data: list[ServerData] = field(default_factory=list[ServerData])
    """Data for others than the model: `materialize` may add to it."""


Adapter: TypeAlias = Callable[[ToolsetCall], Mapping[str, Any] | str | None]
"""Returns the arguments for the tool, as an object or as JSON; an empty value keeps them."""
Materializer: TypeAlias = Callable[[ToolsetCall, ToolOutput], Any]
"""Returns a replacement for the result, anything that a tool may return; None keeps it.

An exception becomes an error.
"""
Measure: TypeAlias = Callable[[ToolsetCall, int], Telemetry | None]
"""Returns what a call used, if its tool did not report it, given the time in milliseconds."""


class Shaping(Struct, frozen=True):
    """The functions of a toolset."""

    toolset: str
    adapt: Adapter | None = None
    materialize: Materializer | None = None
    telemetry: Measure | None = None

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return tuple([one for one in (self.adapt, self.materialize, self.telemetry) if one is not None])


class Traits(Struct, frozen=True, kw_only=True):
    """What a tool may declare beyond what every tool has to. Most tools declare nothing of it: `PLAIN`."""

    title: str = ""
    """What people read instead of its name."""
    display_hint: str = ""
    """What people read about a call in progress, with the arguments in braces."""
    tags: frozenset[str] = frozenset()
    """What policies filter by."""
    bookkeeping: bool = False
    """Its calls are exempt from the caps of a policy."""
    terminal: bool = False
    """A successful call ends the run."""
    is_agent: bool = False
    """Its calls are child runs; then `invoke` is never called."""
    host: bool = False
    """Its calls may make further calls."""
    hidden: bool = False
    """Only further calls can use it: it is not offered to a model, which may not call it."""
    in_doubt: Literal["report", "ask"] | None = None
    """What happens if a crash interrupts a call; None leaves that to the run."""
    bounded: bool | Paging = False
    """Its results may be partial."""
    example: Mapping[str, Any] | None = None
    """Arguments that a model is shown when it calls the tool with wrong ones."""
    reminder: str = ""
    """What the model is reminded of when it reads a result."""
    asks: tuple[str, ...] = ()
    """The questions to people before each call, and who may decide. A function that returns the question is one of
    its `functions`.
    """
    functions: tuple[Callable[..., Any], ...] = ()
    """The functions of its author that it consists of."""
    shaping: Shaping | None = None
    """The functions of its toolset."""


PLAIN = Traits()


class Tool(Protocol[Wanted]):
    """A tool of one run. `client` is set for tools that the client executes; then `invoke` is never called.

    `Tool[Database]` requires such deps; a plain `Tool` accepts any.
    """

    @property
    def spec(self) -> ToolSpec: ...
    @property
    def effect(self) -> Effect: ...
    @property
    def concurrent(self) -> bool: ...
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def client(self) -> ClientKind | None: ...
    @property
    def peer(self) -> Peer | None:
        """Whom the client asks when it executes a call: an MCP server or an A2A agent. None for anything else."""
        ...

    @property
    def traits(self) -> Traits: ...

    async def prepare(self, args: str) -> bytes:
        """Returns the final argument bytes (a canonical JSON object). Raises `InvalidArguments`."""
        ...

    async def invoke(self, args: bytes, context: ToolContext[Wanted]) -> ToolOutput:
        """Executes the call. Any exception becomes an error result of this call alone."""
        ...

    async def reconcile(self, args: bytes, context: ToolContext[Wanted]) -> Reconciled:
        """For the effect `reconcile`: returns whether an interrupted call took place."""
        ...


def title_of(tool: Tool) -> str:
    """Returns the tool's display name: its title, or its name in words."""
    return tool.traits.title or titled(tool.spec.name)


@runtime_checkable
class ReplacesContent(Protocol):
    """A tool that replaces a content as a whole, and can return what it would replace."""

    async def prior_content(self, args: bytes) -> str | None:
        """Returns what a call with these final arguments would replace; None if there is nothing, or no text."""
        ...


class Toolset(Protocol):
    """Tools that an agent is given together, such as `files(".")` or `mcp("https://…")`."""

    async def open(self) -> Sequence[Tool]:
        """Returns the tools. Called once before the first run that needs them; may connect, scan or start something."""
        ...

    async def close(self) -> None:
        """Releases what `open` acquired. May be called twice."""
        ...


class ServerToolset(Toolset, Protocol):
    """The tools of a server that may be unreachable: the run continues without it."""

    @property
    def name(self) -> str: ...
    @property
    def prefix(self) -> str:
        """The prefix of its tools' names, which no other tool of the agent has."""
        ...

    def stand_in(self, error: Exception) -> Sequence[Tool]:
        """Returns what is offered instead of its tools if `open` has failed."""
        ...
