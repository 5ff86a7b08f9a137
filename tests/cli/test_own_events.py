"""Events of a run in this process are those of its stream, and those of newer code hide no others."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from runtime.kit import MoodyStore, ended, engine_on, plan
from weftline.api import following
from weftline.api.following import EventKind
from weftline.cli.events import frames_of, live_frames, stored_frames
from weftline.client.events import parse_frame
from weftline.errors import StoreError
from weftline.net.sse import SseParser
from weftline.plan import ServerRef
from weftline.runtime.engine import EntryBatch
from weftline.server.sse import UnreadableLog, sse_frames
from weftline.store.memory import MemoryDisk
from weftline.store.rows import Item
from weftline.tools.base import ToolContext, ToolProgress
from weftline.tools.decorator import tool

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
        live = [frame async for frame in live_frames(it, 1, run_id)]
        assert (await ended(it, run_id, space)).status == "succeeded"
        assert [frame async for frame in stored_frames(MoodyStore(disk).log, 1, run_id)] == live
        later = [frame for frame in live if frame.seq > 3]
        assert [frame async for frame in stored_frames(MoodyStore(disk).log, 1, run_id, after=3)] == later
    return disk, run_id


def batch_of(run_id: str, items: list[Item], *, newer: bool = False) -> EntryBatch:
    return EntryBatch(run_id, items, size=0, last_seq=items[-1].last_seq, ended=True, newer=newer)


def spoiled(items: list[Item], which: str, **fields: Any) -> list[Item]:
    return [replace(item, **fields) if item.kind == which else item for item in items]


class Once:
    """Brings one batch."""

    taken, left, follows_below = 0, False, False

    def __init__(self, batch: EntryBatch) -> None:
        self._batches = [[batch]]

    async def next(self) -> list[EntryBatch] | None:
        return self._batches.pop() if self._batches else None

    def rewind(self, seq: int) -> None: ...
    def leave(self) -> None: ...
    def close(self) -> None: ...


async def test_events_in_this_process_are_those_of_the_stream() -> None:
    disk, run_id = await log_of_a_run()
    batch = batch_of(run_id, disk.runs[1].items)
    streamed = [parse_frame(sent, run_id=run_id) for sent in SseParser().feed(sse_frames(batch))]
    assert list(frames_of(batch)) == streamed
    assert {frame.type for frame in streamed} >= {
        *("started", "assistant_delta", "assistant_message", "tool_call"),
        *("tool_progress", "tool_result", "result"),
    }


async def test_an_entry_of_newer_code_hides_no_other() -> None:
    disk, run_id = await log_of_a_run()
    items = spoiled(disk.runs[1].items, "turn.completed", head=b'{"type":"turn.completed"}')
    items = spoiled(items, "note.tool_progress", kind="note.unknown")
    batch = batch_of(run_id, items, newer=True)
    shown = [frame.type for frame in frames_of(batch)]
    assert not {"assistant_message", "tool_progress"} & set(shown) and shown[-1] == "result"
    assert sse_frames(batch).count(b"event: ") == len(shown)
    happened = [event.kind async for event in following.run_events(Once(batch))]
    assert EventKind.TURN not in happened and happened[-1] is EventKind.END


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("turn.completed", {"head": b'{"type":"turn.completed"}'}),
        ("turn.completed", {"head": b'{"type":"turn.comp#eted"}'}),
        ("turn.completed", {"head": b"{"}),
        ("delta.text", {"body": b'{"text":"a'}),
        ("delta.text", {"body": b'{"text":"\xff"}'}),
        ("delta.text", {"body": b'{"text":"too"}\n' * 3}),
    ],
)
async def test_events_of_damaged_log_end_where_it_cannot_be_read(kind: str, fields: dict[str, bytes]) -> None:
    """Nothing is left out and shown as if it were whole."""
    disk, run_id = await log_of_a_run()
    batch = batch_of(run_id, spoiled(disk.runs[1].items, kind, **fields))
    first = next(item for item in batch.items if item.kind == kind)
    shown: list[int] = []
    with pytest.raises(StoreError, match=f"entry {first.seq} cannot be read") as refused:
        shown.extend(frame.seq for frame in frames_of(batch))
    assert refused.value.code == "log_damaged" and all(seq < first.seq for seq in shown)
    with pytest.raises(UnreadableLog) as stopped:
        sse_frames(batch)
    *_, last = [parse_frame(sent, run_id=run_id) for sent in SseParser().feed(stopped.value.frames)]
    assert (last.type, last.seq) == ("error", first.last_seq)
    with pytest.raises(StoreError, match="cannot be read"):
        async for _ in following.run_events(Once(batch)):
            pass
