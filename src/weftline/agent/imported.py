"""Adds an exported thread to a store: its runs to be read, and the thread to be gone on with."""

from __future__ import annotations

from msgspec.structs import replace

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
    """Adds the runs of a file, and its thread if it has one.

    The thread is a new one with the messages of the old: under its name if code knows it by that, else under an id of
    its own. Raises `Conflict` (`import_conflict`) if there is one of that name in which something else was said, or an
    id of a run is taken; nothing but runs of the file is added then.
    """
    imported = await import_runs(log, target, export, workspace=workspace)
    if export.thread is None:
        return imported
    line, format = export.thread.line, max([run.row.format for run in export.runs], default=FORMAT)
    draft = ThreadDraft(name=line.name, agent=line.agent, spec=bytes(line.spec), metadata=line.metadata)
    keys = {run.row.id: number_of(run)[0] for run in export.runs}
    messages = [(keys[run], message) for run, message in export.thread.messages]
    key = threads.name_key(line.name) if line.by_name else f"import:{line.id}"
    row, _ = await threads.add(at, workspace, draft, messages, key=key, format=format)
    return replace(imported, thread=ids.session_id(row.key, row.salt))
