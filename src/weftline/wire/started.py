"""The first event of a run."""

from __future__ import annotations

from msgspec.json import encode

from weftline.kernel import bodies
from weftline.plan import agent_of, may_name_agent

_LARGE_BYTES = 64 * 1024
_MAX_REMEMBERED = 10_000

_agents: dict[tuple[str, int], str | None] = {}
"""For large runs, by id and size, as every follower gets this event, and searching 16 MB takes long."""


def started_event(body: bytes, *, run_id: str) -> bytes:
    agent = _agent(body) if len(body) <= _LARGE_BYTES else _remembered(body, run_id)
    return encode({"runId": run_id} if agent is None else {"runId": run_id, "agent": agent})


def _remembered(body: bytes, run_id: str) -> str | None:
    which = run_id, len(body)
    if which not in _agents:
        if len(_agents) >= _MAX_REMEMBERED:
            _agents.clear()
        _agents[which] = _agent(body)
    return _agents[which]


def _agent(body: bytes) -> str | None:
    return agent_of(bodies.decode_created(body).plan) if may_name_agent(body) else None
