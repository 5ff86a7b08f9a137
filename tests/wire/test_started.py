"""The first event of a run, whose entry may be far larger than the event."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from msgspec import Raw
from msgspec.json import encode

from weftline.events import project as projection
from weftline.events.frames import payload_of
from weftline.kernel.bodies import CreatedBody
from weftline.kernel.entries import Limits, RunCreated
from weftline.messages import User
from weftline.plan import RunPlan, encode_plan

MB = 1024 * 1024


def started(body: bytes, *, run_id: str) -> bytes:
    event = payload_of(RunCreated(1, Limits()), body, run_id=run_id)
    assert event is not None and event[0] == "started"
    return event[1]


def created(*, agent: str | None, chars: int) -> bytes:
    plan = RunPlan(messages=(User.of("x" * chars),), name="Helper", agent_id=agent)
    return encode(CreatedBody(Raw(encode_plan(plan))))


@pytest.mark.parametrize("chars", [10, MB])
@pytest.mark.parametrize("agent", ["agent_1", None])
def test_the_first_event_names_the_agent(agent: str | None, chars: int) -> None:
    run_id = f"run_{uuid4().hex}"
    body = created(agent=agent, chars=chars)
    for _ in range(2):
        event = json.loads(started(body, run_id=run_id))
        assert event == {"runId": run_id} | ({"agent": "Helper"} if agent else {})


def test_large_run_is_looked_through_once_however_many_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def may_name_agent(body: bytes) -> bool:
        looked.append(len(body))
        return False

    monkeypatch.setattr(projection, "may_name_agent", may_name_agent)
    run_id = f"run_{uuid4().hex}"
    body = created(agent=None, chars=MB)
    assert len({started(body, run_id=run_id) for _ in range(100)}) == 1
    assert looked == [len(body)]
