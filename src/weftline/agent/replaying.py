"""Replays of runs with the agents that are here: by an engine, by a command, in a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from weftline.agent.definition import Definition
from weftline.agent.offline import AgentsToday
from weftline.replay.format import Offered
from weftline.replay.present_code import CodeSource, NoAgents
from weftline.replay.reading import read_export
from weftline.replay.recorded import Recorded, recorded_in_file, recorded_in_store
from weftline.replay.refusing import find_run
from weftline.replay.replaying import Replayed, offered_now, replay_runs
from weftline.store.base import LogReader
from weftline.tools.base import Tool


def today(agents: Iterable[Definition[Any, Any]] | None, *, tools: Mapping[str, Tool] | None = None) -> CodeSource:
    """`tools` are those of the server that runs which clients described may name."""
    return NoAgents(tools) if agents is None else AgentsToday(agents, tools=tools)


async def replay_stored(
    log: LogReader, run_id: str, *, workspace: int, agents: Iterable[Definition[Any, Any]]
) -> Replayed:
    """Raises `NotFound`, or `Conflict` for a run that has not ended or is not all there."""
    row = await find_run(log, run_id, workspace=workspace)
    return await replay_runs(await recorded_in_store(log, row), today(agents))


async def replay_file(path: Path, *, agents: Iterable[Definition[Any, Any]] | None) -> Replayed:
    """Replays the runs of an exported file. Raises `InvalidRequest` (`bad_export`)."""
    return await replay_runs(recorded_in_file(read_export(path)), today(agents))


async def offers(runs: Iterable[Recorded], now: CodeSource) -> dict[str, Offered]:
    """By run: what its models would be offered."""
    return {recorded.run_id: await offered_now(recorded, now) for recorded in runs}
