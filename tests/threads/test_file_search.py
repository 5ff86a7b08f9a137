"""Files of threads are found by name and by line, within bounds."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from weftline.errors import InvalidRequest
from weftline.store.records.thread_files import CHUNK_BYTES
from weftline.threads.state import LiveThread
from weftline.threads.thread import GrepLine
from weftline.workspace import thread_search

TREE = ("a.md", "b.txt", "notes/a.md", "notes/deep/c.md", "notes/deep/er/d.md", "nötes/[x].md")


@pytest.fixture
async def tree(state: LiveThread) -> LiveThread:
    for path in TREE:
        await state.write_file(path, f"# {path}\n")
    await state.mkdir_file("/empty.md")
    return state


@pytest.mark.requirement("thread.file.search")
@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.md", {"a.md", "notes/a.md", "notes/deep/c.md", "notes/deep/er/d.md", "nötes/[x].md"}),
        ("a.md", {"a.md", "notes/a.md"}),
        ("/a.md", {"a.md"}),
        ("/*.{md,txt}", {"a.md", "b.txt"}),
        ("notes/*.md", {"notes/a.md"}),
        ("/notes/**/*.md", {"notes/a.md", "notes/deep/c.md", "notes/deep/er/d.md"}),
        ("notes/deep/", set[str]()),
        ("n?tes/[[]x].md", {"nötes/[x].md"}),
        ("*.none", set[str]()),
    ],
)
async def test_files_are_found_by_pattern(tree: LiveThread, pattern: str, found: set[str]) -> None:
    result = await tree.find_files(pattern)
    assert set(result.paths) == {f"/{one}" for one in found} and result.total == len(found)


@pytest.mark.requirement("thread.file.search")
async def test_lines_are_found_with_their_numbers_and_binary_files_skipped(tree: LiveThread) -> None:
    await tree.write_file("/crlf.txt", b"one\r\ntwo\r\n\r\n  two again")
    await tree.write_file("/latin.txt", b"tw\xf6 two\n")
    await tree.write_file("/early.bin", b"two\0two\n")
    await tree.write_file("/late.bin", b"two\n" + b"xyz\n" * CHUNK_BYTES + b"\0")
    found = {one.path: one.matches for one in await tree.grep_files("tw.$|two|^$")}
    assert found == {
        "/crlf.txt": (GrepLine(2, "two"), GrepLine(3, ""), GrepLine(4, "  two again")),
        "/latin.txt": (GrepLine(1, "tw\ufffd two"),),
    }
    stats = await tree.get_file_stats()
    assert (stats.file_count, stats.total_size > 4 * CHUNK_BYTES) == (len(TREE) + 4, True)


async def test_numbers_count_on_over_all_parts_of_a_large_file(state: LiveThread) -> None:
    lines = [f"line {number} {'x' * (number % 97)}" for number in range(1, 200_001)]
    await state.write_file("/large.txt", "\n".join(lines))
    [found] = await state.grep_files(r"line (1|77777|123456|200000) ")
    assert [one.line for one in found.matches] == [1, 77_777, 123_456, 200_000]
    assert [one.text for one in found.matches] == [lines[one.line - 1] for one in found.matches]


async def test_line_without_end_is_searched_and_cut(state: LiveThread) -> None:
    await state.write_file("/one", b"needle" + b"x" * 6 * 1024 * 1024 + b"needle")
    [found] = await state.grep_files("needle")
    assert all(len(one.text) <= 501 for one in found.matches) and found.matches[0].line == 1


@pytest.mark.requirement("thread.file.search_bounded")
@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", "must not be empty"),
        ("(", "not a valid regular expression"),
        ("x" * 1001, "pattern"),
        ("\ud800", "Unicode text"),
        (r"((a|a)*)*\2b", "takes too long to match"),
        ("^a", "More than 10,000 lines match"),
    ],
)
async def test_search_that_is_too_much_is_refused_while_others_go_on(
    state: LiveThread,
    pattern: str,
    words: str,
) -> None:
    await state.write_file("/a", "a" * 60 + "\n" + "a\n" * 10_001)
    search = asyncio.ensure_future(state.grep_files(pattern))
    assert await state.read_file("/a") is not None
    with pytest.raises(InvalidRequest, match=words):
        await search


@pytest.mark.requirement("thread.file.search_bounded")
@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", "must not be empty"),
        ("/", "must not be empty"),
        ("x" * 1001, "too long or has too many alternatives"),
        ("{a,b}" * 7, "too long or has too many alternatives"),
        ("\ud800", "Unicode text"),
    ],
)
async def test_bad_name_pattern_is_refused(state: LiveThread, pattern: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await state.find_files(pattern)


@pytest.mark.requirement("thread.file.search_bounded")
async def test_hostile_name_pattern_is_answered_or_refused(state: LiveThread) -> None:
    for number in range(20):
        await state.write_file("/".join([str(number), *["a" * 80] * 12]), b"")
    with suppress(InvalidRequest):
        assert (await state.find_files("**/" * 200 + "*a" * 100 + "b")).paths == ()
    assert (await state.find_files("a*")).total == 20


@pytest.mark.requirement("thread.file.search_bounded")
async def test_search_reads_only_so_much(state: LiveThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_search, "MAX_SEARCHED_BYTES", 10)
    await state.write_file("/a", b"x" * 6)
    assert await state.grep_files("y") == []
    await state.write_file("/b", b"x" * 6)
    with pytest.raises(InvalidRequest, match="at most 10 bytes of text"):
        await state.grep_files("y")
