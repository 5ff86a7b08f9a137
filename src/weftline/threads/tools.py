"""The tools of a folder, as a run executes them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Raw, to_builtins
from msgspec.json import decode

from weftline import prompts
from weftline.agent.definition import Definition
from weftline.agent.subagents import Subagent
from weftline.errors import InvalidRequest, NotFound, QuotaExceeded
from weftline.failure import ATTACHMENTS, ServerData
from weftline.providers.base import ToolSpec
from weftline.runtime.agent_code.code import ChildEnd
from weftline.text.canonical import canonical_value
from weftline.threads.argument_rules import strict_schema
from weftline.threads.definitions.base import alias_of
from weftline.threads.definitions.handlers import ToolDefinition
from weftline.threads.definitions.prompts import PromptDefinition, PromptToolConfig, SubpromptConfig
from weftline.threads.packages import package_of
from weftline.threads.state import BlockingThread, LiveThread
from weftline.threads.thread import ToolResult, as_attachment
from weftline.tools.base import ToolContext, ToolFailed, ToolOutput
from weftline.tools.checking import checked_args
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
                output = await super().invoke(args, context)
                if not state.attachments or output.is_error:
                    return output
                listed = [to_builtins(one) for one in await state.attached()]
            except (NotFound, InvalidRequest, QuotaExceeded) as error:
                if not state.attachments:
                    raise
                return ToolOutput.of(error.message, is_error=True)
            finally:
                context.deps = thread
            context.server_data.append(ServerData(ATTACHMENTS, listed))
            return output

    def _given(self, context: ToolContext[Any]) -> object:
        state = context.deps
        return BlockingThread(state) if self._in_thread else state

    def _bound(self, fn: Callable[..., Any], args: bytes, context: ToolContext[Any]) -> Callable[[], Any]:
        if self.definition.args is not None and fn is self._fn:
            given = self.definition.args(**self.parameters.keywords(args))
            state = self._given(context)
            return lambda: _converted(fn(state, given), context.deps)
        call = super()._bound(fn, args, context)
        return lambda: _converted(call(), context.deps)


def _converted(value: Any, state: LiveThread) -> Any:
    """Takes a result in the thread specification's form for what it says."""
    if inspect.isawaitable(value):
        return _awaited(value, state)
    if isinstance(value, Mapping) and ToolResult.is_form(cast("Mapping[Any, Any]", value)):
        return _converted(ToolResult.of(cast(object, value)), state)
    if not isinstance(value, ToolResult):
        return cast(Any, value)
    if value.status == "error":
        raise ToolFailed(value.error or prompts.calls.FAILED)
    state.attachments += [as_attachment(one) for one in value.attachments]
    return value.result


async def _awaited(value: Awaitable[Any], state: LiveThread) -> Any:
    return _converted(await value, state)


_MESSAGE = "message"
_ONE_MESSAGE: dict[str, Any] = {
    "type": "object",
    "properties": {_MESSAGE: {"type": "string"}},
    "required": [_MESSAGE],
}
"""The arguments of a prompt that declares none."""


class SubPrompt(Subagent):
    """A prompt as a tool. `agent` executes its calls: a compiled agent with that prompt."""

    def __init__(self, prompt: PromptDefinition, entry: SubpromptConfig, agent: Definition[Any, Any]) -> None:
        def called() -> str:
            raise NotImplementedError

        form = FunctionTool(
            called, name=alias_of(prompt.name), description=prompt.tool_description, effect="idempotent"
        )
        super().__init__(form, agent=agent)
        self._entry = entry
        own = prompt.required_schema
        self._property = entry.init_user_message_property or (_MESSAGE if own is None else "")
        schema = strict_schema(_ONE_MESSAGE if own is None else {"type": "object", **own})
        self._spec = ToolSpec(form.name, prompt.tool_description, Raw(msgspec.json.encode(schema)))

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def prepare(self, args: str) -> bytes:
        return await checked_args(args, self._spec)

    def task(self, args: bytes, *, render: object = None) -> tuple[str, str | None]:
        """Returns the first message of the prompt: the argument that its caller's entry names, or all of them."""
        if not self._property:
            return args.decode(), None
        value: object = decode(args).get(self._property, "")
        return value if isinstance(value, str) else canonical_value(value).decode(), None

    def result(self, end: ChildEnd) -> ToolOutput:
        """Returns what the entry says that the caller reads of the outcome."""
        if end.status == "succeeded":
            return ToolOutput.of(end.text if self._entry.include_text_response else prompts.seats.NOT_SHOWN)
        if not self._entry.include_errors:
            return ToolOutput.of(prompts.seats.NOT_SHOWN)
        return super().result(end)
