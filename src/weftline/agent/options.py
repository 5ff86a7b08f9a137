"""What can be set for one run of an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, cast

from weftline.agent import checked
from weftline.agent.attached import FileLike
from weftline.agent.behavior import Behavior
from weftline.agent.budget import Budget
from weftline.agent.calling import Hook, check_hook
from weftline.agent.context import RunContext
from weftline.agent.given import AgentTool
from weftline.agent.policy import Policy
from weftline.agent.preset import Preset
from weftline.agent.settings import Limits, Settings
from weftline.engine_options import AttributeValue, RetryPolicy
from weftline.errors import InvalidRequest
from weftline.messages import Assistant, File, Image, Message, System, ToolResults, User
from weftline.providers.base import Provider
from weftline.reminders import MAX_REMINDERS, Reminder
from weftline.suggestions import did_you_mean

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    DepsT = TypeVar("DepsT", default=object)
else:
    from typing import TypeVar

    DepsT = TypeVar("DepsT")


_MAX_TURN_ID_CHARS = 255


class RunOptions(TypedDict, Generic[DepsT], total=False):
    """Each is for this run only; what is not given is the agent's own."""

    messages: Sequence[Message]
    """An earlier conversation to continue from, such as another result's `messages`. Not with `thread`."""
    files: Sequence[FileLike]
    """Paths, addresses, or parts of a message, to come with the prompt."""
    deps: DepsT
    """The value of the agent's `deps`. Not with a durable engine: it could not be stored."""
    thread: str
    """The conversation that the run is a part of, by a name of yours. Made at first use; needs an engine."""
    key: str
    """The same key and input give the same run; another input under the key is a `Conflict`."""
    model: str | Provider
    instructions: str | Callable[[RunContext[DepsT]], str | Awaitable[str]]
    """In place of the agent's. With a durable engine a text: a function could not be found again."""
    tools: Sequence[AgentTool[DepsT]]
    """In place of the agent's; an empty list offers none. With a durable engine some of the agent's own."""
    settings: Settings
    limits: Limits
    policy: Policy
    """Value by value in place of the agent's."""
    budget: Budget
    """As far as it is tighter than the agent's."""
    behavior: Behavior
    """Knob by knob in place of the agent's. Functions in it need a run in memory."""
    hooks: Sequence[Hook[Any, DepsT]]
    """In addition to the agent's. Not with a durable engine: the next process would not have them."""
    metadata: Mapping[str, Any]
    """Any JSON object, for hooks, tools and whoever reads the log."""
    labels: Mapping[str, str]
    """For hooks, policies and tools, and for the runs below it; no model reads them. At most 16."""
    reminders: Sequence[Reminder]
    """What the model is reminded of, with some requests of this run."""
    stream_arguments: bool
    """Whether those who follow the run can see the arguments of calls as the model writes them: `ToolCallArgsDelta`."""
    run_id: str
    """What the run is to be known by: up to 128 letters, digits, `_` and `-`. A `Conflict` (`run_exists`) if there is
    such a run. A generated id otherwise."""
    turn_id: str
    """What you call the exchange that the run is a part of: it is on every entry of its log. Its own id otherwise."""
    memo: Mapping[str, Any]
    """Any JSON object, kept for whoever looks at the run in its engine."""
    search_attributes: Mapping[str, AttributeValue]
    """Values by which an engine can find the run. `SessionID` can only be the run's own thread."""
    task_queue: str
    """Which workers are to drive the run; the embedded engine, which has none, only keeps it."""
    retry_policy: RetryPolicy
    """How often an engine with workers tries to hand the run to one."""
    requested_by: str
    """Who asked for the run, for the rule of four eyes and for whoever reads its log."""


def reminders_of(given: object) -> tuple[Reminder, ...]:
    """Raises `InvalidRequest` for what is not a list of reminders, each with an id of its own."""
    listed = list(cast("Sequence[object]", given)) if isinstance(given, Sequence) else [None]
    found = [one for one in listed if isinstance(one, Reminder)]
    if len(found) < len(listed) or len({one.id for one in found}) < len(found) or len(found) > MAX_REMINDERS:
        raise InvalidRequest(f"reminders= takes a list of up to {MAX_REMINDERS} Reminders, each with its own id.")
    return tuple(found)


def turn_id_of(given: object) -> str:
    """Raises `InvalidRequest` for what is not a name."""
    if given is None:
        return ""
    if not isinstance(given, str) or not given or len(given) > _MAX_TURN_ID_CHARS or "\x00" in given:
        raise InvalidRequest(f"turn_id= must be a string of 1 to {_MAX_TURN_ID_CHARS} characters.")
    return given


def check_options(prompt: object, options: Mapping[str, Any]) -> None:
    """Raises `TypeError` for an option that there is not, which would be ignored in silence, and for a wrong value."""
    if prompt is not None:
        checked.expect("the prompt", prompt, str, "a string")
    known = RunOptions.__annotations__
    for name in options:
        if name not in known:
            near = did_you_mean(name, known)
            raise TypeError(f"a run has no option {name!r}; use one of {', '.join(sorted(known))}.{near}")
    if options:
        check_parts(options)
        for name in ("thread", "key", "run_id", "requested_by"):
            if name in options:
                checked.expect(name, options[name], str, "a string")
        if "stream_arguments" in options:
            checked.expect("stream_arguments", options["stream_arguments"], bool, "True or False")
        if "messages" in options:
            checked.listed("messages", options["messages"], _MESSAGES, "a message, such as User.of('Hi!')")
        if "files" in options:
            checked.listed("files", options["files"], (str, PathLike, Image, File), "a path, an address or a part")
        for one in options.get("hooks", ()):
            check_hook(one)


def check_parts(given: Mapping[str, Any]) -> None:
    """Checks what agents and runs have in common."""
    checked.model("model", given.get("model"))
    checked.instructions(given.get("instructions"))
    for name, (kind, like) in _PARTS.items():
        if given.get(name) is not None:
            checked.expect(name, given[name], kind, like)


_MESSAGES: Final = (System, User, Assistant, ToolResults)
_PARTS: Final[dict[str, tuple[type, str]]] = {
    "name": (str, "a string"),
    "settings": (Settings, "Settings, such as Settings(temperature=0.2)"),
    "limits": (Limits, "Limits, such as Limits(max_turns=20)"),
    "behavior": (Behavior, "a Behavior, such as Behavior(cache=False)"),
    "budget": (Budget, "a Budget, such as Budget(usd=0.5)"),
    "preset": (Preset, "a Preset, such as Preset(instructions='Be brief.')"),
}


def check_deps(kind: object, given: object) -> None:
    """Raises `TypeError` for deps that are not of the agent's type, if it named one."""
    if not isinstance(kind, type):
        return
    try:
        fits = isinstance(given, kind)
    except TypeError:  # a protocol that says nothing at run time
        return
    if not fits:
        raise TypeError(f"the agent's deps are of the type {kind.__name__}, not {type(given).__name__}")
