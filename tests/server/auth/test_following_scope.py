"""Following a run in the answer to its create takes the scope that following takes anywhere."""

from __future__ import annotations

from .kit import World

RUNS = "/api/v1/workspaces/acme/agent-runs"
RUN = {"modelId": "scripted:hello", "prompt": "hi"}


async def test_a_token_that_may_create_but_not_read_gets_the_id_or_is_refused_before_there_is_a_run(
    world: World,
) -> None:
    writer = await world.own_token("acme", "runs:write")
    reader = await world.own_token("acme", "runs:write", "runs:read")
    only = {"accept": "text/event-stream"}
    refused = await world.call("POST", RUNS, credential=writer, headers=only, body=RUN)
    assert (refused.status, refused.json["required"]) == (403, "runs:read")
    assert refused.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="runs:read"'
    assert (await world.call("GET", RUNS, credential=reader)).json["runs"] == []
    rather = {"accept": "text/event-stream, application/json;q=0.5"}
    created = await world.call("POST", RUNS, credential=writer, headers=rather, body=RUN)
    assert created.status == 202 and created.json["runId"]
    streamed = await world.call("POST", RUNS, credential=reader, headers=rather, body=RUN)
    assert streamed.status == 200 and b"event: result" in streamed.body
