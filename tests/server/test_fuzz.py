"""Cursors and tool results of every shape: no answer is a 5xx, none hangs, and the run goes on."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.testing import ServerProcess

from .conftest import new_key

TIMEOUT_S = 120

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
BODIES = st.binary(max_size=60) | st.fixed_dictionaries(
    {},
    optional={"toolUseId": JSON | st.just("call_0_0"), "result": JSON, "error": JSON, "extra": JSON},
).map(lambda fields: json.dumps(fields).encode())
CURSORS = st.integers(-(2**70), 2**70).map(str) | st.text(max_size=20) | st.sampled_from(["", "1.5", "٣", "1e3", "+1"])
HEADER_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


class Caller:
    def __init__(self, server: ServerProcess, slug: str) -> None:
        parts = urlsplit(server.url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._base = f"/api/v1/workspaces/{slug}/agent-runs"
        self._key = new_key(server, slug)

    def call(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT_S)
        try:
            sent = {"Authorization": f"Bearer {self._key}", **(headers or {})}
            connection.request(method, self._base + path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def start(self, spec: dict[str, Any]) -> str:
        status, body = self.call("POST", "", json.dumps(spec).encode())
        assert status == 202, body
        return json.loads(body)["runId"]


@pytest.fixture(scope="module")
def caller(server: ServerProcess) -> Caller:
    return Caller(server, "fuzz")


@pytest.fixture(scope="module")
def finished(caller: Caller) -> str:
    run = caller.start({"modelId": "scripted:hello", "prompt": "x"})
    caller.call("GET", f"/{run}/stream")
    return run


@pytest.mark.requirement("wire.sse.resume")
@given(query=CURSORS, header=HEADER_TEXT)
def test_any_cursor_opens_stream_of_finished_run_and_it_ends(
    caller: Caller, finished: str, query: str, header: str
) -> None:
    path = f"/{finished}/stream?lastSeq={quote(query, safe='')}"
    status, body = caller.call("GET", path, headers={"Last-Event-ID": header})
    if status == 204:
        # Somebody who has seen the end, by the header, and asks again.
        assert not body and int(header) > 0
        return
    assert status == 200
    frames = [frame for frame in body.split(b"\n\n") if frame]
    seqs = [int(frame.split(b"\n")[0][4:]) for frame in frames]
    assert seqs == sorted(set(seqs))


@pytest.mark.requirement("wire.toolresult.validation")
@given(body=BODIES)
def test_any_tool_result_gets_an_answer_in_the_one_shape(caller: Caller, body: bytes) -> None:
    tools = [{"kind": "local", "name": "lookup"}]
    run = caller.start({"modelId": "scripted:lookup", "prompt": "x", "tools": tools})
    status, answer = caller.call("POST", f"/{run}/tool-results", body)
    assert status in (200, 400, 404, 409), answer
    if status != 200:
        assert {"error", "code", "message"} <= json.loads(answer).keys()
    assert caller.call("POST", f"/{run}/cancel")[0] == 200
