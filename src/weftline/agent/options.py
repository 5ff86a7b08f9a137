"""The options of one run of an agent."""

from __future__ import annotations

import mimetypes
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, cast

from msgspec.structs import replace

from weftline.agent import argument_checks
from weftline.agent._options import SpecOptions
from weftline.agent.agent_tools import AgentTool
from weftline.agent.behavior import Behavior
from weftline.agent.context import RunContext
from weftline.agent.hooking.calling import Hook, check_hook
from weftline.agent.preset import Preset
from weftline.agent.settings import Budget, Limits, Policy, Settings
from weftline.engine_options import AttributeValue, EngineOptions, RetryPolicy
from weftline.errors import InvalidRequest, invalid
from weftline.messages import Assistant, Blob, File, Image, Message, System, Text, ToolResults, User, UserPart
from weftline.providers.base import Provider
from weftline.reminders import MAX_REMINDERS, Reminder
from weftline.spec.fields import RunSpec
from weftline.spec.walk import problems_in
from weftline.text.suggestions import did_you_mean, our_name

FileLike: TypeAlias = Path | str | Image | File
"""A path, an http(s) URL, or a message part."""


def part_of(given: FileLike) -> UserPart:
    """Returns the message part for an attachment, and reads it if it is a file.

    Raises `OSError` for a file that cannot be read, and `ValueError` for an unknown type.
    """
    if isinstance(given, Image | File):
        return given
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        kind = mimetypes.guess_type(given)[0] or "image/png"
        return Image(kind, url=given) if kind.startswith("image/") else File(kind, url=given)
    path = Path(given)
    kind = mimetypes.guess_type(path.name)[0]
    if kind is None:
        raise ValueError(f"the type of {path.name!r} is not clear from its name; give an Image or a File")
    data = b64encode(path.read_bytes()).decode()
    if kind.startswith("image/"):
        return Image(kind, data=data, name=path.name)
    return File(kind, data=data, name=path.name)


def parts_of(prompt: str | None, files: Sequence[FileLike]) -> tuple[tuple[UserPart, ...], tuple[Blob, ...]]:
    """Returns the parts of the first message, and the contents to store beside the log, each once."""
    parts: list[UserPart] = []
    blobs: dict[str, Blob] = {}
    for given in files:
        part = part_of(given)
        if isinstance(part, Image | File) and part.data is not None:
            data = b64decode(part.data)
            blob = Blob(sha256(data).hexdigest(), data)
            blobs[blob.id] = blob
            part = replace(part, data=None, blob=blob.id, size=len(data))
        parts.append(part)
    if prompt is not None:
        parts.append(Text(prompt))
    return tuple(parts), tuple(blobs.values())


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    DepsT = TypeVar("DepsT", default=object)
else:
    from typing import TypeVar

    DepsT = TypeVar("DepsT")


class RunOptions(SpecOptions, Generic[DepsT], total=False):
    """Options for one run; what is not given comes from the agent."""

    messages: Sequence[Message]
    """An earlier conversation to continue from, such as another result's `messages`. Not with `thread`."""
    files: Sequence[FileLike]
    """Files for the prompt: paths, URLs, or parts of a message."""
    deps: DepsT
    """The value of the agent's `deps`. Not with a durable engine: it could not be stored."""
    thread: str
    """The conversation that the run belongs to, by a name that you choose. Created at first use; needs an engine."""
    key: str
    """The same key and input give the same run; another input under the key is a `Conflict`."""
    model: str | Provider
    instructions: str | Callable[[RunContext[DepsT]], str | Awaitable[str]]
    """Instead of the agent's. With a durable engine, a string: the next process would not have a function."""
    tools: Sequence[AgentTool[DepsT]]
    """Instead of the agent's; an empty list offers none. With a durable engine, only tools of the agent."""
    settings: Settings
    limits: Limits
    policy: Policy
    """Overrides the agent's, value by value."""
    budget: Budget
    """Applies where it is tighter than the agent's."""
    behavior: Behavior
    """Overrides the agent's, knob by knob. Functions in it need a run in memory."""
    hooks: Sequence[Hook[Any, DepsT]]
    """In addition to the agent's. Not with a durable engine: the next process would not have them."""
    metadata: Mapping[str, Any]
    """Any JSON object, for hooks, tools and readers of the log."""
    reminders: Sequence[Reminder]
    """Reminders for the model, in some requests of this run."""
    run_id: str
    """The id of the run: up to 128 letters, digits, `_` and `-`; generated by default. Raises `Conflict` (`run_exists`)
    if it is taken."""
    memo: Mapping[str, Any]
    """Any JSON object, stored for those who look at the run in its engine."""
    search_attributes: Mapping[str, AttributeValue]
    """Values by which an engine can find the run. `SessionID` can only be the run's own thread."""
    task_queue: str
    """Which workers should drive the run; the embedded engine, which has none, only stores it."""
    retry_policy: RetryPolicy
    """How often an engine with workers tries to hand the run to one."""
    requested_by: str
    """Who requested the run, for the four-eyes rule and the log."""


