"""Labels of runs, as clients give them and see them again."""

from __future__ import annotations

from typing import Any

import pytest

from .kit import Api, check_error, local_tool

LABELS = {"tenant": "acme", "tier": "gold"}


@pytest.mark.requirement("run.label.flow")
async def test_labels_are_on_snapshot_and_terminal_event_of_every_end(api: Api) -> None:
    run = await api.start("echo", tools=[{"kind": "server", "name": "echo"}], labels=LABELS, metadata={"a": "b"})
    frames = await api.events(run)
    assert (frames[-1]["type"], frames[-1]["labels"]) == ("result", LABELS)
    snapshot = (await api.get(f"agent-runs/{run}")).json
    assert (snapshot["labels"], snapshot["metadata"]) == (LABELS, {"a": "b"})
    run = await api.start("lookup", tools=[local_tool()], labels=LABELS)
    async with api.stream(run) as stream:
        await stream.until("local_tool_call")
        assert (await api.get(f"agent-runs/{run}")).json["labels"] == LABELS
        await api.cancel(run)
        frames = await stream.rest()
    assert (frames[-1]["type"], frames[-1]["labels"]) == ("cancelled", LABELS)


@pytest.mark.parametrize(
    ("labels", "path"),
    [
        ({"a b": "x"}, "labels"),
        ({"a": 5}, "labels.a"),
        ({"a": "x" * 513}, "labels.a"),
        ({f"x{n}": "" for n in range(17)}, "labels"),
        (["a"], "labels"),
    ],
)
async def test_labels_that_cannot_be_are_refused(api: Api, labels: Any, path: str) -> None:
    error = check_error(
        await api.post("agent-runs", {"modelId": "scripted:hello", "prompt": "x", "labels": labels}),
        400,
        "invalid_request",
    )
    assert error["issues"][0]["path"].startswith(path)


async def test_a_run_whose_server_tools_need_labels_says_which(api: Api) -> None:
    body = {"modelId": "scripted:hello", "prompt": "x", "tools": [{"kind": "server", "name": "tenancy"}]}
    error = check_error(await api.post("agent-runs", body), 400, "missing_labels")
    assert error["missing"] == ["tenant"]
    assert (await api.post("agent-runs", {**body, "labels": LABELS})).status == 202
