"""What a request makes or follows takes the scope that it takes anywhere: following a new run, forking a session."""

from __future__ import annotations

from .kit import World

RUNS = "/api/v1/workspaces/acme/agent-runs"
RUN = {"modelId": "scripted:hello", "prompt": "hi"}


async def test_create_only_token_gets_the_id_or_is_refused(
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


async def test_forking_run_of_session_takes_scope_of_making_sessions(world: World) -> None:
    key = await world.key()
    sessions, spec = "/api/v1/workspaces/acme/agent-sessions", {"modelId": "scripted:hello"}
    session = (await world.call("POST", sessions, credential=key, body=spec)).json["sessionId"]
    follow, prompt = {"accept": "text/event-stream"}, {"prompt": "hi"}
    sent = await world.call("POST", f"{sessions}/{session}/messages", credential=key, headers=follow, body=prompt)
    alone = await world.call("POST", RUNS, credential=key, headers=follow, body=RUN)
    of_session, of_none = (f"{RUNS}/{one.headers['x-run-id']}/fork" for one in (sent, alone))

    writer = await world.own_token("acme", "runs:write", "runs:read")
    both = await world.own_token("acme", "runs:write", "sessions:write")
    refused = await world.call("POST", of_session, credential=writer, body={"turn": 0})
    assert (refused.status, refused.json["error"]) == (403, "insufficient_scope")
    assert refused.json["required"] == "sessions:write"
    assert refused.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="sessions:write"'
    assert len((await world.call("GET", sessions, credential=key)).json["sessions"]) == 1
    again = {"turn": 0, "message": "again"}
    assert (await world.call("POST", of_none, credential=writer, body=again)).status == 202
    for credential in (both, key):
        assert (await world.call("POST", of_session, credential=credential, body=again)).status == 202
