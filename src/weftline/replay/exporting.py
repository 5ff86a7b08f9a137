"""Exports a run and the runs below it as the lines of a file. Its log is read twice, a page at a time, never as a
whole.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, Generator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from msgspec import Raw
from msgspec.json import decode

from weftline.errors import Conflict, InvalidRequest
from weftline.kernel.bodies import decode_created, decode_message
from weftline.kernel.entries import HistoryPinned, RunCreated, decode_fact
from weftline.messages import Message
from weftline.plan import decode_content
from weftline.replay.format import (
    VERSION,
    BlobLine,
    Digest,
    EndLine,
    ExportedRow,
    HeaderLine,
    MessageLine,
    ThreadLine,
    ThreadMessageLine,
    encode_line,
    entry_line,
)
from weftline.replay.refusing import children_of, find_run, readable_entries, require_whole
from weftline.runtime import ids
from weftline.runtime.model_view import blobs_of
from weftline.store.base import LogReader
from weftline.store.database import Database
from weftline.store.records import thread_messages, threads
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import GIVEN, RunFilter, RunRow


async def write_file(lines: AsyncIterable[bytes], path: Path, *, force: bool = False) -> Path:
    """Writes the lines to a new file, which gets its name only once it is complete.

    Raises `Conflict` if there is a file of this name, unless `force`.
    """
    with new_file(path, force=force) as file:
        async for line in lines:
            file.write(line)
    return path


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Generator[BinaryIO]:
    """A file that gets its name only once it is complete. Raises `Conflict` if the name is taken, and `InvalidRequest`
    if there can be no such file.
    """
    if path.exists() and not force:
        raise Conflict(f"{path} already exists.")
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"{path} cannot be written: there is no folder {path.parent}.")
    try:
        handle, draft = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}.") from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


_PAGE = 200


async def export_lines(log: LogReader, row: RunRow) -> AsyncGenerator[bytes]:
    """The lines of the file, each with its newline. Exporting a run twice gives the same bytes.

    Raises `Conflict` before the first line if the run, or one below it, has not ended or is incomplete.
    """
    rows = await _family(log, row)
    listed = [await _listed(log, one, parent=parent) for one, parent in rows]
    digest = Digest()
    header = HeaderLine(VERSION, listed[0].id, tuple(listed), tuple([one.id for one in listed[1:]]))
    yield digest.take(encode_line(header))
    async for line in _runs_and_contents(log, [one for one, _ in rows], digest):
        yield line


async def export_thread_lines(
    log: LogReader, records: Database, thread: ThreadRow, *, by_name: bool
) -> AsyncGenerator[bytes]:
    """The lines of a thread's export: all of its messages and all of its runs, of which it may have none. Of runs that
    were imported, those that added messages.

    Raises `Conflict` before the first line if one of its runs has not ended or is incomplete.
    """
    roots: list[RunRow] = []
    before: int | None = None
    while page := await log.runs(RunFilter(thread=thread.key, before=before, limit=_PAGE)):
        before = page[-1].key
        roots += page
    added_by = await records.read(thread_messages.runs_of(thread.key), heavy=True)
    known = {one.key for one in roots}
    imported = [key for key in dict.fromkeys(added_by) if key and key not in known]
    roots += [await _imported(log, key) for key in reversed(imported)]
    rows = [family for root in reversed(roots) for family in await _family(log, root)]
    listed = [await _listed(log, one, parent=parent) for one, parent in rows]
    digest, id = Digest(), ids.session_id(thread.key, thread.salt)
    yield digest.take(encode_line(HeaderLine(VERSION, "", tuple(listed), thread=id)))
    metadata = decode(thread.metadata, type=dict[str, str])
    spec = Raw(await records.read(threads.spec_of(thread.key)))
    about = ThreadLine(id, thread.name, thread.created_at, spec, thread.agent, metadata, by_name)
    yield digest.take(encode_line(about))
    runs = {one.key: ids.run_id(one.key, one.salt) for one, _ in rows}
    messages = await log.thread_messages(thread.key)
    for run, message in zip(added_by, messages, strict=False):  # a run that is new by now may have added more
        yield digest.take(encode_line(ThreadMessageLine(runs.get(run, ""), Raw(message))))
    async for line in _runs_and_contents(log, [one for one, _ in rows], digest, thread=thread.key):
        yield line


async def _imported(log: LogReader, key: int) -> RunRow:
    """A run that was imported with its thread: it can be read, but does not belong to the thread here."""
    row = await log.run(key)
    if row is None:
        raise Conflict("A run of the session has been removed by retention.", code="run_trimmed")
    return row


async def _runs_and_contents(
    log: LogReader, rows: Sequence[RunRow], digest: Digest, *, thread: int | None = None
) -> AsyncGenerator[bytes]:
    """The lines after the header. The messages of `thread` are in the file already."""
    blobs: dict[str, None] = {}
    for one in rows:
        run_id = ids.run_id(one.key, one.salt)
        history = await history_of(log, one) if thread is None or one.thread != thread else ()
        for message in history:
            yield digest.take(encode_line(MessageLine(run_id, Raw(message))))
        named = [decode_message(message) for message in history]
        async for item in readable_entries(log, one):
            if item.kind == "run.created":
                named += decode_content(decode_created(item.body).plan).messages
            yield digest.take(entry_line(run_id, item))
        blobs |= dict.fromkeys(sorted(blobs_of(named)))
    for id in blobs:
        data = await log.blob(rows[0].workspace, id)
        if data is not None:
            yield digest.take(encode_line(BlobLine(id, data)))
    yield encode_line(EndLine(digest.lines, digest.hex))


async def history_of(log: LogReader, row: RunRow) -> Sequence[bytes]:
    """The messages of the run's thread when the run began."""
    if row.thread is None:
        return ()
    for head in await log.heads(row.key, kinds=("history.pinned",)):
        pinned = decode_fact.decode(head)
        if isinstance(pinned, HistoryPinned):
            if pinned.through is None:
                return (await log.thread_messages(row.thread))[: pinned.upto]
            found = await log.thread_pinned(row.thread, through=pinned.through, revision=pinned.revision)
            if found is None:
                raise Conflict("Messages that the run has read were edited since.", code="history_edited")
            return found
    return ()


