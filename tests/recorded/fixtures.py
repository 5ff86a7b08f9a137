"""The recordings in `tests/fixtures/logs`: for each format of the log, and schema of the database, a folder with

* `SCENARIO.jsonl`: the entries of its runs, and the messages that their threads had, in the lines of an export;
* `SCENARIO.expected.json`: what they fold to, and their snapshots and events as clients get them;
* `store.tar.xz`: the store that the runs were recorded in, as a kill left it.

Besides these, `states.json` has the digests of the states that all recorded logs fold to, and the number of the fold.
"""

from __future__ import annotations

import tarfile
from hashlib import sha256
from pathlib import Path

from msgspec import Raw, Struct, json

from weftline.api.views import run_view
from weftline.kernel.entries import FORMAT, decode_fact
from weftline.kernel.evolve import fold as kernel_fold
from weftline.kernel.state import FOLD, State, encode_state
from weftline.replay.exporting import history_of
from weftline.replay.format import EntryLine, MessageLine, decode_line, encode_line, entry_line, stored
from weftline.runtime import ids
from weftline.runtime.engine import EntryBatch
from weftline.runtime.reads.calls import entries
from weftline.runtime.reads.finding import StoredNames
from weftline.runtime.reads.reading import StoredRuns
from weftline.server.sse import sse_frames
from weftline.store import open_store
from weftline.store.base import Store
from weftline.store.rows import Item, RunFilter, RunRow
from weftline.store.sqlite.connection import migrations
from weftline.wire.run_responses import snapshot

from .folded import Folded, fold

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
STATES = LOGS / "states.json"


class Log(Struct):
    """The entries of a run, and the messages of its thread when it began."""

    entries: list[Item]
    history: list[bytes]

    def fold(self) -> Folded:
        return fold(self.entries, self.history)

    def events(self, run_id: str) -> bytes:
        """The data of the events that clients get, in a list."""
        last = self.entries[-1]
        batch = EntryBatch(run_id, self.entries, 0, last.seq + last.count - 1, ended=last.kind == "run.ended")
        lines = sse_frames(batch).split(b"\n")
        return json.encode([Raw(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: ")])

    def state(self) -> State:
        facts = [(item.at, decode_fact.decode(item.head)) for item in self.entries if item.head]
        return kernel_fold(State(), facts)


class Expected(Struct):
    """What a run must fold to, and its snapshot and events on the wire."""

    folded: Raw
    snapshot: Raw
    events: Raw


class Scenario(Struct):
    """What comes with the log of a scenario: what is expected of each of its runs, by id."""

    runs: dict[str, Expected]
    tokens: dict[str, str] = {}
    """The tokens of leases that clients still have, by run."""


class States(Struct):
    """The digest of each run's state, and the fold that made them."""

    fold: int
    digests: dict[str, str]


def folder() -> Path:
    """Where the present format is recorded, or would be."""
    recorded = sorted(LOGS.glob(f"format-{FORMAT}-schema-*"))
    return recorded[-1] if recorded else LOGS / f"format-{FORMAT}-schema-{migrations()[-1][0]}"


def write_logs(path: Path, logs: dict[str, Log]) -> None:
    lines: list[bytes] = []
    for run_id, log in logs.items():
        lines += [encode_line(MessageLine(run_id, Raw(message))) for message in log.history]
        lines += [entry_line(run_id, item) for item in log.entries]
    path.write_bytes(b"".join(lines))


def read_logs(path: Path) -> dict[str, Log]:
    logs: dict[str, Log] = {}
    for raw in path.read_bytes().splitlines():
        line = decode_line(raw)
        assert isinstance(line, MessageLine | EntryLine)
        log = logs.setdefault(line.run, Log([], []))
        if isinstance(line, MessageLine):
            log.history.append(bytes(line.message))
        else:
            log.entries.append(stored(line))
    return logs


def expected_path(log: Path) -> Path:
    return log.with_suffix(".expected.json")


def read_expected(log: Path) -> Scenario:
    return json.decode(expected_path(log).read_bytes(), type=Scenario)


def write_expected(log: Path, scenario: Scenario) -> None:
    expected_path(log).write_bytes(json.format(json.encode(scenario), indent=1) + b"\n")


async def rows_of(store: Store) -> dict[str, RunRow]:
    """All runs, by id."""
    found: dict[str, RunRow] = {}
    before: int | None = None
    while page := await store.log.runs(RunFilter(before=before, limit=100)):
        before = page[-1].key
        found |= {ids.run_id(row.key, row.salt): row for row in page}
    return found


async def log_of(store: Store, row: RunRow) -> Log:
    return Log([item async for item in entries(store.log, row.key)], list(await history_of(store.log, row)))


async def snapshot_of(store: Store, row: RunRow) -> bytes:
    """The snapshot of a run on the wire."""
    return snapshot(await run_view(StoredRuns(store.log, StoredNames(store.records)), row))


def pack(store: Path, file: Path) -> None:
    with tarfile.open(file, "w:xz") as packed:
        packed.add(store, arcname="store")


def unpack(file: Path, folder: Path) -> Path:
    """Returns the directory of the store."""
    with tarfile.open(file) as packed:
        packed.extractall(folder, filter="data")
    (folder / "store").chmod(0o700)
    return folder / "store"


def opened(folder: Path) -> Store:
    return open_store(folder)


def states_today() -> States:
    """What all recorded logs fold to with the present fold."""
    digests: dict[str, str] = {}
    for path in sorted(LOGS.glob("*/*.jsonl")):
        for run_id, log in read_logs(path).items():
            name = f"{path.parent.name}/{path.stem}/{run_id}"
            digests[name] = sha256(encode_state(log.state())).hexdigest()[:16]
    return States(FOLD, digests)
