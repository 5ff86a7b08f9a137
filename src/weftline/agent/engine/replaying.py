"""Replays runs with the agents of this process, for an engine, a command or a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from weftline.agent.definition import Definition
from weftline.agent.engine.offline import AgentsToday
from weftline.replay.format import Offered
from weftline.replay.present_code import CodeSource, NoAgents
from weftline.replay.reading import read_export
from weftline.replay.recorded import Recorded, recorded_in_file, recorded_in_store
from weftline.replay.refusing import find_run
from weftline.replay.replaying import Replayed, offered_now, replay_runs
from weftline.store.base import LogReader
from weftline.tools.base import Tool


def today(agents: Iterable[Definition[Any, Any]] | None, *, tools: Mapping[str, Tool] | None = None) -> CodeSource:
    """`tools` are the server's tools that runs described by clients may name."""
    return NoAgents(tools) if agents is None else AgentsToday(agents, tools=tools)


async def replay_stored(
    log: LogReader, run_id: str, *, workspace: int, agents: Iterable[Definition[Any, Any]]
) -> Replayed:
    """Replays a stored run. Raises `NotFound`, or `Conflict` for a run that has not ended or is incomplete."""
    row = await find_run(log, run_id, workspace=workspace)
    return await replay_runs(await recorded_in_store(log, row), today(agents))


async def replay_file(path: Path, *, agents: Iterable[Definition[Any, Any]] | None) -> Replayed:
    """Replays the runs of an exported file. Raises `InvalidRequest` (`bad_export`)."""
    return await replay_runs(recorded_in_file(read_export(path)), today(agents))


async def offers(runs: Iterable[Recorded], now: CodeSource) -> dict[str, Offered]:
    """Returns what each run's models would be offered, by run."""
    return {recorded.run_id: await offered_now(recorded, now) for recorded in runs}
