"""One vocabulary: the library's events of a log and the client's of its stream are the same, whatever is in the log."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from msgspec import Raw

from kernel.histories import History, histories, lived
from weftline import events
from weftline.agent.events import events_of, profiled_events
from weftline.client.events import Frame, parse_frame
from weftline.errors import StoreError
from weftline.events import AnyEvent, Event
from weftline.events.docs_page import details_table, names_of, table
from weftline.events.frames import OBSERVED
from weftline.events.profiles import classes_of
from weftline.events.project import OF_FACTS
from weftline.events.project_details import DetailProjection, RunFacts
from weftline.kernel import bodies
from weftline.kernel.entries import KIND, Fact
from weftline.kernel.notes import PROVIDER_CALL, TEXT_DELTA, THINKING_DELTA, TOOL_NOTE, TOOL_PROGRESS
from weftline.messages import ProviderCall
from weftline.net.sse import SseParser
from weftline.runtime.engine import EntryBatch
from weftline.server.sse import sse_frames
from weftline.store.rows import Item

SEARCH = ProviderCall("s1", "web_search", "anthropic", result=Raw(b'[{"url": "caf\\u00e9"}]'))
OBSERVATIONS: dict[str, list[bytes]] = {
    TEXT_DELTA: [b'{"text":"a","turn":0,"attempt":1}', b'{"text":"b","turn":2,"attempt":3}'],
    THINKING_DELTA: [b'{"text":"hm","turn":1,"attempt":1}'],
    PROVIDER_CALL: [
        bodies.note_body(SEARCH, turn=3),
        bodies.note_body(ProviderCall("s2", "code", "openai", status="failed"), turn=0),
    ],
    TOOL_PROGRESS: [
        bodies.encode(bodies.ProgressNote("c1", "dig", 1)),
        bodies.encode(bodies.ProgressNote("c1", "dig", 1.5, 2, "half")),
    ],
    TOOL_NOTE: [
        bodies.encode(bodies.ToolNote("c1", "dig", "found", Raw(b'{"gold":[1,null]}'))),
        bodies.encode(bodies.ToolNote("c1", "dig", "found", Raw(b"null"))),
    ],
}


def log_of(history: History) -> EntryBatch:
    """The log of a run with everything that can be observed in its middle."""
    seq, items = 1, list[Item]()
    entries = lived(history).entries
    for place, entry in enumerate(entries):
        items.append(Item(entry.at, KIND[type(entry.head)], bodies.encode(entry.head), entry.body, seq=seq))
        seq += 1
        if place != len(entries) // 2:
            continue
        for kind, seen in OBSERVATIONS.items():
            items.append(Item(entry.at, kind, b"", b"\n".join(seen), len(seen), seq))
            seq += len(seen)
    return EntryBatch("run_1", items, size=0, last_seq=seq - 1, ended=True)


def streamed(batch: EntryBatch) -> list[Frame]:
    """What a client makes of the bytes that a server sends."""
    return [parse_frame(sent, run_id=batch.run_id) for sent in SseParser().feed(sse_frames(batch))]


def part(batch: EntryBatch, *, after: int) -> EntryBatch:
    """What a reader gets who goes on from there."""
    items = [item for item in batch.items if item.last_seq > after]
    return EntryBatch(batch.run_id, items, size=0, last_seq=batch.last_seq, ended=True, after=after)


@given(histories)
def test_library_and_client_see_same_in_every_log(history: History) -> None:
    batch = log_of(history)
    seen = list(events_of(batch))
    frames = streamed(batch)
    assert [frame.event for frame in frames] == seen
    kinds = {seq: item.kind for item in batch.items for seq in range(item.seq, item.last_seq + 1)}
    for frame in frames:
        names = names_of(type(frame.event))
        assert frame.type in names.wire and kinds[frame.seq] in names.log


@settings(max_examples=10)
@given(histories)
def test_an_event_is_the_same_wherever_a_reader_begins(history: History) -> None:
    batch = log_of(history)
    seen = list(events_of(batch))
    for after in range(0, batch.last_seq, 1 + batch.last_seq // 8):
        rest = part(batch, after=after)
        assert list(events_of(rest)) == [event for event in seen if event.seq > after]
        assert [frame.event for frame in streamed(rest)] == [event for event in seen if event.seq > after]


def test_the_histories_have_every_event_that_there_is() -> None:
    wanted = {*get_args(AnyEvent)} - {events.UnknownEvent}
    found: set[type[Event]] = set()
    for seed in range(2000):
        found |= {type(event) for event in events_of(log_of(History(seed, 600)))}
        if found == wanted:
            break
    assert found == wanted


def test_each_entry_that_is_shown_is_shown_by_both() -> None:
    by_library: dict[str, set[type[Event]]] = defaultdict(set)
    for event in get_args(AnyEvent):
        for kind in names_of(event).log:
            by_library[kind].add(event)
    shown: set[type[Fact]] = {*OF_FACTS}
    assert by_library.keys() == {KIND[fact] for fact in shown} | OBSERVED.keys()


def test_newer_entry_is_an_event_without_a_meaning() -> None:
    newer = Item(0, "gate.asked", b'{"type":"gate.asked","turn":0}', b"{}", seq=1)
    batch = EntryBatch("run_1", [newer], size=0, last_seq=1, ended=False, newer=True)
    assert list(events_of(batch)) == [events.UnknownEvent(run_id="run_1", seq=1, type="gate.asked")]


def plain(batch: EntryBatch) -> list[Event]:
    return list(events_of(batch))


def profiled(batch: EntryBatch) -> list[Event]:
    projection = DetailProjection(RunFacts("run_1", None, None, "run_1"))
    return list(profiled_events(batch, projection, classes_of("all")))


@pytest.mark.parametrize("read", [plain, profiled])
@pytest.mark.parametrize(
    ("kind", "head", "body"),
    [
        ("gate.asked", b'{"type":"gate.asked","turn":0}', b"{}"),
        ("run.ended", b'{"type":"run.ended","sta', b"{}"),
        ("run.ended", b'{"type":"run.ended","status":"succeeded"}', b'{"text":1}'),
        ("delta.text", b"", b'{"text":1}'),
        ("delta.smell", b"", b"{}"),
    ],
)
def test_an_unreadable_entry_is_damage_unless_newer_code_wrote_it(
    read: Callable[[EntryBatch], list[Event]], kind: str, head: bytes, body: bytes
) -> None:
    batch = EntryBatch("run_1", [Item(0, kind, head, body, seq=1)], size=0, last_seq=1, ended=False, newer=True)
    assert read(batch)[-1] == events.UnknownEvent(run_id="run_1", seq=1, type=kind)
    batch.newer = False
    with pytest.raises(StoreError, match=r"^The log of run run_1 is damaged: entry 1 cannot be read\.$") as damage:
        read(batch)
    assert damage.value.code == "log_damaged"


def test_the_page_about_events_has_the_tables_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
    command = "python -m weftline.events.docs_page docs/events.md"
    for name, made in (("table", table()), ("details", details_table())):
        found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", page, re.DOTALL)
        assert found is not None and found[1].strip() == made.strip(), command
