"""A valid body is read in one pass, any other field by field: whoever sends one cannot tell which."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.errors import InvalidRequest
from weftline.spec.door import MESSAGE, RUN, Door, parse_run
from weftline.spec.fields import RunSpec, fields_of

OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
FILE = {"data": "aGVsbG8=", "mediaType": "text/plain"}
VALID: dict[str, list[Any]] = {
    "prompt": ["hi", ""],
    "messages": [[{"role": "user", "content": "x", "attachments": [FILE]}, {"role": "assistant", "content": "y"}]],
    "attachments": [[{**FILE, "name": "a.txt"}], [{"url": "https://x.example/a.png"}], []],
    "name": ["n" * 256],
    "agentId": ["agt_1"],
    "modelId": ["a:b"],
    "modelFallbacks": [["a", "b"], []],
    "fallbackModelId": ["c"],
    "systemPrompt": ["", "Be brief."],
    "reasoningLevel": ["low", 37, 37.0, 0],
    "temperature": [0, 1.5],
    "topP": [0.5],
    "stopSequences": [["a"]],
    "maxOutputTokens": [5],
    "tools": [
        [{"kind": "server", "name": "add"}, {"kind": "mantyx_plugin", "name": "@a/b"}],
        [{"kind": "stored", "id": "t_1"}, {"kind": "mantyx", "id": "t_2"}],
        [{"kind": "local", "name": "l", "parameters": OBJECT, "tags": ["x"], "effect": "once"}],
        [{"kind": "a2a", "name": "p", "agentCardUrl": "https://a.example", "headers": {"X": "y"}, "contextId": "c"}],
        [{"kind": "a2a_local", "name": "q", "agentCard": {"name": "n", "x": {"y": 1}}}],
        [{"kind": "mcp", "name": "m", "url": "https://u:p@a.example/x", "toolFilter": ["a"], "elicitation": "ask"}],
        [{"kind": "mcp_local", "name": "fs", "tools": [{"name": "read", "inputSchema": OBJECT, "x": {"z": 1}}]}],
    ],
    "outputSchema": [{"name": "n", "schema": {"type": "object"}}],
    "loopDetection": [False, {}, {"consecutiveThreshold": 3, "hardCutoffThreshold": 9}],
    "toolBudgets": [{}, {"a": {"maxCalls": 3}}],
    "budgets": [{"maxToolTurns": 10**30, "inDoubt": "ask"}, {"onLeaseLost": "fallback", "leaseFallbacks": {"a": "b"}}],
    "policy": [
        {"maxToolCalls": 0, "timeBudgetMs": 500, "perToolTimeoutMs": {"a": 5}, "tagClauses": [{"allowedAny": ["a"]}]},
        {"onMissingFields": "await_clarification"},
    ],
    "budget": [{"usd": 0.5, "tokens": 5, "onExceeded": "stop"}],
    "awaits": [{"timeoutMs": 5, "onExpired": "end", "fourEyes": True}],
    "onDeploy": ["ask"],
    "streamArguments": [True],
    "metadata": [{"a": "b"}],
    "labels": [{"a": "b"}],
    "turnId": ["t"],
    "runId": ["r-1"],
    "memo": [{"a": [1]}],
    "searchAttributes": [{"a": "x", "b": 1, "d": {"datetime": "2026-01-31T12:00:00Z"}, "e": ["x"]}],
    "taskQueue": ["q"],
    "retryPolicy": [{"maxAttempts": 3, "backoffCoefficient": 2}],
    "plan": [False, {"mode": "auto"}],
    "planOnly": [False],
}
"""At least one good value of every field."""
JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.5, 2**31, 10**16, 10**30, "", "x", "a b", "x" * 65, "x" * 257, "a\n", "\x00", "ä"),
    *([], {}, [None], [5], ["x"], {"a": 5}, {"a": "b"}, {"a b": "c"}, {"name": "x"}, {"kind": "local"}, {"kind": 5}),
    *("@a/b", "low", "https://x", {"planOnly": True}, ["x"] * 70, {f"k{n}": "v" for n in range(20)}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        steps = cast("Any", range(len(cast("Any", value))) if isinstance(value, list) else value)
        for step in steps:
            yield from places(cast("Any", value)[step], (*path, step))


def spoilt(body: dict[str, Any], chance: random.Random) -> None:
    """Replaces, removes or adds something anywhere in a body."""
    path = chance.choice([*places(body)])
    place: Any = body
    for step in path[:-1]:
        place = place[step]
    how = chance.random()
    if how < 0.7:
        place[path[-1]] = copy.deepcopy(chance.choice(JUNK))
    elif how < 0.85:
        del place[path[-1]]
    elif isinstance(place, dict):
        place[chance.choice(["promt", "usdd", "nme", "kind", "name"])] = copy.deepcopy(chance.choice(JUNK))


def some_body(chance: random.Random) -> bytes:
    names = chance.sample([*VALID], chance.choice([1, 2, 3, 5, 8, 12]))
    body = {name: copy.deepcopy(chance.choice(VALID[name])) for name in names}
    if chance.random() < 0.7:
        body.pop("messages", None)
        body["prompt"] = "hi"
    for _ in range(chance.choice([0, 0, 1, 1, 2, 3])):
        if body:
            spoilt(body, chance)
    return json.dumps(body, ensure_ascii=chance.random() < 0.5).encode(errors="surrogatepass")


def outcome(read: Any, body: bytes) -> object:
    try:
        return read(body)
    except InvalidRequest as error:
        return error.message, error.details


@given(st.randoms(use_true_random=False))
def test_a_body_means_the_same_however_it_is_read(chance: random.Random) -> None:
    for _ in range(20):
        body = some_body(chance)
        for door in (RUN, MESSAGE):
            assert outcome(door.read, body) == outcome(door.read_closely, body)


@pytest.mark.parametrize("name", [one.wire for one in fields_of(RunSpec)])
def test_every_field_is_read_in_one_pass_and_closely(name: str) -> None:
    for value in VALID[name]:
        fields = {name: value} if name in ("prompt", "messages") else {"prompt": "hi", name: value}
        body = json.dumps(fields).encode()
        sent = RUN.read(body)
        assert sent == RUN.read_closely(body)
        assert name in json.loads(sent.spec) or name == "fallbackModelId"


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
        b'{"prompt":"hi","sessionId":"s"}',
        b'{"prompt":"hi","memo":' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"prompt":"hi","plan":' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"prompt":"hi","plan":' + b'{"a":' * 300 + b"1" + b"}" * 301,
        b'{"prompt":"hi","tools":[{"kind":"local","name":"a","parameters":' + b"[" * 300 + b"]" * 300 + b"}]}",
    ],
)
def test_a_refusal_is_the_same_however_the_body_is_read(body: bytes) -> None:
    assert isinstance(outcome(RUN.read, body), tuple)
    assert outcome(RUN.read, body) == outcome(RUN.read_closely, body)


def test_all_problems_are_reported_at_once_with_their_paths() -> None:
    body = b"""{"prompt":5,"tools":[{"kind":"x"},{"kind":"local","name":"a b"},{"kind":"mcp","name":"m","url":"ftp:"}],
        "metadata":{"a":5},"budget":{"usd":-1,"usdd":5},"policy":{"timeBudgetMs":1.5},"loopDetection":true}"""
    with pytest.raises(InvalidRequest) as error:
        parse_run(body)
    assert [issue["path"] for issue in error.value.details["issues"]] == [
        "budget.usdd",
        "prompt",
        "tools[0].kind",
        "tools[1].name",
        "tools[2].url",
        "loopDetection",
        "policy.timeBudgetMs",
        "budget.usd",
        "budget.usdd",
        "metadata.a",
    ]


def test_a_key_that_is_sent_twice_is_stored_once() -> None:
    body = b'{"prompt":"a","prompt":"b","loopDetection":false,"tools":null}'
    assert parse_run(body).spec == b'{"prompt":"b","loopDetection":false,"tools":null}'


def test_a_secret_and_a_file_leave_the_spec_whatever_their_keys_are_escaped_as() -> None:
    body = b'{"prompt":"a","\\u0061ttachments":[{"data":"aGVsbG8=","mediaType":"text/plain"}]}'
    sent = Door.read(RUN, body)
    assert b"aGVsbG8" not in sent.spec
    assert [blob.data for blob in sent.blobs] == [b"hello"]
