"""Results of tools on their way to the log: processed by their toolsets, and made fit to be stored."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar, cast, get_args

import msgspec
from msgspec.structs import replace

from weftline.failure import Audience, Failure, Hint, ServerData, Telemetry
from weftline.runtime.live import WorkingSet
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.text.characters import storable
from weftline.tools.base import Shaping, ToolOutput, ToolsetCall
from weftline.tools.shaping import materialized, measured

T = TypeVar("T")

logger = logging.getLogger(__name__)
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
