"""Hooks of a folder: code at points of a thread's life, for the prompts and agents that list its id.

The active prompt's list counts, or its agent's if it has none. A hook that raises, takes longer than its time or
returns what does not fit is logged, and what it was given is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from msgspec.json import encode

from weftline.agent.context import RunContext
from weftline.agent.hooking.calling import Hook
from weftline.agent.hooks import ContextBuilt, Point, SystemRendered, ToolAfterFailure, ToolAfterSuccess, ToolTransform
from weftline.messages import Assistant, Message, System, Text, ToolResults, User, joined_text
from weftline.threads.definitions.handlers import HookDefinition, HookPoint
from weftline.threads.registry import Registry
from weftline.threads.serving import called
from weftline.threads.speakers import Speaker
from weftline.threads.state import LiveThread
from weftline.threads.thread import FunctionCall, HookToolCall, ToolResult
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)

T = TypeVar("T")
CREATED: HookPoint = "after_thread_created"


def hooks_of(registry: Registry, speakers: Collection[Speaker]) -> list[Hook[Any]]:
    """Returns the hooks of a run whose speakers these are: one for each point at which any of them has some."""
    used = {hook.hook for one in speakers for hook in registry.hooks_for(one.agent, one.prompt)}
    points: dict[HookPoint, tuple[type[Point], Callable[..., Any]]] = {
        "after_system_message": (SystemRendered, _system_message),
        "prefilter_llm_history": (ContextBuilt, _history),
        "after_tool_call_success": (ToolAfterSuccess, partial(_result, "after_tool_call_success")),
        "after_tool_call_failure": (ToolAfterFailure, partial(_result, "after_tool_call_failure")),
        "before_store_tool_result": (ToolTransform, partial(_result, "before_store_tool_result")),
    }
    return [_named(Hook(point, partial(fn, registry)), name) for name, (point, fn) in points.items() if name in used]


def _named(hook: Hook[Any], name: str) -> Hook[Any]:
    hook.name = name
    return hook


def created_hooks(registry: Registry, speaker: Speaker) -> list[HookDefinition]:
    """Returns the hooks for a new thread: those of the prompt that speaks first."""
    return [one for one in registry.hooks_for(speaker.agent, speaker.prompt) if one.hook == CREATED]


async def call_created(hooks: Iterable[HookDefinition], state: LiveThread) -> None:
    for one in hooks:
        await _asked(one, state, f"created:{state.thread_id}", accept=lambda _: None, before=None)


async def _asked(
    hook: HookDefinition, state: LiveThread, key: str, *given: object, accept: Callable[[Any], T], before: T
) -> T:
    """Calls a hook. Returns what `accept` makes of its result, or else what was there before."""
    with attempt(logger, "thread %s: the hook %s at %s failed", state.thread_id, hook.id, hook.hook):
        with state.during(f"{key}:{hook.id}") as scoped:
            async with asyncio.timeout(hook.timeout_s):
                made = await called(hook.execute, scoped, *given)
        return accept(made)
    return before


def _listed(registry: Registry, state: LiveThread, point: HookPoint) -> list[HookDefinition]:
    speaker = state.speaker
    return [one for one in registry.hooks_for(speaker.agent, speaker.prompt) if one.hook == point]


async def _system_message(registry: Registry, point: SystemRendered, context: RunContext[LiveThread]) -> None:
    for one in _listed(registry, context.deps, "after_system_message"):
        text = point.system
        accept = partial(_text_or, text)
        point.system = await _asked(one, context.deps, _key(context, point.turn), text, accept=accept, before=text)


def _text_or(before: str, made: object) -> str:
    if made is None:
        return before
    if not isinstance(made, str):
        raise TypeError(f"it must return a string or None, not {type(made).__name__}")
    return made


async def _history(registry: Registry, point: ContextBuilt, context: RunContext[LiveThread]) -> None:
    for one in _listed(registry, context.deps, "prefilter_llm_history"):
        before = tuple(point.messages)
        key = _key(context, point.turn)
        point.messages = await _asked(one, context.deps, key, list(before), accept=_messages, before=before)


def _messages(made: object) -> tuple[Message, ...]:
    items: Sequence[object] = cast("Sequence[object]", made) if isinstance(made, list | tuple) else ()
    found = [one for one in items if isinstance(one, System | User | Assistant | ToolResults)]
    if not found or len(found) != len(items):
        raise TypeError("it must return a list of messages that is not empty")
    return tuple(found)


async def _result(
    name: HookPoint,
    registry: Registry,
    point: ToolAfterSuccess | ToolAfterFailure | ToolTransform,
    context: RunContext[LiveThread],
) -> None:
    call = HookToolCall(
        id=point.call_id, function=FunctionCall(name=point.tool, arguments=encode(dict(point.args)).decode())
    )
    for one in _listed(registry, context.deps, name):
        text = joined_text(point.result)
        before = ToolResult(status="error", error=text) if point.is_error else ToolResult(result=text)
        accept = partial(_result_or, before)
        made = await _asked(one, context.deps, _key(context, call.id), call, before, accept=accept, before=before)
        if made != before:
            point.is_error = made.status == "error"
            point.result = (Text(made.error if point.is_error else made.result),)


def _result_or(before: ToolResult, made: object) -> ToolResult:
    return before if made is None else ToolResult.of(made)


def _key(context: RunContext[LiveThread], place: object) -> str:
    return f"{context.run.id}:{place}"
