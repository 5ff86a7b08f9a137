"""Entries of a batch: decoded once, and those of newer code told from damaged ones."""

from __future__ import annotations

import pytest
from msgspec import DecodeError
from msgspec.json import encode

from weftline.errors import Conflict, StoreError
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import Fact, TimerFired
from weftline.runtime.decoding import check_observations, facts_in, require_skippable
from weftline.runtime.engine import EntryBatch
from weftline.store.rows import Item

FIRED = [TimerFired(1), TimerFired(2)]
ITEMS = [
    Item(0, "timer.fired", encode(FIRED[0]), b"", seq=1),
    Item(0, "delta.text", b"", b'{"text":"a"}\n{"text":"b"}', 2, seq=2),
    Item(0, "gate.asked", b'{"type":"gate.asked"}', b"", seq=4),
    Item(0, "timer.fired", encode(FIRED[1]), b"", seq=5),
]


def batch_of(*items: Item, heads: list[Fact] | None = None, newer: bool = False, ended: bool = False) -> EntryBatch:
    last_seq = items[-1].last_seq
    return EntryBatch("run_1", items, size=0, last_seq=last_seq, ended=ended, heads=heads, newer=newer)


def test_facts_of_a_page_continue_after_an_undecodable_one() -> None:
    facts = facts_in(batch_of(*ITEMS))
    assert next(facts) == FIRED[0]
    with pytest.raises(UNREADABLE):
        next(facts)
    assert list(facts) == [FIRED[1]]


def test_the_facts_of_a_commit_are_not_decoded_again() -> None:
    heads: list[Fact] = [*FIRED]
    assert [id(fact) for fact in facts_in(batch_of(*ITEMS, heads=heads))] == [id(fact) for fact in heads]


@pytest.mark.parametrize(
    ("kind", "body", "count"),
    [("delta.smell", b"{}", 1), ("delta.text", b'{"text":1}', 1), ("delta.text", b'{"text":"a"}', 2)],
)
def test_observations_have_a_known_kind_and_count(kind: str, body: bytes, count: int) -> None:
    check_observations(ITEMS[1])
    with pytest.raises(DecodeError):
        check_observations(Item(0, kind, b"", body, count, seq=1))


def test_undecodable_entry_is_damage_unless_written_by_newer_code() -> None:
    require_skippable(batch_of(*ITEMS, newer=True), ITEMS[2])
    with pytest.raises(StoreError, match=r"^The log of run run_1 is damaged: entry 4 cannot be read\.$") as damage:
        require_skippable(batch_of(*ITEMS), ITEMS[2])
    assert damage.value.code == "log_damaged"


def test_the_end_of_a_run_is_not_skipped() -> None:
    require_skippable(batch_of(*ITEMS, newer=True, ended=True), ITEMS[0])
    with pytest.raises(Conflict, match=r"^Only a newer version of Weftline can read how run run_1 ended\.$") as refused:
        require_skippable(batch_of(*ITEMS, newer=True, ended=True), ITEMS[-1])
    assert refused.value.code == "unsupported_run"
