"""The file format of exported runs: JSON lines, always in the same order.

    {"line": "header", "version": 2, "run": …, "runs": [{"id": …, "sha256": …}, …]}
    {"line": "thread", "id": …, "name": …, "spec": {…}}   in the file of a thread, which has all runs of it
    {"line": "thread_message", "run": …, "message": {…}}  a message of the thread, and the run that added it
    {"line": "message", "run": …, "message": {…}}     in the file of a run: an earlier message of its thread
    {"line": "entry", "run": …, "seq": 1, "at": …, "kind": "run.created", "head": {…}, "body": {…}}
    {"line": "blob", "id": …, "data": …}              content that messages refer to, in base64
    {"line": "offered", "run": …, "offered": {…}}     in recordings for tests: prompt and tools
    {"line": "end", "lines": 17, "sha256": …}         of everything above

The run comes first, then its children, each after its parent. `head` and `body` are the bytes of the log: fields that
this version does not know survive. Only their line breaks become spaces. Times are integer microseconds, UTC.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TypeAlias

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType
from msgspec.json import Decoder, Encoder, decode

from weftline import labels
from weftline.framing import one_line
from weftline.runtime import ids
from weftline.runtime.tool_calls.toolbox import Toolbox
from weftline.store.rows import Item

VERSION = 2
"""The version of the file format. It is raised when a reader of the previous version would misread the file."""
MAX_KEY = 2**60 - 1
"""The largest key that fits into an id."""


class _Line(Struct, frozen=True, tag_field="line", omit_defaults=True, gc=False):
    """One line. Unknown fields are ignored; if ignoring a field would be misleading, it needs a new `VERSION`."""


class ExportedRow(Struct, frozen=True, omit_defaults=True):
    """The columns of a run's row, and the digest that its entries must have."""

    id: str
    name: str
    status: str
    rules: int
    format: int
    """The version of its log: see `weftline.kernel.entries.FORMAT`."""
    created_at: int
    ended_at: int
    last_seq: int
    sha256: str
    """Digest of the lines of its entries."""
    plan_sha256: str = ""
    """Digest of its plan, as in its first entry."""
    started_at: int | None = None
    agent: str | None = None
    metadata: dict[str, str] = {}
    parent: str | None = None
    """The run whose call it executed."""
    key: int = 0
    """The key of a run whose id was chosen by the client; generated ids contain it."""

    @property
    def number(self) -> tuple[int, str] | None:
        """Its key, and its salt in the store; None if there can be no such run."""
        if not self.key:
            return ids.parse(self.id, prefix="run_")
        possible = 0 < self.key <= MAX_KEY and labels.is_possible(self.id)
        return (self.key, ids.given(self.id)) if possible else None


class HeaderLine(_Line, frozen=True, tag="header"):
    version: int
    run: str
    runs: tuple[ExportedRow, ...]
    children: tuple[str, ...] = ()
    """The runs below it, at any depth."""
    thread: str = ""
    """In the file of a thread, its id. There is no `run` then, and `runs` are all of its runs and those below them."""


class MessageLine(_Line, frozen=True, tag="message"):
    run: str
    message: Raw


class ThreadLine(_Line, frozen=True, tag="thread"):
    """A thread, without the secrets of its tools. `by_name`: it was created by code, which finds it by its name."""

    id: str
    name: str
    created_at: int
    spec: Raw
    agent: str | None = None
    metadata: dict[str, str] = {}
    by_name: bool = False


class ThreadMessageLine(_Line, frozen=True, tag="thread_message"):
    run: str
    message: Raw


class EntryLine(_Line, frozen=True, tag="entry"):
    """A fact, or observations that were committed together: these have `bodies`, and `seq` is that of the first."""

    run: str
    seq: int
    at: int
    kind: str
    head: Raw | UnsetType = UNSET
    body: Raw | UnsetType = UNSET
    bodies: tuple[Raw, ...] = ()


class BlobLine(_Line, frozen=True, tag="blob"):
    id: str
    data: bytes


class OfferedTool(Struct, frozen=True):
    description: str
    parameters: Raw


class Offered(Struct, frozen=True):
    """The input of models besides the conversation: tools by name, and the instructions."""

    system: str | None
    tools: dict[str, OfferedTool]


class OfferedLine(_Line, frozen=True, tag="offered"):
    """The input of a run's models when the file was written. Only in recordings for tests."""

    run: str
    offered: Offered


class EndLine(_Line, frozen=True, tag="end"):
    lines: int
    sha256: str


Line: TypeAlias = (
    HeaderLine | ThreadLine | ThreadMessageLine | MessageLine | EntryLine | BlobLine | OfferedLine | EndLine
)

decode_line = Decoder(Line).decode
_encode = Encoder().encode


class _Version(Struct):
    version: int
    line: str


def encode_line(line: Line) -> bytes:
    return one_line(_encode(line)) + b"\n"


def version_of(line: bytes) -> int:
    """The version of a file, from its first line; 0 if it is not an export."""
    try:
        found = decode(line, type=_Version)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return found.version if found.line == "header" else 0


def entry_line(run_id: str, item: Item) -> bytes:
    if item.head:
        body = Raw(item.body) if item.body else UNSET
        return encode_line(EntryLine(run_id, item.seq, item.at, item.kind, Raw(item.head), body))
    bodies = tuple([Raw(body) for body in item.body.split(b"\n")])
    return encode_line(EntryLine(run_id, item.seq, item.at, item.kind, bodies=bodies))


def stored(line: EntryLine) -> Item:
    if line.head is not UNSET:
        body = b"" if line.body is UNSET else bytes(line.body)
        return Item(line.at, line.kind, bytes(line.head), body, seq=line.seq)
    joined = b"\n".join([one_line(bytes(body)) for body in line.bodies])
    return Item(line.at, line.kind, b"", joined, len(line.bodies), line.seq)


def offered_by(system: str | None, toolbox: Toolbox) -> Offered:
    return Offered(system, {spec.name: OfferedTool(spec.description, spec.parameters) for spec in toolbox.specs})


class Digest:
    """The digest of a sequence of lines."""

    def __init__(self) -> None:
        self._sum = sha256()
        self.lines = 0

    def take(self, line: bytes) -> bytes:
        self._sum.update(line)
        self.lines += 1
        return line

    @property
    def hex(self) -> str:
        return self._sum.hexdigest()
