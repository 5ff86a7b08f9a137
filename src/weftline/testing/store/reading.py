"""Reads: pages cut by bytes, look-ups, lists, and what retention leaves."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from weftline.store.base import LogReader
from weftline.store.rows import LargeEntry, Page, RunFilter
from weftline.testing.store.subject import (
    EVERYTHING,
    Subject,
    chain_of,
    commit,
    new_chain,
    new_thread,
    new_workspace,
    read_log,
    the_row,
)


async def the_page(log: LogReader, key: int, *, after: int = 0, max_bytes: int = EVERYTHING) -> Page:
    page = await log.page(key, after=after, max_bytes=max_bytes)
    assert page is not None
    return page


def seqs(page: Page) -> list[tuple[int, int]]:
    """The first and last seq of each item."""
    return [(item.seq, item.last_seq) for item in page.items]


async def a_page_reports_how_far_it_goes(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    await commit(log, chain.append(b"a", deltas=[b"b", b"c"]))
    page = await the_page(log, 1)
    assert (seqs(page), page.last_seq, page.upto, page.ended) == ([(1, 1), (2, 2), (3, 4)], 4, 4, False)
    await commit(log, chain.end())
    page = await the_page(log, 1, after=4)
    assert (seqs(page), page.last_seq, page.upto, page.ended) == ([(5, 5)], 5, 5, True)
    page = await the_page(log, 1, after=5)
    assert (page.items, page.last_seq, page.upto, page.ended) == ([], 5, 5, True)
    assert await log.page(2, after=0, max_bytes=EVERYTHING) is None


async def a_page_has_the_format_of_the_latest_write(subject: Subject) -> None:
    log, chain = subject.store.log, await new_chain(subject)
    for format in (3, 4):
        write = chain.append(b"a")
        write.format = format
        await commit(log, write)
        assert (await the_page(log, 1)).format == format
    assert (await the_page(log, 1, max_bytes=1)).format == 4, "it is that of the log, not of the page's items"


async def a_page_begins_inside_observations_that_share_a_row(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    await commit(log, chain.append(deltas=[b"2", b"3", b"4"]))
    await commit(log, chain.append(b"5", deltas=[b"6", b"7"]))
    expected = {1: [(2, 4), (5, 5), (6, 7)], 3: [(2, 4), (5, 5), (6, 7)], 4: [(5, 5), (6, 7)], 6: [(6, 7)], 7: []}
    assert {after: seqs(await the_page(log, 1, after=after)) for after in expected} == expected


async def pages_are_cut_by_bytes(subject: Subject) -> None:
    """Pages have at least one item, so that a reader always makes progress."""
    log = subject.store.log
    chain = await new_chain(subject)
    for number in range(10):
        await commit(log, chain.append(b"x" * 900, deltas=[b"y" * 450, b"%d" % number * 450]))
    for max_bytes in (1, 2_000, 5_000, EVERYTHING):
        seen: list[int] = []
        after = pages = 0
        while after < chain.seq - 1:
            page = await the_page(log, 1, after=after, max_bytes=max_bytes)
            assert len(page.items) == 1 or sum(item.size for item in page.items) <= max_bytes
            assert page.last_seq == page.items[-1].last_seq and page.upto == chain.seq - 1
            seen += [seq for item in page.items for seq in range(item.seq, item.last_seq + 1)]
            after, pages = page.last_seq, pages + 1
        assert seen == list(range(1, chain.seq))
        assert (pages == 1) is (max_bytes == EVERYTHING)


async def a_page_may_be_as_large_as_the_limit(subject: Subject) -> None:
    log, chain = subject.store.log, await new_chain(subject)
    await commit(log, chain.append(b"a" * 100, b"b" * 100))
    two = sum(item.size for item in (await the_page(log, 1)).items[:2])
    pages = [await the_page(log, 1, after=0, max_bytes=size) for size in (two - 1, two, two + 1)]
    assert [page.last_seq for page in pages] == [1, 2, 2]


async def a_large_page_is_read_like_a_small_one(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    for number in range(8):
        await commit(log, chain.append(b"%d" % number * 100_000, deltas=[b"a", b"b"]))
    large = await the_page(log, 1)
    assert sum(item.size for item in large.items) > 800_000 and large.last_seq == chain.seq - 1
    assert large.items == await read_log(log, 1)
    await commit(log, chain.append(*[b"%d" % number for number in range(1_000)]))
    many = await the_page(log, 1, after=large.last_seq)
    assert [item.body for item in many.items] == [b"%d" % number for number in range(1_000)]
    (one,) = (await the_page(log, 1, after=1, max_bytes=10)).items
    assert one.size > 100_000


async def an_entry_is_found_by_its_seq(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject, body=b"first")
    await commit(log, chain.append(b"second", deltas=[b"3", b"4"]))
    found = [await log.entry(1, seq) for seq in range(6)]
    assert [entry.seq if entry else None for entry in found] == [None, 1, 2, 3, 3, None]
    assert await log.entry(2, 1) is await log.entry(1, 9, max_bytes=1) is None
    large = b"x" * 100_000
    await commit(log, chain.append(large))
    assert (await log.entry(1, 5)) == (await log.entry(1, 5, max_bytes=100_000))
    for seq, most, size in ((5, 99_999, 100_000), (5, 10, 100_000), (3, 2, 3)):
        reported = None
        try:
            await log.entry(1, seq, max_bytes=most)
        except LargeEntry as large_entry:
            reported = large_entry.size
        assert reported == size


async def facts_are_found_by_their_kind(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    await commit(log, chain.append(b"a", kind="turn.completed", deltas=[b"d"]))
    await commit(log, chain.append(b"b", b"c"))
    assert [fact.body for fact in await log.facts(1)] == [b"{}", b"a", b"b", b"c"]
    assert [fact.seq for fact in await log.facts(1, kinds=("run.created", "call.closed"))] == [1, 4, 5]
    assert await log.facts(1, kinds=("delta.text",)) == [] == await log.facts(2)
    closed = await log.facts(1, kinds=("call.closed",))
    assert await log.heads(1, kinds=("call.closed",)) == [fact.head for fact in closed] != []
    assert await log.heads(2, kinds=("call.closed",)) == []
    await commit(log, chain.append(*[b"x"] * 600))
    assert len(await log.heads(1, kinds=("call.closed",))) == 602


async def the_newest_facts_are_as_many_as_fit(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    await commit(log, chain.append(b"a", kind="turn.completed", deltas=[b"d"]))
    await commit(log, chain.append(b"b" * 900, b"c" * 900))

    async def found(limit: int, max_bytes: int = EVERYTHING) -> list[int]:
        kinds = ("turn.completed", "call.closed")
        return [fact.seq for fact in await log.newest_facts(1, kinds=kinds, limit=limit, max_bytes=max_bytes)]

    assert [await found(limit) for limit in (1, 2, 9)] == [[5], [4, 5], [2, 4, 5]]
    assert [await found(9, size) for size in (1, 1_500)] == [[5], [5]]
    two = sum(fact.size for fact in await log.facts(1, kinds=("call.closed",)))
    assert [await found(9, size) for size in (two - 1, two)] == [[5], [4, 5]]
    assert await log.newest_facts(2, kinds=("call.closed",), limit=9, max_bytes=EVERYTHING) == []


async def runs_are_listed_the_newest_first(subject: Subject) -> None:
    log = subject.store.log
    assert (await log.last_key(), await log.unfinished(), await log.latest_at()) == (0, 0, 0)
    workspace, other = await new_workspace(subject), await new_workspace(subject, "other")
    thread = await new_thread(subject, workspace)
    chains = [chain_of(log, key, workspace, thread=thread if key < 3 else None) for key in range(1, 6)]
    await commit(
        log,
        chains[0].create(agent="a", metadata='{"env":"prod","team":"x"}'),
        chains[1].create(agent="b", metadata='{"env":"prod"}'),
        chains[2].create(agent="a", metadata='{"env":"test","team":"x"}', rules=2),
        chains[3].create(rules=3),
        chains[4].create(family=thread),
        chain_of(log, 6, other).create(metadata='{"env":"prod"}'),
    )
    await commit(log, chains[3].end())
    await commit(log, chains[4].append(b"a"))

    async def keys(wanted: RunFilter) -> list[int]:
        return [row.key for row in await log.runs(wanted)]

    assert await keys(RunFilter()) == [6, 5, 4, 3, 2, 1]
    assert await keys(RunFilter(workspace=workspace)) == [5, 4, 3, 2, 1]
    assert await keys(RunFilter(workspace=workspace, limit=2)) == [5, 4]
    assert await keys(RunFilter(workspace=workspace, before=4, limit=2)) == [3, 2]
    assert await keys(RunFilter(workspace=workspace, statuses=("succeeded", "running"))) == [5, 4]
    assert await keys(RunFilter(workspace=workspace, thread=thread)) == [2, 1]
    assert await keys(RunFilter(workspace=workspace, thread=thread, with_children=True)) == [5, 2, 1]
    assert await keys(RunFilter(workspace=workspace, with_children=True)) == [5, 4, 3, 2, 1]
    assert [row.listed_under for row in await log.runs(RunFilter(workspace=workspace, limit=2))] == [thread, None]
    assert await keys(RunFilter(workspace=workspace, agents=("a",))) == [3, 1]
    assert await keys(RunFilter(workspace=workspace, agents=("a", "b", "c"))) == [3, 2, 1]
    assert await keys(RunFilter(workspace=workspace, agents=("",))) == []
    assert await keys(RunFilter(workspace=workspace, metadata=(("env", "prod"),))) == [2, 1]
    assert await keys(RunFilter(workspace=workspace, metadata=(("env", "prod"), ("team", "x")))) == [1]
    assert await keys(RunFilter(workspace=workspace, metadata=(("env", "prod"),), before=2)) == [1]
    assert [row.queued for row in await log.runs(RunFilter(thread=thread))] == [True, False]
    assert await log.runs(RunFilter(workspace=other)) == [await the_row(log, 6)]
    assert (await log.last_key(), await log.unfinished(), await log.latest_at()) == (6, 5, 5_000)
    earlier = chains[4].append(b"b", deltas=(b"c",))
    earlier.items[0].at = 4_000  # its clock was set back
    await commit(log, earlier)
    assert await log.latest_at() == 4_000


async def the_latest_time_is_that_of_the_fact_that_was_written_last(subject: Subject) -> None:
    """Whatever the clocks of the writers were, and however large the facts are."""
    log, chain = subject.store.log, await new_chain(subject)
    large = b'{"text":"%s"}' % (b"word " * 10_000)
    for bodies, times in (((b"a", b"b"), (7_000, 6_000)), ((large, b"b"), (9_000, 8_000)), ((b"a", large), (5, 7))):
        write = chain.append(*bodies, deltas=[b"c"])
        for item, at in zip(write.items, (*times, 99_000), strict=True):
            item.at = at
        await commit(log, write)
        assert await log.latest_at() == times[-1]
    await commit(log, chain.append(deltas=[b"d"]))
    assert await log.latest_at() == 7


async def runs_are_listed_by_when_they_changed(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    chains = [chain_of(log, key, workspace) for key in range(1, 5)]
    await commit(log, *[chain.create(agent="a" if chain.key < 4 else "b") for chain in chains])
    await commit(log, chains[0].end(ended_at=9_000), chains[2].end(ended_at=9_000))
    rows = await log.runs(RunFilter(workspace=workspace, by_change=True))
    assert [row.key for row in rows] == [3, 1, 4, 2]
    assert [row.changed_at for row in rows] == [9_000, 9_000, 1_004, 1_002]

    async def keys(**fields: Any) -> list[int]:
        wanted = RunFilter(workspace=workspace, by_change=True, **fields)
        found = [row.key for row in await log.runs(wanted)]
        whole = replace(wanted, before_change=None, limit=50)
        assert await log.count_runs(wanted) == len(await log.runs(whole))
        return found

    assert await keys(before_change=(9_000, 3), limit=2) == [1, 4]
    assert await keys(before_change=(1_002, 2)) == []
    assert await keys(changed_since=1_004) == [3, 1, 4]
    assert await keys(agents=("a",), changed_since=9_001) == []


async def retention_leaves_the_row_and_the_last_entry(subject: Subject) -> None:
    log = subject.store.log
    chains = [await new_chain(subject, key) for key in (1, 2, 3)]
    for chain in chains:
        await commit(log, chain.append(b"a", deltas=[b"b", b"c"]))
    await commit(log, chains[0].end(ended_at=100), chains[1].end(ended_at=200))
    rows = [await log.run(key) for key in (1, 2, 3)]
    assert await log.trim(before=100, after=0, workspace=None) == (0, 0)
    assert await log.trim(before=150, after=0, workspace=None) == (1, 1)
    assert await log.trim(before=150, after=1, workspace=None) == (0, 0)
    assert await log.trim(before=150, after=0, workspace=None) == (1, 0)
    assert [await log.run(key) for key in (1, 2, 3)] == rows
    page = await the_page(log, 1)
    assert (seqs(page), page.last_seq, page.upto) == ([(5, 5)], 5, 5)
    assert [item.kind for item in page.items] == ["run.ended"]
    assert [len(await read_log(log, key)) for key in (2, 3)] == [4, 3]
    assert await log.trim(before=999, after=0, workspace=12345) == (0, 0)
    assert await log.trim(before=999, after=0, workspace=rows[0].workspace if rows[0] else None) == (2, 1)
    assert [len(await read_log(log, key)) for key in (2, 3)] == [1, 3]


async def retention_examines_all_runs_in_the_order_of_their_keys(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    chains = [chain_of(log, key, workspace) for key in range(300, 0, -1)]
    await commit(log, *[chain.create() for chain in chains])
    await commit(log, *[chain.end(ended_at=100) for chain in chains])
    examined, trimmed = [0], 0
    while True:
        last, some = await log.trim(before=200, after=examined[-1], workspace=None)
        trimmed += some
        if last == 0:
            break
        assert last > examined[-1], f"it does not go on: {last} after {examined[-1]}"
        left = [len(await read_log(log, key)) for key in (examined[-1] + 1, last)]
        assert left == [1, 1]
        examined.append(last)
    assert (examined[-1], trimmed) == (300, 300)


CHECKS = (
    a_page_reports_how_far_it_goes,
    a_page_has_the_format_of_the_latest_write,
    a_page_begins_inside_observations_that_share_a_row,
    pages_are_cut_by_bytes,
    a_page_may_be_as_large_as_the_limit,
    a_large_page_is_read_like_a_small_one,
    an_entry_is_found_by_its_seq,
    facts_are_found_by_their_kind,
    the_newest_facts_are_as_many_as_fit,
    runs_are_listed_the_newest_first,
    the_latest_time_is_that_of_the_fact_that_was_written_last,
    runs_are_listed_by_when_they_changed,
    retention_leaves_the_row_and_the_last_entry,
    retention_examines_all_runs_in_the_order_of_their_keys,
)
