"""Arguments of calls that the run itself fills in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from weftline.runtime.live import WorkingSet
from weftline.tools.base import Tool


class TakesInjected(Protocol):
    """The additional interface of a tool for which a run fills in some arguments."""

    @property
    def injected(self) -> tuple[str, ...]: ...
    @property
    def required_labels(self) -> frozenset[str]:
        """The arguments for which the run must have a label of the same name."""
        ...

    def injecting(self, values: Mapping[str, object]) -> Tool:
        """The same tool for one call, with the values of its run."""
        ...


def takes_injected(tool: object) -> bool:
    return bool(getattr(tool, "injected", ()))


def injecting(tool: Tool, work: WorkingSet, *, turn: int, call_id: str, parent: str = "") -> Tool:
    """A tool that `takes_injected`, for one call. `parent` is the call that asked for it."""
    known: dict[str, object] = {
        "run_id": work.run_id,
        "turn": turn,
        "turn_id": work.plan.turn_id or f"{work.run_id}.{turn}",
    }
    known["call_id"] = known["tool_call_id"] = call_id
    if work.session_id:
        known["thread_id"] = work.session_id
    if parent:
        known["parent_call"] = known["parent_tool_call_id"] = parent
    return cast("TakesInjected", tool).injecting({**work.plan.labels, **work.conversation.labels, **known})
