"""The file that a run is exported to: JSON lines, in an order that is the same each time.

    {"line": "header", "version": 1, "run": …, "runs": [{"id": …, "sha256": …}, …]}
    {"line": "thread", "id": …, "name": …, "spec": {…}}   in the file of a thread, which has all runs of it
    {"line": "said", "run": …, "message": {…}}        a message of the thread, and the run that left it there
    {"line": "message", "run": …, "message": {…}}     in the file of a run: what its thread had said before it
    {"line": "entry", "run": …, "seq": 1, "at": …, "kind": "run.created", "head": {…}, "body": {…}}
    {"line": "blob", "id": …, "data": …}              what messages name, in base64
    {"line": "offered", "run": …, "offered": {…}}     in files that tests are made of: prompt and tools
    {"line": "end", "lines": 17, "sha256": …}         of everything above

The run comes first, then its children, each after its parent. `head` and `body` are the bytes of the log, as they are:
fields that this version does not know survive. Times are integer microseconds, UTC.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TypeAlias

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType
from msgspec.json import Decoder, Encoder, decode

from weftline import run_ids
from weftline.runtime import ids
from weftline.runtime.toolbox import Toolbox
from weftline.store.base import Stored

VERSION = 1
"""Of the file. It rises when a reader of the one before would misunderstand what it reads."""
MAX_KEY = 2**60 - 1
"""The largest that fits an id."""


class _Line(Struct, frozen=True, tag_field="line", omit_defaults=True, gc=False):
    """One line. Fields that are not known are ignored: what would mislead without them needs a new `VERSION`."""


class ExportedRow(Struct, frozen=True, omit_defaults=True):
    """What a list shows of a run, and what its entries must come to."""

    id: str
    name: str
    status: str
    rules: int
    format: int
    """Of its log: see `weftline.kernel.entries.FORMAT`."""
    created_at: int
    ended_at: int
    last_seq: int
    sha256: str
    """Of the lines of its entries."""
    plan_sha256: str = ""
    """Of what it was asked to do, as its first entry has it."""
    started_at: int | None = None
    agent: str | None = None
    metadata: dict[str, str] = {}
    parent: str | None = None
    """The run whose call it carried out."""
    key: int = 0
    """The number of a run that was given its id: others have it in theirs."""

    @property
    def number(self) -> tuple[int, str] | None:
        """Its key, and what the store has as its salt; None if there can be no such run."""
        if not self.key:
            return ids.parse(self.id, prefix="run_")
        possible = 0 < self.key <= MAX_KEY and run_ids.is_possible(self.id)
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
    """A thread, without the secrets of its tools. `by_name`: it is one of code, which knows it by its name."""

    id: str
    name: str
    created_at: int
    spec: Raw
    agent: str | None = None
    metadata: dict[str, str] = {}
    by_name: bool = False


class ThreadMessageLine(_Line, frozen=True, tag="said"):
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
    """What models are offered besides the conversation: tools by name, and the instructions."""

    system: str | None
    tools: dict[str, OfferedTool]


class OfferedLine(_Line, frozen=True, tag="offered"):
    """What the models of a run were offered when the file was written. Only in files that tests are made of."""

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
    return _encode(line) + b"\n"


def version_of(line: bytes) -> int:
    """The version of a file, by its first line; 0 if it is something else."""
    try:
        found = decode(line, type=_Version)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return found.version if found.line == "header" else 0


def entry_line(run_id: str, item: Stored) -> bytes:
    if item.head:
        body = Raw(item.body) if item.body else UNSET
        return encode_line(EntryLine(run_id, item.seq, item.at, item.kind, Raw(item.head), body))
    bodies = tuple([Raw(body) for body in item.body.split(b"\n")])
    return encode_line(EntryLine(run_id, item.seq, item.at, item.kind, bodies=bodies))


def stored(line: EntryLine) -> Stored:
    if line.head is not UNSET:
        body = b"" if line.body is UNSET else bytes(line.body)
        return Stored(line.seq, line.at, line.kind, bytes(line.head), body)
    joined = b"\n".join([bytes(body) for body in line.bodies])
    return Stored(line.seq, line.at, line.kind, b"", joined, len(line.bodies))


def offered_by(system: str | None, toolbox: Toolbox) -> Offered:
    return Offered(system, {spec.name: OfferedTool(spec.description, spec.parameters) for spec in toolbox.specs})


class Digest:
    """Of lines, as they come."""

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
