"""Functions of a toolset that process the arguments and results of its tools' calls.

    agent = Agent("openai:gpt-5", tools=[*toolset("billing", invoice, refund, adapt=unwrapped, materialize=receipt)])

The functions are synchronous and return at once. Each is called once per call, with a `ToolsetCall`.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from weftline import prompts
from weftline.failure import Failure
from weftline.text.canonical import canonical_value
from weftline.tools.base import Shaping, Tool, ToolOutput, ToolsetCall
from weftline.tools.bounding import with_bounds
from weftline.tools.results import error_of, failure_of, output_of, reason_of
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)


def adapted(shaping: Shaping, call: ToolsetCall) -> str:
    """Returns the arguments for the tool. Raises whatever the function raises."""
    made = None if shaping.adapt is None else shaping.adapt(call)
    if not made:
        return call.args
    return made if isinstance(made, str) else canonical_value(dict(made)).decode()


def materialized(shaping: Shaping, tool: Tool, call: ToolsetCall, output: ToolOutput) -> ToolOutput:
    """Returns the result to store. If the function raises, that is an error result."""
    if shaping.materialize is None:
        return output
    shaped = output
    with attempt(logger, "run %s: the result of %s could not be materialized", call.run_id, call.tool) as making:
        made: object = shaping.materialize(call, output)
        shaped = output if made is None else _to_output(tool, made, output)
    if (error := making.error) is not None:
        text = prompts.calls.not_materialized(call.tool, reason_of(error))
        return ToolOutput.of(text, is_error=True, failure=replace(failure_of(error, text), kind="malformed_result"))
    left = tuple(call.server_data)
    return replace(shaped, server_data=(*shaped.server_data, *left)) if left else shaped


def measured(shaping: Shaping, call: ToolsetCall, output: ToolOutput, *, duration_ms: int) -> ToolOutput:
    if shaping.telemetry is None or output.telemetry is not None:
        return output
    with attempt(logger, "run %s: the telemetry of %s failed", call.run_id, call.tool):
        return replace(output, telemetry=shaping.telemetry(call, duration_ms))
    return output


def _to_output(tool: Tool, value: object, output: ToolOutput) -> ToolOutput:
    made = output_of(value, tool_name=tool.spec.name)
    if made.telemetry is None:
        made = replace(made, telemetry=output.telemetry)
    if not made.server_data:
        made = replace(made, server_data=output.server_data)
    if made.bounds is None and not made.is_error:
        made = replace(made, bounds=output.bounds)
    return with_bounds(tool, made) if made.bounds is not None or tool.traits.bounded else made


def refused_by(tool: str, error: BaseException) -> tuple[str, Failure]:
    """Returns what the model reads if the arguments of a call could not be adapted."""
    text = prompts.calls.not_adapted(tool, reason_of(error))
    return text, error_of(error).failure or Failure(text, "invalid_call")
