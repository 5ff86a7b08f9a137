"""Temperature, top-p, stop sequences and the output limit: where they may be set, and which setting counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ..kit import Api, Json, check_error

ALL: Json = {"temperature": 0.5, "topP": 0.9, "stopSequences": ["END"], "maxOutputTokens": 100}
SEEN: Json = {"temperature": 0.5, "top_p": 0.9, "stop": ["END"], "max_output_tokens": 100}


async def seen(api: Api, run: str) -> Json:
    """The settings that the model was asked with."""
    return json.loads((await api.events(run))[-1]["text"])


async def test_settings_of_a_run_reach_the_model_and_the_snapshot(api: Api) -> None:
    run = await api.start("settings", **ALL)
    assert await seen(api, run) == SEEN
    snapshot = await api.snapshot(run)
    assert {name: snapshot["spec"][name] for name in ALL} == ALL
    assert await seen(api, await api.start("settings")) == {}


async def test_a_run_overrides_a_session_which_overrides_its_agent(api: Api) -> None:
    spec: Json = {"modelId": "scripted:settings", **ALL}
    agent = (await api.post("agents", {"name": "calm", "spec": spec})).json["id"]
    direct = await api.post("agent-runs", {"agentId": agent, "prompt": "hi", "temperature": 0.1})
    assert await seen(api, direct.json["runId"]) == {**SEEN, "temperature": 0.1}

    session = await api.session("settings", agentId=agent, topP=0.8, maxOutputTokens=50)
    assert await seen(api, await api.send(session)) == {**SEEN, "top_p": 0.8, "max_output_tokens": 50}
    changed = await api.send(session, topP=0.7, stopSequences=["STOP"], temperature=None)
    assert await seen(api, changed) == {**SEEN, "top_p": 0.7, "stop": ["STOP"], "max_output_tokens": 50}
    snapshot = await api.snapshot(changed)
    assert (snapshot["spec"]["topP"], snapshot["spec"]["temperature"]) == (0.7, 0.5)
    assert await seen(api, await api.send(session)) == {**SEEN, "top_p": 0.8, "max_output_tokens": 50}
    assert await seen(api, await api.send(session, stopSequences=[])) == {
        "temperature": 0.5,
        "top_p": 0.8,
        "max_output_tokens": 50,
    }


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("temperature", -0.1, "temperature"),
        ("temperature", 2.1, "temperature"),
        ("temperature", "hot", "temperature"),
        ("temperature", True, "temperature"),
        ("topP", 1.5, "topP"),
        ("stopSequences", "END", "stopSequences"),
        ("stopSequences", [""], "stopSequences[0]"),
        ("stopSequences", ["x"] * 17, "stopSequences"),
        ("maxOutputTokens", 0, "maxOutputTokens"),
        ("maxOutputTokens", 1.5, "maxOutputTokens"),
        ("maxOutputTokens", 10**30, "maxOutputTokens"),
    ],
)
async def test_a_setting_that_cannot_be_is_refused_by_its_name(api: Api, field: str, value: Any, path: str) -> None:
    reply = await api.post("agent-runs", {"modelId": "scripted:settings", "prompt": "hi", field: value})
    assert check_error(reply, 400, "invalid_request")["issues"][0]["path"] == path
