"""Toolsets whose functions process the arguments and results of their tools' calls, and what can be stored of them.

    agent = Agent("openai:gpt-5", tools=[*toolset("billing", invoice, refund, adapt=unwrapped, materialize=receipt)])

The functions are synchronous and return at once. Each is called once per call, with a `ToolsetCall`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar, cast, get_args

import msgspec
from msgspec.structs import replace

from weftline import prompts
from weftline.failure import Audience, Failure, Hint, ServerData, Telemetry
from weftline.runtime.live import WorkingSet
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.text.characters import storable
from weftline.tools.base import Shaping, Tool, ToolOutput, ToolsetCall
from weftline.tools.results import error_of, failure_of, output_of, reason_of, with_bounds
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


T = TypeVar("T")

_UNWRITABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)


def storable_telemetry(telemetry: Telemetry | None, *, run_id: str, tool: str) -> Telemetry | None:
    if telemetry is None:
        return None
    try:
        return _read_back(telemetry, Telemetry)
    except _UNWRITABLE as error:
        logger.error("run %s: the telemetry of %s cannot be stored: %s", run_id, tool, error)
        return None


def storable_failure(failure: Failure | None, *, run_id: str, tool: str) -> Failure | None:
    """The failure, with as much of its hint as can be stored."""
    if failure is None or failure.hint is None:
        return failure
    hint: Hint = failure.hint
    try:
        hint = replace(hint, message=storable(hint.message), clarifying_question=storable(hint.clarifying_question))
        for name in ("example_input", "prior_input"):
            try:
                if (value := getattr(hint, name)) is not None:
                    msgspec.json.encode(value)
            except _UNWRITABLE as error:
                logger.error("run %s: the %s of a hint of %s cannot be stored: %s", run_id, name, tool, error)
                hint = replace(hint, **{name: None})
        return replace(failure, hint=_read_back(hint, Hint))
    except _UNWRITABLE as error:
        logger.error("run %s: a hint of %s cannot be stored: %s", run_id, tool, error)
        return replace(failure, hint=None)


def storable_data(data: Iterable[object], *, run_id: str, tool: str) -> tuple[ServerData, ...]:
    left: list[ServerData] = []
    for one in data:
        try:
            if not isinstance(one, ServerData) or one.audience not in get_args(Audience):
                raise NotCanonical(f"{one!r:.100} is not a ServerData")
            if not isinstance(cast("object", one.kind), str):
                raise NotCanonical("its kind is not a string")
            canonical_value([one.kind, one.data])
            left.append(one)
        except NotCanonical as error:
            kind = getattr(one, "kind", "")
            logger.error("run %s: data %s of %s is not JSON: %s", run_id, kind, tool, error)
    return tuple(left)


def _read_back(value: T, of: type[T]) -> T:
    return msgspec.json.decode(msgspec.json.encode(value), type=of)


def shaped_call(
    shaping: Shaping, work: WorkingSet, *, turn: int, id: str, tool: str, args: str, parent: str
) -> ToolsetCall:
    return ToolsetCall(
        run_id=work.run_id,
        thread_id=work.session_id,
        turn_id=work.plan.turn_id or f"{work.run_id}.{turn}",
        call_id=id,
        parent_call=parent or None,
        tool=tool,
        toolset=shaping.toolset,
        args=args,
    )


def shaped_result(
    output: ToolOutput, work: WorkingSet, *, turn: int, index: int, id: str, name: str, active_us: int = 0
) -> ToolOutput:
    """The result of a call as it is stored. The result of a tool without a toolset is unchanged."""
    tool = (work.toolbox or EMPTY).get(name)
    shaping = None if tool is None else tool.traits.shaping
    if tool is None or shaping is None:
        return output
    latest = work.conversation.turn
    args, parent = latest.args[index].decode(), latest.parent_of(index)
    call = shaped_call(shaping, work, turn=turn, id=id, tool=name, args=args, parent=parent)
    shaped = measured(shaping, call, materialized(shaping, tool, call, output), duration_ms=active_us // 1000)
    about = {"run_id": work.run_id, "tool": name}
    return replace(
        shaped,
        server_data=storable_data(shaped.server_data, **about),
        telemetry=storable_telemetry(shaped.telemetry, **about),
    )
