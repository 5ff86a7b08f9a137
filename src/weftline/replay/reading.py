"""Reads an exported file. A damaged or incomplete one is rejected with the line that is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from msgspec import Struct, field
from msgspec.json import decode, encode

from weftline.errors import InvalidRequest
from weftline.kernel.bodies import decode_created, decode_message
from weftline.kernel.damage import UNREADABLE, fact_is_whole, observations_are_readable
from weftline.kernel.entries import FORMAT, KNOWN_RULES, HistoryPinned, decode_fact
from weftline.labels import MAX_METADATA_BYTES
from weftline.messages import Blob
from weftline.plan import decode_content
from weftline.replay.format import (
    VERSION,
    BlobLine,
    Digest,
    EndLine,
    EntryLine,
    ExportedRow,
    HeaderLine,
    Line,
    MessageLine,
    Offered,
    OfferedLine,
    ThreadLine,
    ThreadMessageLine,
    decode_line,
    entry_line,
    stored,
    version_of,
)
from weftline.runtime import ids
from weftline.runtime.model_view import blobs_of
from weftline.store.rows import Item

MAX_NAME_CHARS = 4096
"""For the name of a run, a thread or an agent: longer than any that we create."""


class ExportedRun(Struct):
    row: ExportedRow
    items: list[Item] = field(default_factory=list[Item])
    history: list[bytes] = field(default_factory=list[bytes])
    offered: Offered | None = None

    @property
    def facts(self) -> list[Item]:
        return [item for item in self.items if item.head]


class ExportedThread(Struct):
    line: ThreadLine
    messages: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    """Each message with the id of the run that added it."""


class Export(Struct):
    """The content of a file. The first run is the one that was exported, unless it is the file of a thread."""

    runs: list[ExportedRun]
    blobs: list[Blob]
    thread: ExportedThread | None = None


def read_export(path: Path) -> Export:
    """Raises `InvalidRequest` (`bad_export`) for a file that is damaged, truncated, from a newer version or not an
    export.
    """
    try:
        with path.open("rb") as file:
            return read_lines(file, name=str(path))
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}.", code="bad_export") from None


def read_lines(lines: Iterable[bytes], *, name: str = "the file") -> Export:
    return _Reader(name).read(lines)


def _is_whole(header: HeaderLine) -> bool:
    return not header.run if header.thread else bool(header.runs) and header.runs[0].id == header.run


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name
        self._at = 0
        self._whole = Digest()
        self._runs: dict[str, ExportedRun] = {}
        self._digests: dict[str, Digest] = {}
        self._blobs: list[Blob] = []
        self._blob_lines: dict[str, int] = {}
        self._ended = False
        self._thread_id = ""
        self._thread: ExportedThread | None = None

    def read(self, lines: Iterable[bytes]) -> Export:
        for at, line in enumerate(lines, 1):
            self._at = at
            if self._ended:
                raise self._wrong("there is something after the end")
            if at == 1:
                self._begin(line)
            else:
                self._take(self._decoded(line), line)
            self._whole.take(line)
        if not self._ended:
            self._at += 1
            raise self._wrong("the file is truncated: its end is missing")
        if self._thread_id and self._thread is None:
            raise self._wrong(f"the thread {self._thread_id} is not in the file")
        self._check_runs()
        return Export(list(self._runs.values()), self._blobs, self._thread)

    def _begin(self, line: bytes) -> None:
        version = version_of(line)
        if not version:
            raise self._wrong("this is not an exported run")
        if version > VERSION:
            raise self._wrong(f"the file has version {version}, and this Weftline reads those up to {VERSION}")
        header = self._decoded(line)
        if not isinstance(header, HeaderLine) or not _is_whole(header):
            raise self._wrong("the header does not say which runs there are")
        self._thread_id = header.thread
        for row in header.runs:
            if row.number is None or row.id in self._runs:
                raise self._wrong(f"{row.id!r} cannot be the id of a run here")
            if row.format > FORMAT or row.rules not in KNOWN_RULES:
                raise self._wrong(f"{row.id} was written by a newer version of Weftline")
            self._check_names(row.id, row.name, row.agent, row.metadata)
            self._runs[row.id] = ExportedRun(row)
            self._digests[row.id] = Digest()

    def _take(self, line: Line, encoded: bytes) -> None:
        match line:
            case EntryLine():
                self._take_entry(line, encoded)
            case ThreadLine():
                self._take_thread(line)
            case ThreadMessageLine():
                if self._thread is None:
                    raise self._wrong("there is a message of a thread that the file does not have")
                self._run(line.run)
                self._thread.messages.append((line.run, bytes(line.message)))
            case MessageLine():
                self._run(line.run).history.append(bytes(line.message))
            case BlobLine():
                self._take_blob(line)
            case OfferedLine():
                self._run(line.run).offered = line.offered
            case EndLine():
                if (line.lines, line.sha256) != (self._whole.lines, self._whole.hex):
                    raise self._wrong("the digest is not that of the lines above: the file has been changed")
                self._ended = True
            case HeaderLine():
                raise self._wrong("there is a second header")

    def _check_names(self, id: str, name: str, agent: str | None, metadata: dict[str, str]) -> None:
        """Limits their size, because lists display them."""
        if max(len(name), len(agent or "")) > MAX_NAME_CHARS:
            raise self._wrong(f"the name of {id}, or of its agent, has more than {MAX_NAME_CHARS:,} characters")
        if len(encode(metadata)) > MAX_METADATA_BYTES:
            raise self._wrong(f"the metadata of {id} has more than {MAX_METADATA_BYTES:,} bytes as JSON")

    def _take_thread(self, line: ThreadLine) -> None:
        if line.id != self._thread_id or self._thread is not None or ids.parse(line.id, prefix="ses_") is None:
            raise self._wrong(f"the header does not name the thread {line.id!r}")
        if not isinstance(decode(line.spec), dict):
            raise self._wrong("the spec of the thread is not an object")
        self._check_names(line.id, line.name, line.agent, line.metadata)
        self._thread = ExportedThread(line)

    def _take_blob(self, line: BlobLine) -> None:
        # All runs of a store share contents by id, so wrong content under this id would affect all of them.
        if sha256(line.data).hexdigest() != line.id:
            raise self._wrong(f"the content {line.id[:64]!r} does not match its id, which is a digest")
        if line.id in self._blob_lines:
            raise self._wrong(f"the content {line.id} occurs twice")
        self._blob_lines[line.id] = self._at
        self._blobs.append(Blob(line.id, line.data))

    def _take_entry(self, line: EntryLine, encoded: bytes) -> None:
        run, item = self._run(line.run), stored(line)
        expected = run.items[-1].last_seq + 1 if run.items else 1
        if item.seq != expected:
            raise self._wrong(f"entry {item.seq} of {line.run} is where {expected} should be")
        readable = (
            fact_is_whole(item.kind, item.head, item.body)
            if item.head
            else observations_are_readable(item.kind, item.body, item.count)
        )
        if not readable:
            raise self._wrong(f"entry {item.seq} of {line.run} cannot be read")
        if entry_line(line.run, item) != encoded:
            raise self._wrong(f"entry {item.seq} of {line.run} is not written as an export writes it")
        self._digests[line.run].take(encoded)
        run.items.append(item)

    def _run(self, run_id: str) -> ExportedRun:
        if run_id not in self._runs:
            raise self._wrong(f"the header does not name {run_id!r}")
        return self._runs[run_id]

    def _check_runs(self) -> None:
        for run_id, run in self._runs.items():
            whole = bool(run.items) and run.items[0].kind == "run.created" and run.items[-1].kind == "run.ended"
            if not whole or run.items[-1].last_seq != run.row.last_seq:
                raise self._wrong(f"the log of {run_id} is incomplete")
            if self._digests[run_id].hex != run.row.sha256:
                raise self._wrong(f"the digest of {run_id} in the header is not that of its entries")
        named = {id for run in self._runs.values() for id in self._named(run)}
        if self._thread is not None:
            self._check_thread(self._thread, named)
        for id, line in self._blob_lines.items():
            if id not in named:
                self._at = line
                raise self._wrong(f"no run of the file names the content {id}")

    def _check_thread(self, thread: ExportedThread, named: set[str]) -> None:
        """Checks that the thread's messages can be decoded and refer only to contents of the file, and gives each run
        the messages that it began with.
        """
        messages = [message for _, message in thread.messages]
        try:
            lost = blobs_of([decode_message(message) for message in messages]) - named
        except UNREADABLE:
            raise self._wrong(f"the messages of {thread.line.id} cannot be read") from None
        if lost:
            raise self._wrong(f"no run of the file names the content {min(lost)} of the thread")
        for run in self._runs.values():
            pinned = [decode_fact.decode(item.head) for item in run.items if item.kind == "history.pinned"]
            run.history = messages[: max([head.upto for head in pinned if isinstance(head, HistoryPinned)], default=0)]

    def _named(self, run: ExportedRun) -> set[str]:
        try:
            history = [decode_message(message) for message in run.history]
            return blobs_of([*history, *decode_content(decode_created(run.items[0].body).plan).messages])
        except UNREADABLE:
            raise self._wrong(f"the messages of {run.row.id} cannot be read") from None

    def _decoded(self, line: bytes) -> Line:
        try:
            return decode_line(line)
        except UNREADABLE:
            raise self._wrong("it cannot be read") from None

    def _wrong(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"{self._name}, line {self._at}: {what}.", code="bad_export", line=self._at)
