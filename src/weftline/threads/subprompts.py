"""Prompts that other prompts call as tools: each call is a run of its own, on the thread of its caller."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw
from msgspec.json import decode

from weftline import prompts
from weftline.agent.definition import Definition
from weftline.agent.subagents import Subagent
from weftline.providers.base import ToolSpec
from weftline.runtime.agent_code.code import ChildEnd
from weftline.text.canonical import canonical_value
from weftline.threads.argument_rules import strict_schema
from weftline.threads.definitions.base import alias_of
from weftline.threads.definitions.prompts import PromptDefinition, SubpromptConfig
from weftline.tools.base import ToolOutput
from weftline.tools.checking import checked_args
from weftline.tools.function import FunctionTool

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
