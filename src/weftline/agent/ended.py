"""What an engine can do with runs that have ended. Imported when it is asked to."""

from __future__ import annotations

import asyncio
from pathlib import Path

from weftline.replay.exporting import export_lines
from weftline.replay.files import write_file
from weftline.replay.importing import Imported, ImportTarget, import_runs
from weftline.replay.reading import read_export
from weftline.replay.refusing import find_run
from weftline.store.base import LogReader


async def export(log: LogReader, run_id: str, path: Path, *, workspace: int, force: bool) -> Path:
    row = await find_run(log, run_id, workspace=workspace)
    return await write_file(export_lines(log, row), path, force=force)


async def import_file(log: LogReader, target: ImportTarget, path: Path, *, workspace: int) -> Imported:
    return await import_runs(log, target, await asyncio.to_thread(read_export, path), workspace=workspace)
