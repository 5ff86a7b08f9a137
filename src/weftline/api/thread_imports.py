"""Imports an exported thread: its runs for reading, and the thread itself so that it can be continued."""

from __future__ import annotations

from msgspec.structs import replace

from weftline.errors import Conflict
from weftline.kernel.entries import FORMAT
from weftline.replay.importing import Imported, ImportTarget, import_runs, number_of
from weftline.replay.reading import Export
from weftline.runtime import ids
from weftline.store.base import LogReader
from weftline.workspace import threads
from weftline.workspace.context import Workspaces
from weftline.workspace.threads import ThreadDraft


async def import_export(
    log: LogReader, target: ImportTarget, at: Workspaces, export: Export, *, workspace: int
) -> Imported:
    """Imports the runs of a file, and its thread if it has one.

    The thread is a new one with the messages of the old: under the same name if code named it, else under a new id.
    Raises `Conflict` (`import_conflict`) if a thread of that name has other messages, or a run's id is taken; then at
    most runs of the file were added.
    """
    imported = await import_runs(log, target, export, workspace=workspace)
    if export.thread is None:
        return imported
    line, format = export.thread.line, max([run.row.format for run in export.runs], default=FORMAT)
    draft = ThreadDraft(name=line.name, agent=line.agent, spec=bytes(line.spec), metadata=line.metadata)
    keys = {run.row.id: number_of(run)[0] for run in export.runs}
    messages = [(keys.get(run, 0), message) for run, message in export.thread.messages]
    key = threads.name_key(line.name) if line.by_name else f"import:{line.id}"
    row, is_new = await threads.add(at, workspace, draft, messages, key=key, format=format)
    if not is_new and await log.thread_messages(row.key) != [message for _, message in messages]:
        raise Conflict(
            f"There is already a thread {line.name!r} here, with a different conversation.", code="import_conflict"
        )
    return replace(imported, thread=ids.session_id(row.key, row.salt))
