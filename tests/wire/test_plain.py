"""A plain body is read in one go, any other field by field: whoever sends one cannot tell which."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.errors import InvalidRequest
from weftline.wire.limits import MAX_MODEL_ID_CHARS, MAX_RUN_NAME_CHARS, MAX_TOOLS
from weftline.wire.plain import PLAIN_BYTES, plain_run
from weftline.wire.requests import parse_run
from weftline.wire.spec_requests import any_run

WORDS = st.text(max_size=6) | st.sampled_from(["a", "a-b", "@x/y", "a\n", "\x00", "", "ä", "x" * 65, "x" * 257])
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["server", "mantyx_plugin", "stored", "local"]), "name": WORDS},
        optional={"id": WORDS, "more": st.none()},
    ),
    max_size=3,
)
BODIES = st.fixed_dictionaries(
    {"prompt": WORDS},
    optional={
        "name": WORDS | st.none() | st.just(1),
        "agentId": WORDS | st.none(),
        "modelId": WORDS | st.none(),
        "systemPrompt": WORDS | st.none(),
        "tools": TOOLS | st.none(),
        "loopDetection": st.booleans() | st.none() | st.just({"consecutiveThreshold": 3}),
        "promt": st.none() | WORDS,
        "temperature": st.just(1),
        "plan": st.booleans(),
    },
)


def outcome(read: Any, body: bytes) -> object:
    try:
        return read(body)
    except InvalidRequest as error:
        return error.message, error.details


@given(BODIES)
def test_a_body_means_the_same_however_it_is_read(sent: dict[str, Any]) -> None:
    body = json.dumps(sent, ensure_ascii=False).encode(errors="surrogatepass")
    assert outcome(parse_run, body) == outcome(any_run, body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"hi"}',
        b' { "prompt" : "hi" , "modelId":"scripted:one", "tools":[{"kind":"server","name":"add"}]} ',
        b'{"prompt":"a","prompt":"b","loopDetection":false,"name":null,"tools":null}',
        b'{"prompt":"hi","agentId":"agt_1","systemPrompt":"Be brief."}',
    ],
)
def test_common_request_is_plain(body: bytes) -> None:
    assert plain_run(body) == any_run(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"prompt":null}',
        b'{"prompt":"hi","agentId":"a\\n"}',
        b'{"prompt":"hi","name":"a\\u0000b"}',
        b'{"prompt":"hi","loopDetection":true}',
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"hi","tools":[{"kind":"server","name":"a"},{"kind":"mantyx_plugin","name":"a"}]}',
        b'{"prompt":"hi","tools":[{"kind":"server","name":"a","id":"b"}]}',
        json.dumps({"prompt": "hi", "modelId": "m" * (MAX_MODEL_ID_CHARS + 1)}).encode(),
        json.dumps({"prompt": "hi", "name": "n" * (MAX_RUN_NAME_CHARS + 1)}).encode(),
        json.dumps(
            {"prompt": "hi", "tools": [{"kind": "server", "name": f"t{n}"} for n in range(MAX_TOOLS + 1)]}
        ).encode(),
        b'{"prompt":"' + b"x" * PLAIN_BYTES + b'"}',
    ],
)
def test_anything_else_is_looked_at_more_closely(body: bytes) -> None:
    assert plain_run(body) is None
    assert outcome(parse_run, body) == outcome(any_run, body)
