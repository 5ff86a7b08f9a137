"""The tables of docs/events.md. A test checks them; `python -m weftline.agent.events.event_page docs/events.md` writes
them.
"""

from __future__ import annotations

import re
import sys
from inspect import cleandoc
from pathlib import Path
from typing import get_args

from msgspec import Struct

from weftline import events
from weftline.details import AnyDetail, Detail
from weftline.details.projection import type_of
from weftline.events import AnyEvent, Event
from weftline.wire.details import wire_name

_TABLE = re.compile(r"(<!-- table -->\n).*?(<!-- /table -->)", re.DOTALL)
_DETAILS = re.compile(r"(<!-- details -->\n).*?(<!-- /details -->)", re.DOTALL)


class Names(Struct, frozen=True):
    """An event's names elsewhere: its types on the wire, and the kinds of entries that it is made from."""

    wire: tuple[str, ...]
    log: tuple[str, ...]


NAMES: dict[type[Event], Names] = {
    events.RunStarted: Names(("started",), ("run.created",)),
    events.TextDelta: Names(("assistant_delta",), ("delta.text",)),
    events.ThinkingDelta: Names(("thinking_delta",), ("delta.thinking",)),
    events.TurnRestarted: Names(("turn_restarted",), ("attempt.started",)),
    events.TurnFinished: Names(("assistant_message",), ("turn.completed",)),
    events.CallOpened: Names(("tool_call", "local_tool_call"), ("call.opened", "call.unclaimed")),
    events.CallClaimed: Names(("local_tool_claimed",), ("call.claimed",)),
    events.CallFellBack: Names(("local_tool_fallback",), ("call.unclaimed",)),
    events.CallFinished: Names(("tool_result", "local_tool_result_in"), ("call.closed",)),
    events.ChildStarted: Names(("child_started",), ("call.started",)),
    events.ChildEnded: Names(("child_ended",), ("child.ended",)),
    events.CallProgress: Names(("tool_progress",), ("note.tool_progress",)),
    events.ProviderCalled: Names(("tool_result",), ("note.provider_call",)),
    events.Note: Names(("note",), ("note.tool",)),
    events.AwaitOpened: Names(("await_opened",), ("await.opened",)),
    events.AwaitClosed: Names(("await_closed",), ("await.closed",)),
    events.MessagesTaken: Names(("messages_taken",), ("messages.taken",)),
    events.OutputRejected: Names(("output_rejected",), ("output.rejected",)),
    events.LoopDetected: Names(("loop_detected",), ("loop.detected",)),
    events.BudgetExceeded: Names(("tool_budget_exceeded",), ("budget.exceeded",)),
    events.PolicyDecided: Names(("policy_decision",), ("policy.decided",)),
    events.FinalForced: Names(("final_forced",), ("final.forced",)),
    events.ContextCompacted: Names(("context_compacted",), ("context.compacted",)),
    events.ContextRestored: Names(("context_restored",), ("context.restored",)),
    events.RunPaused: Names(("run_paused",), ("run.paused",)),
    events.RunResumed: Names(("run_resumed",), ("run.resumed",)),
    events.RunEnded: Names(("result", "error", "cancelled"), ("run.ended",)),
    events.UnknownEvent: Names((), ()),
}


def table() -> str:
    """One row for each event."""
    rows = ["| class | fields | wire | log | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *[_row(event) for event in get_args(AnyEvent)]]) + "\n"


def _row(event: type[Event]) -> str:
    names = NAMES[event]
    fields = [name for name in event.__struct_fields__ if name not in Event.__struct_fields__]
    meaning = " ".join(cleandoc(event.__doc__ or "").split())
    return f"| `{event.__name__}` | {_listed(fields)} | {_listed(names.wire)} | {_listed(names.log)} | {meaning} |"


def details_table() -> str:
    """One row for each detail, with its fields as they are on the wire."""
    rows = ["| type | fields | class | meaning |", "|---|---|---|---|"]
    return "\n".join([*rows, *[_detail_row(detail) for detail in get_args(AnyDetail)]]) + "\n"


def _detail_row(detail: type[AnyDetail]) -> str:
    fields = [wire_name(name) for name in detail.__struct_fields__ if name not in Detail.__struct_fields__]
    meaning = " ".join(cleandoc(detail.__doc__ or "").split())
    return f"| `{type_of(detail)}` | {_listed(fields)} | `{detail.__name__}` | {meaning} |"


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join([f"`{name}`" for name in names])


if __name__ == "__main__":
    page = Path(sys.argv[1])
    text = _TABLE.sub(lambda found: found[1] + table() + found[2], page.read_text(encoding="utf-8"))
    page.write_text(_DETAILS.sub(lambda found: found[1] + details_table() + found[2], text), encoding="utf-8")
