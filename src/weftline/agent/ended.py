"""What an engine can do with runs that have ended. Imported when it is asked to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from weftline.replay.exporting import export_lines
from weftline.replay.files import write_file
from weftline.replay.importing import Imported, import_runs
from weftline.replay.reading import read_export
from weftline.replay.refusing import find_run

if TYPE_CHECKING:
    from weftline.agent.engine import Engine


async def export(engine: Engine, run_id: str, path: Path, *, force: bool) -> Path:
    row = await find_run(engine.store.log, run_id, workspace=engine.workspace_key)
    return await write_file(export_lines(engine.store.log, row), path, force=force)


async def import_file(engine: Engine, path: Path) -> Imported:
    found = await asyncio.to_thread(read_export, path)
    return await import_runs(engine.store.log, await engine.runtime(), found, workspace=engine.workspace_key)
