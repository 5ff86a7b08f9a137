"""Recorded runs as tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from weftline.agent.definition import Definition
from weftline.agent.engine.replaying import replay_file
from weftline.agent.loader import load_agents
from weftline.replay.replaying import Replayed


def replay(recording: str | Path, *, agents: Iterable[Definition[Any, Any]] | str | Path | None = None) -> Replayed:
    """Replays an exported run offline, with the given agents or those of a Python file.

    Models, tools, clients and people are answered from the recording. Raises `AssertionError` with the first difference
    if the run diverges from its log.
    """
    given = load_agents(agents).agents.values() if isinstance(agents, str | Path) else agents
    done = asyncio.run(replay_file(Path(recording), agents=given))
    if done.divergence is not None:
        raise AssertionError(str(done.divergence))
    return done
