"""Talks to a server through the package that openapi-python-client makes of its page."""

# The package `made` is made when the test runs.
# pyright: basic, reportMissingImports=false
from __future__ import annotations

import sys

from made import AuthenticatedClient
from made.api.agent_runs import lists_runs, runs_create, runs_read, runs_stream
from made.api.agent_sessions import sessions_create, sessions_end, sessions_message, sessions_read
from made.api.agents import agents_create
from made.api.models import models_list_models
from made.api.tools import tools_change, tools_create
from made.models import (
    AgentModel,
    Error,
    MessageModel,
    RunModel,
    SessionModel,
    ToolChangesModel,
    ToolModel,
)


def main(url: str, slug: str, key: str) -> None:
    client = AuthenticatedClient(base_url=url, token=key, timeout=120)

    def finished(run_id: str):
        stream = runs_stream.sync_detailed(slug, run_id, client=client)
        assert b"event: result" in stream.content
        return runs_read.sync(slug, run_id, client=client)

    body = RunModel(model_id="scripted:hello", prompt="hi")
    created = runs_create.sync(slug, client=client, body=body, idempotency_key="once-more")
    again = runs_create.sync(slug, client=client, body=body, idempotency_key="once-more")
    assert again.run_id == created.run_id
    run = finished(created.run_id)
    assert run.status == "succeeded", run
    assert run.run_id in [one.run_id for one in lists_runs.sync(slug, client=client).runs]

    spec = AgentModel.from_dict({"name": "Waiter", "spec": {"modelId": "scripted:hello"}})
    agent = agents_create.sync(slug, client=client, body=spec)
    session = sessions_create.sync(slug, client=client, body=SessionModel(agent_id=agent.id))
    said = sessions_message.sync(slug, session.session_id, client=client, body=MessageModel(prompt="hi"))
    finished(said.run_id)
    assert len(sessions_read.sync(slug, session.session_id, client=client).messages) == 2
    assert sessions_end.sync(slug, session.session_id, client=client).ok

    assert "scripted:hello" in [model.id for model in models_list_models.sync(slug, client=client).models]
    tool = tools_create.sync(slug, client=client, body=ToolModel(name="find", url="https://example.org/"))
    tools_change.sync(slug, tool.id, client=client, body=ToolChangesModel(description="Finds a word."))

    missing = runs_read.sync(slug, "run_none", client=client)
    assert isinstance(missing, Error) and missing.code == "not_found", missing
    print("all is well")


if __name__ == "__main__":
    main(*sys.argv[1:])
