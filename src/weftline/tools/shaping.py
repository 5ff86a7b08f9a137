"""Functions of a toolset that process the arguments and results of its tools' calls.

    agent = Agent("openai:gpt-5", tools=[*toolset("billing", invoice, refund, adapt=unwrapped, materialize=receipt)])

The functions are synchronous and return at once. Each is called once per call, with a `ToolsetCall`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from weftline import prompts
from weftline.failure import Failure, ServerData, Telemetry
from weftline.text.canonical import canonical_value
from weftline.tools.base import Tool, ToolOutput
from weftline.tools.bounding import bounded_of, with_bounds
from weftline.tools.results import error_of, failure_of, output_of, reason_of
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)


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

    def adapted(self, call: ToolsetCall) -> str:
        """Returns the arguments for the tool. Raises whatever the function raises."""
        made = None if self.adapt is None else self.adapt(call)
        if not made:
            return call.args
        return made if isinstance(made, str) else canonical_value(dict(made)).decode()

    def materialized(self, tool: Tool, call: ToolsetCall, output: ToolOutput) -> ToolOutput:
        """Returns the result to store. If the function raises, that is an error result."""
        if self.materialize is None:
            return output
        shaped = output
        with attempt(logger, "run %s: the result of %s could not be materialized", call.run_id, call.tool) as making:
            made: object = self.materialize(call, output)
            shaped = output if made is None else _to_output(tool, made, output)
        if (error := making.error) is not None:
            text = prompts.calls.not_materialized(call.tool, reason_of(error))
            return ToolOutput.of(text, is_error=True, failure=replace(failure_of(error, text), kind="malformed_result"))
        left = tuple(call.server_data)
        return replace(shaped, server_data=(*shaped.server_data, *left)) if left else shaped

    def measured(self, call: ToolsetCall, output: ToolOutput, *, duration_ms: int) -> ToolOutput:
        if self.telemetry is None or output.telemetry is not None:
            return output
        with attempt(logger, "run %s: the telemetry of %s failed", call.run_id, call.tool):
            return replace(output, telemetry=self.telemetry(call, duration_ms))
        return output


def _to_output(tool: Tool, value: object, output: ToolOutput) -> ToolOutput:
    made = output_of(value, tool_name=tool.spec.name)
    if made.telemetry is None:
        made = replace(made, telemetry=output.telemetry)
    if not made.server_data:
        made = replace(made, server_data=output.server_data)
    if made.bounds is None and not made.is_error:
        made = replace(made, bounds=output.bounds)
    return with_bounds(tool, made) if made.bounds is not None or bounded_of(tool) else made


def shaping_of(tool: Tool | None) -> Shaping | None:
    """Returns the functions of the tool's toolset."""
    return getattr(tool, "shaping", None)


def refused_by(tool: str, error: BaseException) -> tuple[str, Failure]:
    """Returns what the model reads if the arguments of a call could not be adapted."""
    text = prompts.calls.not_adapted(tool, reason_of(error))
    return text, error_of(error).failure or Failure(text, "invalid_call")
