"""The tools of a folder, as a run executes them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from weftline import prompts
from weftline.threads.definitions.base import alias_of
from weftline.threads.definitions.handlers import ToolDefinition
from weftline.threads.definitions.prompts import PromptToolConfig
from weftline.threads.packages import package_of
from weftline.threads.state import BlockingThread, LiveThread
from weftline.threads.thread import ToolResult
from weftline.tools.base import ToolContext, ToolFailed, ToolOutput
from weftline.tools.function import FunctionTool
from weftline.tools.signature import Parameters


class ThreadTool(FunctionTool[..., Any, Any]):
    """A tool whose function gets the state of the run's thread. `entries` is what prompts say of it, by seat."""

    def __init__(self, definition: ToolDefinition, entries: Mapping[str, PromptToolConfig]) -> None:
        given = definition
        super().__init__(
            given.execute,
            name=alias_of(given.name),
            description=given.description,
            effect=given.effect,
            concurrent=given.concurrent,
            timeout_s=given.timeout_s,
            blocking=given.blocking,
            reconcile=given.reconcile,
            confirm=given.confirm,
            confirm_timeout_s=given.confirm_timeout_s,
            approvers=given.approvers or None,
            in_doubt=given.in_doubt,
            title=given.title,
            display_hint=given.display_hint,
        )
        self.definition = given
        self._entries = entries
        self._entry = PromptToolConfig(given.name)

    @property
    def parameters(self) -> Parameters:
        if self._parameters is None:
            self._parameters = self.definition.parameters
        return self._parameters

    async def invoke(self, args: bytes, context: ToolContext[Any]) -> ToolOutput:
        thread: LiveThread = context.deps
        key = context.idempotency_key
        entry = self._entries.get(thread.speaker.name, self._entry)
        package = package_of(self.definition)
        env, options, caller = entry.env, entry.options, self.definition.name
        with thread.during(key, env=env, options=options, package=package, caller=caller) as state:
            needed = [one.name for one in self.definition.variables if one.required]
            missing = await state.variables.missing(needed)
            if missing:
                return ToolOutput.of(prompts.calls.missing_variables(missing), is_error=True)
            context.deps = state
            try:
                return await super().invoke(args, context)
            finally:
                context.deps = thread

    def _given(self, context: ToolContext[Any]) -> object:
        state = context.deps
        return BlockingThread(state) if self._in_thread else state

    def _bound(self, fn: Callable[..., Any], args: bytes, context: ToolContext[Any]) -> Callable[[], Any]:
        if self.definition.args is not None and fn is self._fn:
            given = self.definition.args(**self.parameters.keywords(args))
            state = self._given(context)
            return lambda: _converted(fn(state, given))
        call = super()._bound(fn, args, context)
        return lambda: _converted(call())


def _converted(value: Any) -> Any:
    """Takes a result in the thread specification's form for what it says."""
    if inspect.isawaitable(value):
        return _awaited(value)
    if not isinstance(value, ToolResult):
        return value
    if value.status == "error":
        raise ToolFailed(value.error or prompts.calls.FAILED)
    return value.result


async def _awaited(value: Awaitable[Any]) -> Any:
    return _converted(await value)
