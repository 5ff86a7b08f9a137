"""Old logs are removed when it is asked for, and readers are told what is missing."""

from __future__ import annotations

import pytest

from commands import weftline_beside
from weftline.testing import ServerProcess

from ..kit import Api, of_type, types


async def trim(server: ServerProcess, api: Api, older_than: str = "0s") -> int:
    where = ("--workspace", api.slug, "--db", str(server.db))
    done = await weftline_beside("retention", "run", "--older-than", older_than, *where)
    assert done.code == 0, done.err
    return int(done.out)


@pytest.mark.requirement("run.log.gap")
async def test_late_reader_gets_a_gap_and_then_the_rest(api: Api, server: ServerProcess) -> None:
    run = await api.start("hello", metadata={"k": "v"})
    whole = await api.events(run)
    before = await api.snapshot(run)
    assert await trim(server, api) == 1
    last = whole[-1]
    gap, kept = await api.events(run)
    assert gap.type == "gap" and gap.seq == last.seq - 1
    assert (gap["firstMissingSeq"], gap["lastMissingSeq"]) == (1, last.seq - 1)
    assert kept.raw == last.raw
    assert gap["snapshot"] == await api.snapshot(run) == {**before, "spec": {}, "agentSpec": {}}
    middle = await api.events(run, last_seq=3)
    assert (middle[0]["firstMissingSeq"], middle[0].seq) == (4, last.seq - 1)
    assert types(await api.events(run, last_seq=gap.seq)) == [last.type]
    assert await api.events(run, last_seq=last.seq) == []
    assert await trim(server, api) == 0


@pytest.mark.requirement("run.log.gap")
async def test_running_or_young_runs_are_left_whole(api: Api, server: ServerProcess) -> None:
    ended = await api.start("hello")
    whole = await api.events(ended)
    stuck = await api.start("stuck")
    async with api.stream(stuck) as stream:
        await stream.until("assistant_delta")
        assert await trim(server, api, "1h") == 0
        assert await api.events(ended) == whole
        assert await trim(server, api) == 1
        await api.cancel(stuck)
        frames = await stream.rest()
    assert of_type(await api.events(stuck), "gap") == [] and frames[-1].type == "cancelled"


async def test_the_session_of_a_trimmed_run_goes_on(api: Api, server: ServerProcess) -> None:
    session = await api.session("seen")
    await api.events(await api.send(session, "one"))
    await trim(server, api)
    run = await api.send(session, "two")
    await api.events(run)
    assert (await api.snapshot(run))["finalText"] == "one | two / 3"
