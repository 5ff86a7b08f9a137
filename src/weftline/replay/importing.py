"""Imports exported runs into a store unchanged, all of a file or nothing. They have ended, so they are never driven."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct
from msgspec.json import encode

from weftline.errors import Conflict, InvalidRequest, StoreError
from weftline.kernel.bodies import decode_created
from weftline.kernel.damage import UNREADABLE, fact_is_readable, observations_are_readable
from weftline.kernel.entries import RunCreated, decode_fact
from weftline.kernel.evolve import fold
from weftline.kernel.state import FOLD, State, encode_state
from weftline.messages import Blob
from weftline.plan import decode_content
from weftline.replay.exporting import log_digest
from weftline.replay.reading import Export, ExportedRun
from weftline.runtime import ids
from weftline.runtime.model_view import blobs_of
from weftline.runtime.reads.finding import row_of
from weftline.store.base import LogReader
from weftline.store.database import MAX_TIME_US
from weftline.store.rows import Item, NewRun, Write, Written


class Imported(Struct, frozen=True):
    """The runs of a file: those that were added, and those that were here already with the same content."""

    created: tuple[str, ...]
    present: tuple[str, ...]
    thread: str | None = None
    """The thread of a thread's file, under its id in this store."""


class ImportTarget(Protocol):
    """Where runs are added: the store itself, or the engine that owns it."""

    async def add_ended(self, write: Write, *, last_key: int) -> Written:
        """Applies a write that creates ended runs. No new run gets a key up to `last_key`."""
        ...


async def import_runs(log: LogReader, target: ImportTarget, export: Export, *, workspace: int) -> Imported:
    """Raises `Conflict` (`import_conflict`) if one of the ids is taken by something else; nothing is added then."""
    missing: list[ExportedRun] = []
    present: list[str] = []
    for run in export.runs:
        key, salt = number_of(run)
        row = await log.run(key)
        if row is None:
            if await row_of(log, run.row.id, workspace=workspace) is not None:
                raise Conflict(f"{run.row.id} cannot be added: another run has this id.", code="import_conflict")
            missing.append(run)
        elif row.salt != salt:
            other = ids.run_id(row.key, row.salt)
            raise Conflict(
                f"{run.row.id} cannot be added: its number belongs to {other}. Import it into another store.",
                code="import_conflict",
            )
        elif row.workspace != workspace:
            raise Conflict(
                f"{run.row.id} is already here, in another workspace. Import it into another store.",
                code="import_conflict",
            )
        elif await log_digest(log, row) != run.row.sha256:
            raise Conflict(f"{run.row.id} is already here, with different content.", code="import_conflict")
        else:
            present.append(run.row.id)
    if missing:
        contents = {blob.id: blob for blob in export.blobs}
        writes = [_write(run, contents, workspace=workspace) for run in missing]
        first = writes[0]
        first.children = tuple(writes[1:])
        written = await target.add_ended(first, last_key=max(write.key for write in writes))
        if written.outcome == "conflict":
            raise Conflict("One of the runs has been created here in the meantime.", code="import_conflict")
        if written.outcome != "ok":
            raise written.error or StoreError("The store did not accept the runs.")
    return Imported(tuple([run.row.id for run in missing]), tuple(present))


def _write(run: ExportedRun, contents: dict[str, Blob], *, workspace: int) -> Write:
    row = run.row
    key, salt = number_of(run)
    try:
        facts = [(item.at, decode_fact.decode(item.head)) for item in run.facts]
        state = fold(State(), facts)
        created = decode_content(decode_created(run.items[0].body).plan)
        stored_state = encode_state(state)
    except (*UNREADABLE, OverflowError):  # a number of more than 64 bits
        raise InvalidRequest(f"The log of {row.id} cannot be read.", code="bad_export") from None
    if not all(_is_readable(item) for item in run.items):
        raise InvalidRequest(f"The log of {row.id} cannot be read.", code="bad_export")
    times = (row.created_at, row.started_at, row.ended_at, *(item.at for item in run.items))
    if not all(time is None or 0 <= time <= MAX_TIME_US for time in times):
        raise InvalidRequest(f"One of the times of {row.id} is not a time.", code="bad_export")
    if not isinstance(facts[0][1], RunCreated) or not state.ended or state.status != row.status:
        raise InvalidRequest(f"The log of {row.id} does not end as the header says.", code="bad_export")
    named = sorted(blobs_of(created.messages))
    if lost := [id for id in named if id not in contents]:
        raise InvalidRequest(f"The content {lost[0]} that {row.id} names is not in the file.", code="bad_export")
    return Write(
        key=key,
        epoch=0,  # assigned by the target
        base_seq=1,
        base_version=0,
        items=[Item(item.at, item.kind, item.head, item.body, item.count) for item in run.items],
        version=state.version,
        status=row.status,
        due_at=None,
        format=row.format,
        state=stored_state,
        fold=FOLD,
        started_at=row.started_at,
        ended_at=row.ended_at,
        new=NewRun(
            salt=salt,
            workspace=workspace,
            name=row.name,
            metadata=encode(row.metadata).decode(),
            created_at=row.created_at,
            rules=row.rules,
            agent=row.agent,
            blobs=tuple([contents[id] for id in named]),
        ),
        imported=True,
    )


def _is_readable(item: Item) -> bool:
    if item.head:
        return fact_is_readable(item.kind, item.head, item.body)
    return observations_are_readable(item.kind, item.body, item.count)


def number_of(run: ExportedRun) -> tuple[int, str]:
    """The run's key, and its salt in the store."""
    number = run.row.number
    assert number is not None  # checked when the file was read
    return number