def reminders_of(given: object) -> tuple[Reminder, ...]:
    """Checks a run's reminders. Raises `InvalidRequest` unless they are a list of reminders with distinct ids."""
    listed = list(cast("Sequence[object]", given)) if isinstance(given, Sequence) else [None]
    found = [one for one in listed if isinstance(one, Reminder)]
    if len(found) < len(listed) or len({one.id for one in found}) < len(found) or len(found) > MAX_REMINDERS:
        raise InvalidRequest(f"reminders= takes a list of up to {MAX_REMINDERS} Reminders, each with its own id.")
    return tuple(found)


class LocalSpec(RunSpec, frozen=True, kw_only=True):
    """What code asks a run for: fields of a spec, and what only code can give. No request is decoded as one."""

    metadata: dict[str, Any] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    conversation: Sequence[Message] = ()
    """The run's messages, of which the first ones are `given`."""
    given: int = 0
    limits: Limits | None = None
    behavior: Behavior | None = None
    hooks: Sequence[Hook[Any, Any]] = ()
    only: Sequence[str] | None = None
    """The agent's tools that the run has, by name; None for all."""
    reminders: tuple[Reminder, ...] = ()
    engine: EngineOptions | None = None
    requested_by: str = ""


def fields_of_spec(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that are fields of a spec as they are. Raises `InvalidRequest` with all that is wrong."""
    given = {name: options[name] for name in SpecOptions.__annotations__ if options.get(name) is not None}
    if issues := [issue for name, value in given.items() for issue in problems_in(RunSpec, name, value)]:
        raise invalid(issues)
    return {name: _copied(value) for name, value in given.items()}


def _copied(value: object) -> object:
    return dict(cast("Mapping[object, object]", value)) if isinstance(value, Mapping) else value


def check_options(prompt: object, options: Mapping[str, Any]) -> None:
    """Raises `TypeError` for an unknown option, which would otherwise be ignored, and for an invalid value."""
    if prompt is not None:
        argument_checks.expect("the prompt", prompt, str, "a string")
    known = RunOptions.__annotations__
    for name in options:
        if name not in known:
            if elsewhere := our_name("run", name):
                raise TypeError(elsewhere)
            near = did_you_mean(name, known)
            raise TypeError(f"a run has no option {name!r}; use one of {', '.join(sorted(known))}.{near}")
    if options:
        check_parts(options)
        for name in ("thread", "key", "run_id", "requested_by"):
            if name in options:
                argument_checks.expect(name, options[name], str, "a string")
        if "messages" in options:
            argument_checks.require_list(
                "messages", options["messages"], _MESSAGES, "a message, such as User.of('Hi!')"
            )
        if "files" in options:
            argument_checks.require_list(
                "files", options["files"], (str, PathLike, Image, File), "a path, an address or a part"
            )
        for one in options.get("hooks", ()):
            check_hook(one)


def check_parts(given: Mapping[str, Any]) -> None:
    """Checks the options that agents and runs have in common."""
    argument_checks.model("model", given.get("model"))
    argument_checks.instructions(given.get("instructions"))
    for name, (kind, like) in _PARTS.items():
        if given.get(name) is not None:
            argument_checks.expect(name, given[name], kind, like)


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
    """Raises `TypeError` for deps that are not of the agent's type, if it declares one."""
    if not isinstance(kind, type):
        return
    try:
        fits = isinstance(given, kind)
    except TypeError:  # a protocol that cannot be checked at run time
        return
    if not fits:
        raise TypeError(f"the agent's deps are of the type {kind.__name__}, not {type(given).__name__}")