def messages_of(history: Sequence[bytes]) -> list[Message]:
    return [decode_message(message) for message in history]


async def log_digest(log: LogReader, row: RunRow) -> str:
    """The digest of the lines that the entries of a run would be exported as."""
    digest, run_id = Digest(), ids.run_id(row.key, row.salt)
    async for item in readable_entries(log, row):
        digest.take(entry_line(run_id, item))
    return digest.hex


async def _family(log: LogReader, row: RunRow) -> list[tuple[RunRow, str | None]]:
    """The run and those below it, each with the id of its parent."""
    found: list[tuple[RunRow, str | None]] = []
    waiting: list[tuple[RunRow, str | None]] = [(row, None)]
    while waiting:
        one, parent = waiting.pop(0)
        await require_whole(log, one)
        found.append((one, parent))
        run_id = ids.run_id(one.key, one.salt)
        children = await children_of(log, one)
        waiting += [(await find_run(log, child, workspace=row.workspace), run_id) for child in children]
    return found


async def _listed(log: LogReader, row: RunRow, *, parent: str | None) -> ExportedRow:
    run_id = ids.run_id(row.key, row.salt)
    first = await require_whole(log, row)
    if parent is None:
        created = decode_fact.decode(first.head)
        above = created.parent if isinstance(created, RunCreated) else None
        parent = None if above is None else above.run
    return ExportedRow(
        id=run_id,
        name=row.name,
        status=row.status,
        rules=row.rules,
        format=row.format,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at or 0,
        last_seq=row.next_seq - 1,
        sha256=await log_digest(log, row),
        plan_sha256=sha256(bytes(decode_created(first.body).plan)).hexdigest(),
        agent=row.agent,
        metadata=decode(row.metadata, type=dict[str, str]),
        parent=parent,
        key=row.key if row.salt.startswith(GIVEN) else 0,
    )
