"""Files of threads, as tools and hooks use them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from weftline.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from weftline.runtime.recovery import remove_unnamed_contents
from weftline.store.database import Query, one
from weftline.store.records import thread_files as rows
from weftline.store.records.thread_files import CHUNK_BYTES
from weftline.threads.state import BlockingThread, LiveThread
from weftline.workspace import threads
from weftline.workspace.context import FileLimits, Workspaces

from .conftest import state_of


async def stored(at: Workspaces) -> tuple[int, int, int]:
    """How many contents and chunks there are, and how many bytes the workspace is said to use."""

    def query() -> Query[tuple[int, int, int]]:
        contents = yield from one("SELECT count(*) FROM contents")
        chunks = yield from one("SELECT count(*), coalesce(sum(length(data)), 0) FROM content_chunks")
        assert contents is not None and chunks is not None
        used = yield from rows.used(1, 0)
        assert chunks[1] == used.bytes
        return contents[0], chunks[0], used.bytes

    return await at.records.read(query())


async def written(state: LiveThread, path: str) -> None:
    await state.write_file(path, b"x")


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece


async def test_written_file_is_read_back_with_what_is_said_of_it(state: LiveThread) -> None:
    made = await state.write_file(
        "notes/to do.txt", "grüße", metadata={"by": ["ann"]}, width=3, height=4, thumbnail=b"tiny"
    )
    assert (made.path, made.name, made.mime_type) == ("/notes/to do.txt", "to do.txt", "text/plain")
    assert (made.storage, made.size, made.is_directory, made.metadata) == ("local", 7, False, {"by": ["ann"]})
    assert (made.width, made.height) == (3, 4) and made.created_at
    assert await state.read_file("/notes/to do.txt") == "grüße".encode()
    assert await state.stat_file("notes/to do.txt") == made
    assert await state.get_file_thumbnail("/notes/to do.txt") == b"tiny"
    assert await state.readdir_file("/notes") == [made]
    [folder] = await state.readdir_file("/")
    assert (folder.path, folder.is_directory, folder.size) == ("/notes", True, 0)


@pytest.mark.parametrize(
    ("name", "data", "given", "mime_type"),
    [
        ("a.png", b"x", None, "image/png"),
        ("a.csv", "x", None, "text/csv"),
        ("a", "x", None, "text/plain"),
        ("a", b"x", None, "application/octet-stream"),
        ("a.png", b"x", "text/x-own; charset=utf-8", "text/x-own; charset=utf-8"),
    ],
)
async def test_media_type_is_the_given_one_or_follows_from_the_name(
    state: LiveThread, name: str, data: bytes | str, given: str | None, mime_type: str
) -> None:
    assert (await state.write_file(name, data, given)).mime_type == mime_type


@pytest.mark.requirement("thread.file.write")
async def test_file_replaces_a_file_and_never_a_folder(state: LiveThread) -> None:
    await state.write_file("/a/b.txt", "first", metadata={"v": 1}, thumbnail=b"t")
    again = await state.write_file("/a/b.txt", b"second!")
    assert (again.size, again.metadata) == (7, {})
    assert await state.read_file("a/b.txt") == b"second!" and await state.get_file_thumbnail("a/b.txt") is None
    for path, words in (("/a", "/a is a folder"), ("/", "/ is a folder"), ("/a/b.txt/c", "/a/b.txt is a file")):
        with pytest.raises(Conflict, match=words):
            await state.write_file(path, b"x")
    assert await state.get_file_stats() == await state.get_file_stats()
    assert (await state.get_file_stats()).file_count == 1


@pytest.mark.requirement("thread.file.read")
async def test_missing_path_reads_as_none(state: LiveThread) -> None:
    await state.write_file("/a", b"x")
    for path in ("/b", "/a/b"):
        assert await state.read_file(path) is None
        assert await state.read_file_stream(path) is None
        assert await state.stat_file(path) is None
        assert await state.get_file_thumbnail(path) is None
    assert await state.get_file_thumbnail("/a") is None
    assert await state.unlink_file("/b") is False and await state.rmdir_file("/b") is False
    with pytest.raises(NotFound, match="no folder /b"):
        await state.readdir_file("/b")


@pytest.mark.requirement("thread.file.stream")
@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
async def test_stream_gives_numbered_chunks_of_which_the_last_says_so(state: LiveThread, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    await state.write_file("/a", data[:size])
    found = await state.read_file_stream("/a")
    assert found is not None
    chunks = [one async for one in found]
    assert b"".join([one.data for one in chunks]) == data[:size]
    assert [one.index for one in chunks] == list(range(len(chunks)))
    assert [one.is_last for one in chunks] == [False] * (len(chunks) - 1) + [True]
    assert len(chunks) == max(1, -(-size // CHUNK_BYTES))


@pytest.mark.requirement("thread.file.folders")
async def test_folders_are_made_listed_and_removed_when_empty(state: LiveThread) -> None:
    made = await state.mkdir_file("/a/b")
    assert (made.path, made.is_directory) == ("/a/b", True)
    assert await state.mkdir_file("/a/b") == made
    assert (await state.mkdir_file("/")).path == "/"
    await state.write_file("/a/c.txt", "x")
    await state.write_file("/a/b/d.txt", "x")
    assert [one.path for one in await state.readdir_file("/")] == ["/a"]
    assert [one.path for one in await state.readdir_file("/a")] == ["/a/b", "/a/c.txt"]
    refused: list[tuple[Any, str, str]] = [
        (state.rmdir_file, "/a/b", "The folder /a/b is not empty"),
        (state.rmdir_file, "/a/c.txt", "/a/c.txt is a file"),
        (state.rmdir_file, "/", "The root cannot be removed"),
        (state.unlink_file, "/a/b", "/a/b is a folder"),
        (state.unlink_file, "/", "/ is a folder"),
        (state.mkdir_file, "/a/c.txt", "/a/c.txt is a file"),
        (state.mkdir_file, "/a/c.txt/d", "/a/c.txt is a file"),
        (state.readdir_file, "/a/c.txt", "/a/c.txt is a file"),
        (state.read_file, "/a", "/a is a folder"),
    ]
    for call, path, words in refused:
        with pytest.raises(Conflict, match=words):
            await call(path)
    assert await state.unlink_file("/a/b/d.txt") and await state.rmdir_file("/a/b")
    assert [one.path for one in await state.readdir_file("/a")] == ["/a/c.txt"]


@pytest.mark.requirement("thread.file.paths")
async def test_one_file_has_many_spellings(state: LiveThread) -> None:
    await state.write_file("a.txt", "x")
    for path in ("/a.txt", "a.txt", "./a.txt", "//a.txt", "/x/../a.txt", "/a.txt/", "/x/y/../../a.txt"):
        found = await state.stat_file(path)
        assert found is not None and found.path == "/a.txt", path
    assert (await state.stat_file("/x/..")) == await state.stat_file("/")


@pytest.mark.requirement("thread.file.paths")
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "must not be empty"),
        ("a\0b", "control characters"),
        ("a\nb", "control characters"),
        ("\x7f", "control characters"),
        ("..", "above the root"),
        ("/../a", "above the root"),
        ("/a/../../etc/passwd", "above the root"),
        ("/a%2Fb", "%2F is part of no name"),
        ("/..%2f..%2fetc", "%2F is part of no name"),
        ("\ud800", "Unicode text"),
        ("n" * 256, "a name of more than 255 bytes"),
        ("é" * 128, "a name of more than 255 bytes"),
        ("/" + "/".join("a" * 65), "more than 64 levels"),
        ("/ab" * 342, "more than 1,024 bytes"),
    ],
)
async def test_path_that_names_no_file_is_refused_everywhere(state: LiveThread, path: str, words: str) -> None:
    calls: list[Any] = [
        state.read_file,
        state.read_file_stream,
        state.stat_file,
        state.readdir_file,
        state.mkdir_file,
        state.rmdir_file,
        state.unlink_file,
        state.get_file_thumbnail,
        partial(written, state),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest, match=words):
            await call(path)
    assert await state.readdir_file("/") == []


@pytest.mark.parametrize("name", ["...", "..a", " ", "~", "C:\\x", "a?b#c", "%00", "%2e%2e", "日本語", "-rf", "a;b"])
async def test_odd_name_is_a_name(state: LiveThread, name: str) -> None:
    assert (await state.write_file(f"/d/{name}", name.encode())).name == name
    assert await state.read_file(f"/d/{name}") == name.encode()


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"width": 0}, "width: must be between"),
        ({"height": 2_000_000}, "height: must be between"),
        ({"metadata": {"a": {1, 2}}}, "metadata: is not JSON"),
        ({"metadata": {"a": float("nan")}}, "metadata: is not JSON"),
    ],
)
async def test_bad_description_is_refused(state: LiveThread, about: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await state.write_file("/a", b"x", **about)
    for bad in ("text", "text/html\r\nX-Evil: 1", "a/" + "b" * 300, "text/plain;\n", "é/x"):
        with pytest.raises(InvalidRequest, match="mime_type: must be a media type"):
            await state.write_file("/a", b"x", bad)
    assert await state.stat_file("/a") is None


@pytest.mark.parametrize(
    ("limits", "write", "limit", "words"),
    [
        (FileLimits(file_bytes=9), ("/a", b"x" * 10), "file", "A file has at most 9 bytes"),
        (FileLimits(thread_bytes=9), ("/a", b"x" * 10), "files", "The files of a thread have at most 9 bytes"),
        (FileLimits(thread_files=1), ("/d/a", b"x"), "file_count", "A thread keeps at most 1 files and folders"),
        (FileLimits(workspace_bytes=9), ("/a", b"x" * 10), "workspace_files", "of a workspace have at most 9 bytes"),
        (FileLimits(file_bytes=CHUNK_BYTES), ("/a", b"x" * (CHUNK_BYTES + 1)), "file", "A file has at most"),
        (FileLimits(workspace_bytes=2 * CHUNK_BYTES), ("/a", b"x" * 3 * CHUNK_BYTES), "workspace_files", "workspace"),
    ],
)
async def test_more_than_a_quota_is_refused_and_nothing_is_written(
    at: Workspaces, limits: FileLimits, write: tuple[str, bytes], limit: str, words: str
) -> None:
    state = await state_of(replace(at, files=limits))
    for data in (write[1], pieces(write[1])):
        with pytest.raises(QuotaExceeded, match=words) as refused:
            await state.write_file(write[0], data)
        assert (refused.value.details["limit"], refused.value.code) == (limit, "quota_exceeded")
    assert await state.readdir_file("/") == [] and await stored(at) == (0, 0, 0)


async def test_large_metadata_and_thumbnail_are_refused(state: LiveThread) -> None:
    with pytest.raises(QuotaExceeded, match="The metadata of a file has at most 8,192 bytes"):
        await state.write_file("/a", b"x", metadata={"a": "x" * 9000})
    with pytest.raises(QuotaExceeded, match="A thumbnail has at most 262,144 bytes"):
        await state.write_file("/a", b"x", thumbnail=b"x" * (CHUNK_BYTES + 1))
    assert await state.stat_file("/a") is None


async def test_only_one_of_two_writers_fits_into_a_quota(at: Workspaces) -> None:
    for limits in (FileLimits(thread_bytes=3 * CHUNK_BYTES), FileLimits(thread_files=1)):
        state = await state_of(replace(at, files=limits))
        writes = [state.write_file(f"/{n}", bytes([n]) * 2 * CHUNK_BYTES) for n in range(2)]
        done = await asyncio.gather(*writes, return_exceptions=True)
        assert [isinstance(one, QuotaExceeded) for one in sorted(done, key=lambda one: str(type(one)))] == [True, False]
        [left] = await state.readdir_file("/")
        assert await state.unlink_file(left.path)
        assert await stored(at) == (0, 0, 0)


async def test_replacing_a_file_counts_only_what_is_more(at: Workspaces) -> None:
    state = await state_of(replace(at, files=FileLimits(thread_bytes=10, thread_files=1)))
    await state.write_file("/a", b"x" * 10)
    await state.write_file("/a", b"y" * 10)
    with pytest.raises(QuotaExceeded):
        await state.write_file("/a", b"z" * 11)
    assert await state.read_file("/a") == b"y" * 10
    await state.write_file("/a", b"z" * 9)
    with pytest.raises(QuotaExceeded):
        await state.write_file("/a", b"z" * 9, thumbnail=b"tt")
    await state.write_file("/a", b"z" * 9, thumbnail=b"t")


async def test_equal_contents_are_stored_once_and_go_with_the_last_name(at: Workspaces, state: LiveThread) -> None:
    data = b"same" * CHUNK_BYTES
    other = await state_of(at)
    for thread in (state, other):
        await thread.write_file("/a", data)
        await thread.write_file("/b", pieces(data), thumbnail=b"t")
    assert await stored(at) == (2, 5, len(data) + 1)
    for path in ("/a", "/b"):
        await state.unlink_file(path)
    assert await other.read_file("/b") == data and await stored(at) == (2, 5, len(data) + 1)
    await other.write_file("/a", b"")
    await other.unlink_file("/b")
    assert await stored(at) == (1, 0, 0)


async def test_contents_are_not_shared_between_workspaces(at: Workspaces, state: LiveThread) -> None:
    other = await state_of(at, "globex")
    await state.write_file("/a", b"x")
    await other.write_file("/a", b"x")
    await state.unlink_file("/a")
    assert await other.read_file("/a") == b"x" and await state.read_file("/a") is None


async def test_reader_gets_the_file_that_it_opened(at: Workspaces, state: LiveThread) -> None:
    old, new = b"o" * 5 * CHUNK_BYTES, b"n" * 5 * CHUNK_BYTES
    await state.write_file("/a", old)
    found = await state.read_file_stream("/a")
    assert found is not None
    read = [(await anext(found)).data]
    await state.write_file("/a", new)
    read += [one.data async for one in found]
    assert b"".join(read) == old and await state.read_file("/a") == new
    assert await stored(at) == (1, 5, len(new))


async def test_reader_of_a_file_that_is_removed_first_is_told_so(state: LiveThread) -> None:
    await state.write_file("/a", b"x")
    found = await state.read_file_stream("/a")
    assert found is not None
    await state.unlink_file("/a")
    with pytest.raises(NotFound, match="The file /a was removed"):
        await anext(found)


@pytest.mark.requirement("thread.file.large")
async def test_write_that_is_cut_off_leaves_the_earlier_file(at: Workspaces, state: LiveThread) -> None:
    await state.write_file("/a", b"before")

    async def broken() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * CHUNK_BYTES
        raise OSError("the line is cut")

    with pytest.raises(OSError, match="cut"):
        await state.write_file("/a", broken())
    assert await state.read_file("/a") == b"before" and await stored(at) == (1, 1, 6)


@pytest.mark.requirement("thread.file.large")
async def test_unfinished_content_goes_at_the_next_start(at: Workspaces, state: LiveThread) -> None:
    await state.write_file("/a", b"x" * 2 * CHUNK_BYTES)

    def begun() -> Any:
        content = yield from rows.begin_content(1)
        for n in range(20):
            yield from rows.use(1, 0, files=0, bytes=1)
            yield from rows.add_chunk(content, n, b"y")

    await at.records.write(begun())
    await remove_unnamed_contents(at.records)
    assert await stored(at) == (1, 2, 2 * CHUNK_BYTES)


async def test_pieces_of_any_size_make_the_same_file(at: Workspaces, state: LiveThread) -> None:
    data = bytes(range(256)) * 4096
    cut = [data[:1], b"", data[1:CHUNK_BYTES], data[CHUNK_BYTES : CHUNK_BYTES + 7], data[CHUNK_BYTES + 7 :]]
    await state.write_file("/a", pieces(*cut))
    await state.write_file("/b", data)
    assert await state.read_file("/a") == data and (await stored(at))[0] == 1


async def test_plain_function_reads_and_writes_files(state: LiveThread) -> None:
    blocking: Any = BlockingThread(state)

    def work() -> tuple[Any, ...]:
        made = blocking.write_file("/a", b"x" * (CHUNK_BYTES + 1))
        chunks = list(blocking.read_file_stream("/a"))
        return made.size, [len(one.data) for one in chunks], chunks[-1].is_last, blocking.read_file_stream("/b")

    assert await asyncio.to_thread(work) == (CHUNK_BYTES + 1, [CHUNK_BYTES, 1], True, None)


async def test_terminated_thread_can_be_read_and_not_changed(at: Workspaces, state: LiveThread) -> None:
    await state.write_file("/d/a", b"x")
    row = await threads.by_uuid(at, state.thread_id)
    assert row is not None

    def end() -> Any:
        from weftline.store.records import threads as records

        yield from records.end(row.key, now=1)

    await at.records.write(end())
    changes: list[Any] = [
        lambda: state.write_file("/b", b"x"),
        lambda: state.mkdir_file("/e"),
        lambda: state.rmdir_file("/e"),
        lambda: state.unlink_file("/d/a"),
    ]
    for change in changes:
        with pytest.raises(Conflict) as refused:
            await change()
        assert refused.value.code == "thread_ended"
    assert await state.read_file("/d/a") == b"x"


async def test_digest_is_that_of_the_content(at: Workspaces, state: LiveThread) -> None:
    data = b"x" * 3 * CHUNK_BYTES
    await state.write_file("/a", pieces(data[:1], data[1:]))
    content = await at.records.read(rows.find_content(1, hashlib.sha256(data).digest()))
    assert content is not None and await at.records.read(rows.is_kept(content))
