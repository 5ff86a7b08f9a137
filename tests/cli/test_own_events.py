"""Events of a run in this process are those of its stream, and an entry that cannot be read hides no other."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from runtime.kit import MoodyStore, ended, engine_on, plan
from weftline.cli.events import events_of, live_events, stored_events
from weftline.client.events import parse_event
from weftline.net.sse import SseParser
from weftline.plan import ServerRef
from weftline.runtime.engine import EntryBatch
from weftline.server import following
from weftline.server.following import What
from weftline.server.sse import sse_frames
from weftline.store.base import Stored
from weftline.store.memory import MemoryDisk
from weftline.tools.base import ToolContext, ToolProgress
from weftline.tools.function import tool

SCRIPTS: dict[str, Any] = {
    "work": {
        "turns": [
            {"deltas": ["one ", "moment"], "tool_calls": [{"name": "work", "args": {"n": 1}}]},
            {"deltas": ["do", "ne"]},
        ]
    }
}


@tool(effect="read")
async def work(n: int, context: ToolContext) -> str:
    """Works."""
    context.on_progress(ToolProgress(1, 2, "half"))
    return "worked"


async def log_of_a_run() -> tuple[MemoryDisk, str]:
    disk = MemoryDisk()
    async with engine_on(MoodyStore(disk), SCRIPTS, tools={"work": work})[0] as it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("work", ServerRef("work")))
        live = [event async for event in live_events(it, 1, run_id)]
        assert (await ended(it, run_id, space)).status == "succeeded"
        assert [event async for event in stored_events(MoodyStore(disk).log, 1, run_id)] == live
        later = [event for event in live if event.seq > 3]
        assert [event async for event in stored_events(MoodyStore(disk).log, 1, run_id, after=3)] == later
    return disk, run_id


def batch_of(run_id: str, items: list[Stored]) -> EntryBatch:
    return EntryBatch(run_id, items, size=0, last_seq=items[-1].last_seq, ended=True)


async def test_events_in_this_process_are_those_of_the_stream() -> None:
    disk, run_id = await log_of_a_run()
    batch = batch_of(run_id, disk.runs[1].items)
    streamed = [parse_event(frame, run_id=run_id) for frame in SseParser().feed(sse_frames(batch))]
    assert list(events_of(batch)) == streamed
    assert {event.type for event in streamed} >= {
        *("started", "assistant_delta", "assistant_message", "tool_call"),
        *("tool_progress", "tool_result", "result"),
    }


async def test_an_entry_that_cannot_be_read_hides_no_other() -> None:
    disk, run_id = await log_of_a_run()
    items = [
        replace(item, head=b'{"type":"turn.completed"}') if item.kind == "turn.completed" else item
        for item in disk.runs[1].items
    ]
    batch = batch_of(run_id, items)
    shown = [event.type for event in events_of(batch)]
    assert "assistant_message" not in shown and shown[-1] == "result"

    batches = [[batch]]

    class Once:
        taken, left = 0, False

        async def next(self) -> list[EntryBatch] | None:
            return batches.pop() if batches else None

        def go_back(self, seq: int) -> None: ...
        def leave(self) -> None: ...
        def close(self) -> None: ...

    happened = [event.what async for event in following.events_of(Once())]
    assert What.TURN not in happened and happened[-1] is What.END
